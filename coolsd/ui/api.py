"""The public endpoint: one picture by one method, for `gradio_client` and other programs."""

import inspect
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event
from time import perf_counter
from typing import Any

import gradio as gr
from gradio.context import LocalContext
from gradio.data_classes import FileData
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from PIL import Image

from ..exports import data_uri, file_stem, png
from ..methods import METHODS
from ..models.prompt_domain import notice
from ..settings import SETTINGS, Setting, Settings, SettingsError, validate
from ..trace import Run, to_text
from .backend import DEFAULT_TARGET, Backend, Loader
from .compare import Stop, Stopped, wait_for_turn
from .comparison import PACE, Advance, End, Failed, Ready
from .gate import Listeners, Until
from .lanes import Lane
from .run_queue import Full, Visitor
from .text import CHANGE, FAILED, FULL
from .zerogpu import Door, Refused

log = logging.getLogger(__name__)
NAME = "generate"


def publish(demo: gr.Blocks, backend: Backend, loader: Loader, door: Door, listeners: Listeners) -> None:
    """Add /generate to the page being built, every parameter described; its runs queue with the page's own."""
    gr.api(endpoint(backend, loader, door, listeners), api_name=NAME, concurrency_limit=None)
    published = next(function for function in demo.fns.values() if function.api_name == NAME)
    for block, setting in zip(published.inputs, SETTINGS.values(), strict=True):
        block.label = documentation(setting)
    for block, label in zip(published.outputs, RESULTS, strict=True):
        block.label = label
    for block in published.outputs[::2]:
        block._api_info = FileData.model_json_schema()


def mend_tools(demo: gr.Blocks) -> None:
    """After launch with `mcp_server`: gradio's MCP server takes several results for a single one, and sends their pictures as text."""
    if (server := demo.mcp_server_obj) is None:
        return
    send = server.postprocess_output_data

    def one_by_one(data: Any, root: str) -> Any:
        several = len(data) == 1 and isinstance(data[0], tuple | list)
        return send(data[0] if several else data, root)

    server.postprocess_output_data = one_by_one


Answer = tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any] | None]  # as RESULTS; the files as gradio sends them
RESULTS = ("picture", "about the run", "run with every round")
UNWRITTEN = "The server has no room for files ({}), so the picture and the run are in this answer: `picture` as data URI, `run`."
TYPES = {"number": float, "integer": int, "flag": bool}

DOCSTRING = """Draw one picture with the embedded pair and say how it went.

Yields (nothing, {{"tokens": so far, "of": in all}}, nothing) while it decodes, and at last three values: the picture, a PNG file with the
settings in its metadata; what to know about it, {{"settings", "environment", "statistics", "notice": where the prompt lies outside what the
pair paints}}; and the run with every round, a JSON file.

Args:
{arguments}
"""


def documentation(s: Setting) -> str:
    """What a parameter means, and what may be given, in one line."""
    allowed = f"; one of {', '.join(METHODS)}" if s.kind == "method" else f"; {s.range}"
    text = s.description
    return f"{text[0].upper() if text[0].isascii() else text[0]}{text[1:]}{allowed}{f'; null: {s.auto}' if s.auto else ''}"


def signature() -> inspect.Signature:
    """One parameter a setting, with its type and default; the prompt alone has none."""
    parameters = []
    for s in SETTINGS.values():
        kind = TYPES.get(s.kind, str)
        default = inspect.Parameter.empty if s.kind == "prompt" else s.default
        annotation = kind | None if s.optional else kind
        parameters.append(inspect.Parameter(s.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=Answer)


def endpoint(backend: Backend, loader: Loader, door: Door | None = None, listeners: Listeners | None = None) -> Callable[..., Any]:
    """The function behind /generate, bound to a backend. Its signature and docstring, which become its schema, come from SETTINGS."""
    door, listeners = door or Door(backend, loader), listeners or Listeners()

    def generate(*values: Any, **named: Any) -> Iterator[Answer]:
        who = visitor(LocalContext.request.get(None))
        until = Until(Event(), lambda: listeners.here(who.session))
        try:
            arguments = signature().bind(*values, **named)
            arguments.apply_defaults()
            if not until.begins():
                return
            yield from decode(backend, loader, door, validate(backend.methods, **arguments.arguments), who, until)
        except Stopped:
            return
        except Refused as error:
            raise gr.Error(str(error), title=FAILED, print_exception=False) from None
        except (SettingsError, Full) as error:
            raise gr.Error(str(error), title=FULL if isinstance(error, Full) else CHANGE, print_exception=False) from None
        except Exception as error:
            log.exception("the run failed")
            message = f"The run failed: {type(error).__name__}: {error}. Try again, or change the settings."
            raise gr.Error(message, title=FAILED, print_exception=False) from None

    generate.__signature__ = signature()
    generate.__annotations__ = {p.name: p.annotation for p in generate.__signature__.parameters.values()} | {"return": Answer}
    generate.__doc__ = DOCSTRING.format(arguments="\n".join(f"    {s.name}: {documentation(s)}" for s in SETTINGS.values()))
    return generate


def visitor(request: gr.Request | None) -> Visitor:
    """Who asks, for the places in the queue."""
    client = getattr(request, "client", None)
    return Visitor(getattr(request, "session_hash", None), client.host if client else None)


def decode(backend: Backend, loader: Loader, door: Door, settings: Settings, who: Visitor, until: Stop) -> Iterator[Answer]:
    """Progress while the picture is decoded, then the picture and its run. Closing it stops the run.

    Raises:
        Stopped: nobody listens any more.
    """
    with backend.run_queue.place(who) as ahead:
        for view in wait_for_turn(ahead, until):
            yield progress(status=view.status)
        loading = loader.start(DEFAULT_TARGET)
        while not loading.done.wait(PACE):
            yield progress()
            if until.is_set():
                raise Stopped
        if loading.error:
            raise RuntimeError(f"{DEFAULT_TARGET} could not be loaded ({loading.error})")
        pair = loading.pair
        lane, environment = Lane(settings, tuple(pair.grid)), dict(pair.environment)
        last_update = perf_counter()
        with closing(door(DEFAULT_TARGET, [settings.to_dict()])) as events:
            for event in events:
                match event:
                    case Ready():
                        environment = event.environment
                    case Advance():
                        lane.rounds.append(event.round)
                    case End():
                        lane.image = Image.open(io.BytesIO(event.picture))
                    case Failed():
                        raise Refused(event.words)
                if until.is_set():
                    raise Stopped
                if perf_counter() - last_update >= PACE:
                    last_update = perf_counter()
                    yield progress(len(lane.tokens), settings.max_tokens or pair.grid[0] * pair.grid[1])
    yield result(lane, lane.run(pair.name, environment), notice(pair, settings.prompt))


def progress(tokens: int = 0, of: int = 0, **more: str) -> Answer:
    """An answer on the way there."""
    return None, {"tokens": tokens, "of": of, **more}, None


def result(lane: Lane, run: Run, remark: str) -> Answer:
    """The last answer: two files of the server's temporary folder; where that is full, both inside of the answer."""
    content = run.to_dict()
    about = {"settings": content["settings"], "environment": content["environment"], "statistics": content["stats"], "notice": remark}
    picture, text = png(lane.image, run), to_text(content)
    try:
        files = [sent_file(data, f"{file_stem(run)}{ending}") for data, ending in ((picture, ".png"), (text.encode(), ".json"))]
    except OSError as error:
        log.warning("no room for files: %s", error)
        inside = {"picture": data_uri(picture, "image/png"), "run": content}
        return None, about | inside | {"notice": f"{UNWRITTEN.format(error.strerror)} {remark}".rstrip()}, None
    return files[0], about, files[1]


def sent_file(content: bytes, name: str) -> dict[str, Any]:
    """A file where gradio serves it from, as gradio sends it.

    Raises:
        OSError: it could not be written.
    """
    path = save_bytes_to_cache(content, name, get_upload_folder())
    return FileData(path=path, orig_name=name, size=len(content)).model_dump()
