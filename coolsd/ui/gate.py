"""What stands in front of gradio's own routes: small bodies, no routes that nothing here needs, and who is listening to a run.

An ASGI middleware. Gradio reads a request's whole body before anything looks at it, serves uploads that no part of the page takes, and lets
a run go on that was asked for by a client that never fetches its result.
"""

import json
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

import gradio as gr

from .text import CHANGE

log = logging.getLogger(__name__)
STRANGE = "The page sent something that does not belong there. Reload it, and try again."
LIMIT = 64 * 1024  # bytes of a request's body; all settings with the longest prompt take under 8 KB
FILE_LIMIT = 2 * 1024 * 1024  # of a file of runs that is opened on the page: three lanes with heads of their rows
MOST_DIGITS = 18  # of a whole number, its sign among them: fewer than 64 bits
LONGEST_NAME = 64  # characters of a session's name
STALE = 5.0  # seconds after which a run that was prepared and never began no longer keeps its session from another
LOOK = 0.05  # seconds between two looks for a listener
GRACE, FIRST = 1.0, 2.5  # seconds a run goes on after its last listener, and waits for its first
API = "/gradio_api/"
CLOSED = ("upload", "upload_progress", "deep_link", "dev/", "openapi.json", "stream/", "proxy=", "process_recording")
CLOSED += ("vibe-", "undo-vibe-", "run-history", "custom_component", "file=http")
CALLED, SERVED = ("queue/join", "run/", "api/", "call/"), "component_server"
TOO_LARGE = f"The request is larger than {LIMIT // 1024} KB. A prompt with its settings needs far less; send only these."
NOT_HERE = "This page does not offer that."
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Listeners:
    """Open streams of results, by session (or by event, where a program asked without a session)."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.counting = False  # whether a gate counts; without one, everyone is taken to listen

    @contextmanager
    def listening(self, key: str) -> Iterator[None]:
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
    """A run's end: its stop event, or nobody listens. Used like a threading.Event, see compare.Stop.

    Args:
        grace: seconds after the last listener. first: seconds for one to come, who asks first and listens then.
    """

    def __init__(self, stop: threading.Event, here: Callable[[], bool], grace: float = GRACE, first: float = FIRST):
        self._stop, self._here, self._next, self._grace = stop, here, grace, first
        self._last = monotonic()

    def is_set(self) -> bool:
        """True once the run is to end."""
        if self._here():
            self._last, self._grace = monotonic(), self._next
        return self._stop.is_set() or monotonic() - self._last > self._grace

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds, or until the run is stopped; returns `is_set`."""
        return self._stop.wait(timeout) or self.is_set()

    def begins(self) -> bool:
        """Wait for the first listener, before a place in the queue is taken; False where none comes."""
        while not self._here() and not self.wait(LOOK):
            pass
        return self._here() or self._stop.is_set()


class RunStop(threading.Event):
    """A session's stop event from the moment it asks for a run. running: its generator has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self._made = False, monotonic()

    @property
    def holds(self) -> bool:
        """Whether the session waits for this run: one that never began, or was stopped before, is forgotten."""
        return self.running or (not self.is_set() and monotonic() - self._made < STALE)


class Calls:
    """What a call of one of the page's functions must look like before gradio takes it apart.

    Args:
        inputs: how many values each function takes, by its index. public: name of the one that has a name, and its values.
        files: the functions that take a file of runs. servers: components that a script calls, and the name it calls them by.
    """

    def __init__(
        self,
        inputs: Mapping[int, int],
        public: tuple[str, int],
        files: Collection[int] = (),
        servers: Collection[tuple[int, str]] = (),
    ):
        self.inputs, self.public, self.files, self.servers = inputs, public, files, servers

    def limit(self, path: str, body: bytes) -> int:
        """Most bytes that this call may have."""
        if len(body) <= LIMIT or not path.startswith(f"{API}queue/join"):
            return LIMIT
        try:
            return FILE_LIMIT if json.loads(body)["fn_index"] in self.files else LIMIT
        except (ValueError, TypeError, KeyError, RecursionError):
            return LIMIT

    def refusal(self, path: str, body: bytes) -> str:
        """Why the call cannot be meant; empty where it can."""
        try:
            call = json.loads(body, parse_int=whole_number)
            json.dumps(call, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "The request holds half of a character (a lone surrogate). Send whole ones."
        except OverflowError:
            return "The request holds a whole number of more than 64 bits. No setting goes as far."
        except (ValueError, RecursionError):
            return "The body of the request is not JSON."
        if path.startswith(API + SERVED):
            return "" if self._is_served(call) else "This page has no such component. Reload the page."
        if not isinstance(call, dict) or not isinstance(call.get("data"), list):
            return 'The body of the request has no list of values. Send {"data": [...]}.'
        session, index = call.get("session_hash"), call.get("fn_index")
        if session is not None and not is_session(session):
            return f"The session's name must be text of 1 to {LONGEST_NAME} characters."
        name = path.rstrip("/").rpartition("/")[2]
        count, most = len(call["data"]), self.public[1]
        if name == self.public[0]:
            return "" if count == most else f"{name} takes {most} values, in the order of its documentation; {count} came."
        if name not in ("predict", "join"):
            return f"There is no endpoint of that name. There is one: {self.public[0]}."
        if type(index) is not int or index not in self.inputs:
            return "fn_index names no function of this page. Reload the page."
        return "" if count == self.inputs[index] else f"Function {index} takes {self.inputs[index]} values; {count} came. Reload the page."

    def _is_served(self, call: Any) -> bool:
        if not isinstance(call, dict) or not is_session(call.get("session_hash")) or "data" not in call:
            return False
        component, name = call.get("component_id"), call.get("fn_name")
        return type(component) is int and isinstance(name, str) and (component, name) in self.servers


def whole_number(digits: str) -> int:
    """The number, where gradio could send it back; what it cannot, half a character likewise, would end in a traceback.

    Raises:
        OverflowError: more than 64 bits.
    """
    if len(digits) > MOST_DIGITS:
        raise OverflowError
    return int(digits)


def is_session(name: object) -> bool:
    """Whether this may be a session's name."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME


class Gate:
    """The middleware. listeners: where open streams are counted. calls: what calls must look like."""

    def __init__(self, app: Callable[..., Any], listeners: Listeners, calls: Calls):
        self.app, self.listeners, self.calls = app, listeners, calls
        listeners.counting = True

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
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
            await self._write(path, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _write(self, path: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        most = FILE_LIMIT if path.startswith(f"{API}queue/join") else LIMIT
        body = await read(receive, most) if stated(scope) <= most else None
        if body is None or len(body) > self.calls.limit(path, body):
            await answer(send, 413, TOO_LARGE)
            return
        if path.startswith(tuple(API + name for name in (*CALLED, SERVED))) and (words := self.calls.refusal(path, body)):
            await answer(send, 422, words)
            return
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> dict[str, Any]:
            return rest.pop() if rest else await receive()

        async def refused(message: dict[str, Any]) -> None:  # gradio answers 500 also where a handler refused in words
            if message["type"] == "http.response.start" and message["status"] == 500:
                message = {**message, "status": 422}
            await send(message)

        await self.app(scope, again, refused)


def stated(scope: dict[str, Any]) -> int:
    """The length of the body as its sender states it; 0 where it does not."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() and len(length) < LONGEST_NAME else FILE_LIMIT + 1


async def read(receive: Receive, most: int) -> bytes | None:
    """The whole body; None as soon as it is over the limit."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            return None
    return body


def guard(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler; what it cannot make sense of becomes a message, and no traceback."""

    @wraps(handler)
    def guarded(*values: Any) -> Any:
        try:
            return handler(*values)
        except gr.Error:
            raise
        except Exception as error:
            log.warning("refused what a page never sends: %s", type(error).__name__)
            raise gr.Error(STRANGE, title=CHANGE, print_exception=False) from None

    return guarded


def stream_of(path: str, query: bytes) -> str:
    """Whose results this request streams; empty for any other request."""
    if path == f"{API}queue/data":
        return parse_qs(query.decode("latin-1")).get("session_hash", [""])[0]
    parts = path.removeprefix(f"{API}call/").split("/")
    return parts[-1] if path.startswith(f"{API}call/") and len(parts) > 1 else ""


async def answer(send: Send, status: int, words: str) -> None:
    """A short refusal as JSON."""
    body = json.dumps({"detail": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
