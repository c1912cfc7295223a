"""The fixed HTML of the page. It holds no values: the browser puts those in as text, under the names given in data- attributes."""

from html import escape
from importlib.resources import files

from .text import CALLS, DEFINITIONS, ESTIMATE, SPEEDUP, TOKEN_KINDS

READOUT = ("seconds", "calls", "length", "tokens", "rate", "drafts", "bias")


def asset(name: str) -> str:
    """Text of a file of coolsd/ui/assets."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


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


def lanes() -> str:
    """The pictures with their readouts, and the key to their bars."""
    key = "".join(f'<span><i class="{fate}"></i>{term(label, meaning)}</span>' for fate, (label, meaning) in TOKEN_KINDS.items())
    drawn = "".join(_lane(letter, f"{name} lane") for letter, name in (("a", "Reference"), ("b", "Relaxed"), ("c", "Plain AR")))
    return f'<div class="lanes">{drawn}</div><div class="key">{key}</div>'


def _lane(key: str, name: str) -> str:
    bars = "".join(f'<i class="{fate}" data-grow="{key}.{fate}"></i>' for fate in TOKEN_KINDS)
    numbers = "".join(_number(key, name, "left" if i % 3 == 2 else "") for i, name in enumerate(READOUT))
    return f"""
<section class="lane {key}" data-state="{key}.state" aria-label="{name}">
  <header><h2 data-text="{key}.title"></h2><a data-png="{key}.file" data-source="{key}.picture" hidden>PNG</a></header>
  <div class="picture"><img data-image="{key}.picture" data-alt="{key}.alt" alt="" hidden>
    <div class="hint">Press Generate</div><span class="badge" data-text="{key}.badge"></span></div>
  <div class="fates">{bars}</div>
  <dl class="numbers">{numbers}</dl>
</section>"""


def _number(key: str, name: str, side: str) -> str:
    more = f'<small data-text="{key}.picture_bias"></small>' if name == "bias" else ""
    label = term(*DEFINITIONS[name], side)
    return f'<div class="{name}"><dt>{label}</dt><dd><span data-text="{key}.{name}"></span>{more}</dd></div>'


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


def curve() -> str:
    """The live curve, ω in numbers and words, and the same figures as a table."""
    return """
<div class="curve">
  <h3>Acceptance by draft position</h3>
  <p class="note">Lines: acceptance probability f. Bars: accepted share of rounds. Dashed: ω as set below.</p>
  <div class="plot" role="img" aria-label="Acceptance probability, accepted share and ω by draft position; also in the table below"></div>
  <p class="omega">ω: <span class="omega-row"></span><br><span class="omega-words"></span></p>
  <details><summary>The curve as a table</summary><table></table></details>
</div>"""


def exports() -> str:
    """Download of both runs."""
    return '<div class="downloads"><a data-json="name" data-source="text" hidden>Both runs as JSON</a></div>'
