"""The fixed HTML of the page. It holds no values: the browser puts those in as text, under the names given in data- attributes."""

from html import escape
from pathlib import Path

from .text import CALLS, ESTIMATE, SPEEDUP

ASSETS = Path(__file__).resolve().parent / "assets"
SERVED = "gradio_api/file="  # static paths, see page.build; relative, so that it holds behind a proxy too
STYLES = ("page", "stage", "curves", "inspector", "laboratory", "evidence")
READOUT = ("seconds", "calls", "length", "tokens", "drafts", "bias")


def head() -> str:
    """What goes into the document's head: the style sheets, and the modules, as the promise `coolsd`."""
    styles = "".join((ASSETS / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    folder = f"{SERVED}{ASSETS.as_posix()}"
    preload = "".join(f'<link rel="modulepreload" href="{folder}/{path.name}">' for path in sorted(ASSETS.glob("*.js")))
    return f'<style>{styles}</style>{preload}<script>window.coolsd = import("./{folder}/page.js");</script>'


def on_load(name: str, *arguments: str) -> str:
    """Script of a component that a function of page.js takes over."""
    return f"coolsd.then((page) => page.{name}({', '.join(('element', *arguments))}))"


def call(name: str, *arguments: str) -> str:
    """Script of an event: a function of page.js with these arguments, the last of which are the event's inputs."""
    return f"async (...values) => (await coolsd).{name}({', '.join((*arguments, 'values'))})"


def term(label: str, meaning: str, place: str = "") -> str:
    """Words explained on hover and on focus."""
    spoken = escape(f"{label}: {meaning}")
    return f'<button type="button" class="term {place}" data-tip="{escape(meaning)}" aria-label="{spoken}">{escape(label)}</button>'


def header() -> str:
    """The page's name."""
    return "<h1>COOL-SD <span>· relaxed speculative decoding, seen</span></h1>"


def line(role: str = "status") -> str:
    """One line of words with a tone; screen readers hear it change."""
    return f'<p role="{role}" aria-live="polite"><span data-text="status" data-state="tone"></span></p>'


def answer() -> str:
    """The speedups: against the reference lane, and against plain AR."""
    reference = _speedup(
        '<span data-text="subject"></span> against <span data-text="against"></span>', "calls", "reference", "interval", "how"
    )
    plain = _speedup("against plain AR", "ar_calls", "ar", "ar_interval", "ar_how", f"{SPEEDUP} {ESTIMATE}", "left")
    notes = '<p class="how notes"><span class="chip" data-stale hidden>settings changed: press Generate</span><b data-text="busy"></b></p>'
    return f'<div class="answer" role="group" aria-label="Speedup" data-state="state">{reference}{plain}{notes}</div>'


def _speedup(what: str, calls: str, seconds: str, interval: str, how: str, meaning: str = SPEEDUP, side: str = "") -> str:
    clock, passes = term("in seconds", meaning, f"below {side}"), term("in target calls", CALLS, f"below {side}")
    return f"""
<div><p class="what">{what}</p>
  <div class="big" data-text="{calls}"></div>
  <p class="how">{passes}</p>
  <p class="how"><b data-text="{seconds}"></b> <span data-text="{interval}"></span> {clock}<span data-text="{how}"></span></p></div>"""


def mount() -> str:
    """Room for a component that the browser draws by itself."""
    return '<div class="mount"></div>'


def exports() -> str:
    """Downloads of the runs, see lanes.downloads."""
    whole = '<a data-json="name" data-source="text" hidden>Both runs as JSON</a>'
    return f'<div class="downloads">{whole}<a data-csv="table_name" data-source="table" hidden>Rounds as CSV</a></div>'
