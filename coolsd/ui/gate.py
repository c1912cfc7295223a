"""What stands in front of gradio's own routes: small bodies, no routes that nothing here needs, and who is listening to a run.

An ASGI middleware. Gradio reads a request's whole body before anything looks at it, serves uploads that no part of the page takes, and lets
a run go on that was asked for by a client that never fetches its result.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

LIMIT = 64 * 1024  # bytes of a request's body; all settings with the longest prompt take under 8 KB
GRACE = 1.0  # seconds a run goes on without anyone who listens
API = "/gradio_api/"
CLOSED = ("upload", "upload_progress", "deep_link", "dev/", "openapi.json", "stream/", "proxy=", "process_recording", "component_server")
CLOSED += ("vibe-", "undo-vibe-", "run-history", "custom_component")
TOO_LARGE = f"The request is larger than {LIMIT // 1024} KB. A prompt with its settings needs far less; send only these."
NOT_HERE = "This page does not offer that."


class Listeners:
    """Open streams of results, by session (or by event, where a program asked without a session)."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.counting = False  # whether a gate counts; without one, everyone is taken to listen

    @contextmanager
    def listening(self, key: str) -> Any:
        """For as long as the stream is open."""
        with self._lock:
            self._open[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= Counter([key])

    def here(self, key: str | None) -> bool:
        """Whether someone listens."""
        return not self.counting or key is None or self._open[key] > 0


class Until:
    """A run's end: its stop event, or nobody has listened for GRACE seconds. Used like a threading.Event, see compare.Stop."""

    def __init__(self, stop: threading.Event, here: Callable[[], bool], grace: float = GRACE):
        self._stop, self._here, self._grace = stop, here, grace
        self._last = monotonic()

    def is_set(self) -> bool:
        """True once the run is to end."""
        if self._here():
            self._last = monotonic()
        return self._stop.is_set() or monotonic() - self._last > self._grace

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds, or until the run is stopped; returns `is_set`."""
        return self._stop.wait(timeout) or self.is_set()


class TooLarge(Exception):
    """A body went over the limit while it was read."""


class Gate:
    """The middleware. listeners: where open streams are counted."""

    def __init__(self, app: Callable[..., Any], listeners: Listeners):
        self.app, self.listeners = app, listeners
        listeners.counting = True

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Answer in gradio's place, or let it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = API + scope["path"].partition(API)[2] if API in scope["path"] else scope["path"]
        if path.startswith(tuple(API + name for name in CLOSED)):
            await answer(send, 404, NOT_HERE)
        elif scope["method"] == "GET" and (key := stream_of(path, scope["query_string"])):
            with self.listeners.listening(key):
                await self.app(scope, receive, send)
        elif scope["method"] in ("POST", "PUT", "PATCH"):
            await self._limited(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _limited(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > LIMIT:
            await answer(send, 413, TOO_LARGE)
            return
        size, begun = 0, False

        async def counted() -> dict[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LIMIT:
                raise TooLarge
            return message

        async def noted(message: dict[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except TooLarge:
            if not begun:
                await answer(send, 413, TOO_LARGE)


def stream_of(path: str, query: bytes) -> str:
    """Whose results this request streams; empty for any other request."""
    if path == f"{API}queue/data":
        return parse_qs(query.decode("latin-1")).get("session_hash", [""])[0]
    parts = path.removeprefix(f"{API}call/").split("/")
    return parts[-1] if path.startswith(f"{API}call/") and len(parts) > 1 else ""


async def answer(send: Callable[..., Any], status: int, words: str) -> None:
    """A short refusal as JSON."""
    body = json.dumps({"detail": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
