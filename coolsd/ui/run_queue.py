"""Whose turn it is to use the model: a fair line with few places for each visitor.

Not left to gradio's queue, where a waiting run could neither say how many are ahead of it nor end by itself when it is stopped.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PLACES = 20  # runs that may wait for the model
BY_SESSION, BY_ADDRESS = 2, 4  # places of one open page, and of one network address


class Full(Exception):
    """No place left in the queue, for this visitor or at all; the message says what to do."""


@dataclass(frozen=True)
class Visitor:
    """Who asks. Without a name nothing is counted against anyone."""

    session: str | None = None
    address: str | None = None


ANYONE = Visitor()


@dataclass(eq=False)
class _Place:
    visitor: Visitor
    running: bool = False


class RunQueue:
    """First come, first served among visitors: a visitor's second run waits behind the first runs of all others.

    Args:
        most: runs that may wait. at_once: runs at the same time.
        by_address: places of one address; 0 counts none, for a room of people behind one.
    """

    def __init__(self, most: int = PLACES, at_once: int = 1, by_address: int = BY_ADDRESS):
        self._most, self._at_once, self._by_address = most, at_once, by_address
        self._line: list[_Place] = []
        self._lock = threading.Lock()

    @contextmanager
    def place(self, visitor: Visitor = ANYONE) -> Iterator[Callable[[], int]]:
        """A place in the queue, given up on leaving. Yields a function that counts the runs ahead; 0: it is this one's turn.

        Raises:
            Full: as many wait as may.
        """
        mine = _Place(visitor)
        with self._lock:
            self._check(visitor)
            self._line.append(mine)
        try:
            yield lambda: self._ahead(mine)
        finally:
            with self._lock:
                self._line.remove(mine)

    @property
    def length(self) -> int:
        """Places taken: runs that wait, and those whose turn it is."""
        return len(self._line)

    def _check(self, visitor: Visitor) -> None:
        own = sum(p.visitor.session == visitor.session for p in self._line) if visitor.session else 0
        if own >= BY_SESSION:
            raise Full(f"{own} runs of this page are in the queue already. Wait for one of them, or stop it.")
        near = sum(p.visitor.address == visitor.address for p in self._line) if visitor.address and self._by_address else 0
        if near and near >= self._by_address:
            raise Full(f"{near} runs from your network address are in the queue already. Press Generate again when one has ended.")
        if self.length >= self._most + self._at_once:
            raise Full("Too many people are waiting. Press Generate again in a minute.")

    def _ahead(self, mine: _Place) -> int:
        with self._lock:
            if mine.running:
                return 0
            running = sum(p.running for p in self._line)
            before = self._order().index(mine)
            if running + before < self._at_once:
                mine.running = True
                return 0
            return running + before - self._at_once + 1

    def _order(self) -> list[_Place]:
        """The waiting places, those first whose visitor has fewest places in front of them."""
        waiting = [(self._earlier(place, at), at, place) for at, place in enumerate(self._line) if not place.running]
        return [place for _, _, place in sorted(waiting, key=lambda entry: entry[:2])]

    def _earlier(self, place: _Place, at: int) -> int:
        """Places in front of this one that are the same visitor's."""
        mine = place.visitor.address or place.visitor.session
        return sum((p.visitor.address or p.visitor.session) == mine for p in self._line[:at]) if mine else 0
