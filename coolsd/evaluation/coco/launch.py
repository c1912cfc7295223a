"""Several processes and machines, as `accelerate launch` starts them: work is split, a death is named, the others finish.

Each launched process keeps watch over a worker that does the decoding. The launcher ends all of its processes as soon as one fails, so that
these stay alive whatever becomes of their workers; a worker that is killed takes with it what it was decoding and nothing else.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from accelerate import PartialState

PATIENCE = timedelta(days=30)  # that the first to finish waits for the last
Job = TypeVar("Job")
Work = Callable[[Any, list[Any], "Launch"], None]  # what is to be done, the jobs of this process, and which one it is


@dataclass(frozen=True)
class Launch:
    """This process among those that were launched together. start: how a worker is started, see multiprocessing."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    state: "PartialState | None" = field(default=None, compare=False, repr=False)
    start: str = "spawn"

    @property
    def name(self) -> str:
        """As it is called in messages."""
        return f"process {self.rank + 1} of {self.ranks} on {socket.gethostname()}"

    def wait(self) -> None:
        """Until all processes are here."""
        if self.state is not None:
            self.state.wait_for_everyone()

    def everyones(self, value: Any) -> list[Any]:
        """What each process has, by rank, for all of them."""
        if self.state is None:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])


def this_launch(start: str = "spawn") -> Launch:
    """This process, which waits for the others by gloo: workers talk to nobody.

    Raises:
        ValueError: several processes were launched without accelerate being installed.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return Launch()
    try:
        from accelerate import PartialState
    except ImportError:
        raise ValueError("Several processes need accelerate: pip install -r coolsd/evaluation/requirements.txt") from None
    state = PartialState(cpu=True, backend="gloo", timeout=PATIENCE)
    local = int(os.environ.get("LOCAL_RANK", state.process_index))
    return Launch(state.process_index, state.num_processes, local, state, start)


def _worker(work: Work, plan: Any, jobs: list[Any], launch: Launch) -> None:
    try:
        work(plan, jobs, launch)
    except (ValueError, OSError) as error:
        print(f"{launch.name}: {error}", file=sys.stderr)
        sys.exit(2)


def share(jobs: Sequence[Job], launch: Launch) -> list[Job]:
    """The jobs of this process: every `ranks`-th."""
    return list(jobs[launch.rank :: launch.ranks])


def run(work: Work, plan: Any, jobs: Sequence[Any], launch: Launch) -> list[str]:
    """Do all jobs, each in one process; returns, in every process, what became of those that failed.

    Args:
        work: a module's function, since workers are fresh processes. plan: what it needs besides, to be pickled.
        jobs: the same in all processes.
    """
    mine = share(jobs, launch)
    if launch.ranks == 1:
        if mine:
            work(plan, mine, launch)
        return []
    failure = ""
    if mine:
        alone = Launch(launch.rank, launch.ranks, launch.local_rank)
        process = get_context(launch.start).Process(target=_worker, args=(work, plan, mine, alone), daemon=True)
        process.start()
        process.join()
        if process.exitcode:
            how = f"was killed by signal {-process.exitcode}" if process.exitcode < 0 else f"failed with exit code {process.exitcode}"
            failure = f"{launch.name} {how} (worker {process.pid})"
            print(failure, file=sys.stderr)
    return [one for one in launch.everyones(failure) if one]
