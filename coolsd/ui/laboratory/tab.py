"""The Laboratory tab: layout and events. What is computed is in `coolsd.laboratory.exact`, what is shown in drawing.

Needs no model and no queue of the model's: every handler is a few milliseconds of arithmetic, and checks what it is given.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from ... import theory
from ...laboratory import exact
from ...laboratory.exact import CAPS, CHOICES, CORRECT, LANTERNS, MAX_LENGTH, PRESETS, SHAPES, TOKENS, USES_OMEGA, Knobs, LaboratoryError
from ...laboratory.mistakes import MISTAKES
from ...rules import Lossless
from .. import templates
from ..text import CHANGE
from . import drawing as parts

ROUNDS, STEPS, PAUSE = 10_000, 10, 0.05  # rounds a press, in so many steps, seconds between two so that one sees them arrive
MOST = 1_000_000  # rounds on one histogram
OMEGA_LIMIT = 8.0  # of the slider
BELOW_ONE = 0.5  # ω that shows what is wrong with the vanilla residual
PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}
LIVE = {**PRIVATE, "queue": False, "trigger_mode": "always_last", "preprocess": False}  # what was sent is checked here, also an empty box
FIRST_PRESET = "ambiguous"
BORROWER = "F"  # on that preset its f grows by borrowing
ROUND = {"shape": "annealed", "length": 5, "delta": 2.0, "nu": 0.7, "mu_auto": True, "mu": 0.0, "clamp": False, "first": 0.15, "last": 0.4}


# ---- from controls to what is shown


@contextmanager
def as_messages() -> Iterator[None]:
    """Turn a refusal into a message that the person sees."""
    try:
        yield
    except LaboratoryError as error:
        raise gr.Error(str(error), title=CHANGE, print_exception=False) from None


def speaking(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, its refusals shown as messages."""
    return as_messages()(handler)


def read_rows(rows: Any) -> tuple[Tensor, Tensor]:
    """p and q from the editor's value."""
    rows = rows if isinstance(rows, dict) else {}
    return exact.read_row(rows.get("p"), "p"), exact.read_row(rows.get("q"), "q")


def preset(name: str) -> dict[str, list[float]]:
    """A preset as the editor's value."""
    return dict(zip("pq", map(list, PRESETS[name]), strict=True))


def look(rows: Any, *values: Any) -> tuple[dict[str, Any], str]:
    """One token: what `reading` shows, and LANTERN's picture. values: the knobs, then the code that borrows."""
    *knobs, code = values
    p, q = read_rows(rows)
    chosen_knobs = exact.read_knobs(*knobs)
    token = TOKENS.index(exact.read_choice(code, TOKENS, "The code"))
    result = exact.one_token(p, q, chosen_knobs)
    picture = parts.codes(p, result, token, chosen_knobs) if chosen_knobs.choice in LANTERNS else ""
    return parts.describe(p, q, result, chosen_knobs), picture


def unroll(*values: Any) -> tuple[str, str]:
    """One round: its profile, and the contest of schedules. values: of the controls of ROUND, in its order."""
    shape, length, delta, nu, mu_auto, mu, clamp, first, last = values
    read = exact.read_number
    shape, length = exact.read_choice(shape, SHAPES, "The schedule"), read(length, 1, MAX_LENGTH, "The draft length", whole=True)
    delta, nu = read(delta, 0, 8, "δ"), read(nu, 0, 3, "ν")
    fixed = None if mu_auto is True else read(mu, -5, 5, "μ")
    first, last = read(first, 0, 0.5, "The draft's TV at position 1"), read(last, 0, 0.5, "The draft's TV at the last position")
    p, q = exact.round_rows(length, first, last)
    result = exact.one_round(p, q, exact.schedule(shape, length, delta, nu, fixed, clamp is True))
    lossless = float(theory.expected_accepted(p, q, Lossless()))
    contestants = exact.same_accept_length(p, q, result.accepted, nu)
    return parts.profile(result), parts.contest(contestants, result.accepted, lossless)


def omega_for(choice: str, omega: Any) -> Any:
    """ω when a rule's button is pressed: the vanilla residual is wrong only below 1, so ω is brought there."""
    off = choice in MISTAKES and MISTAKES[choice].below_one and exact.read_number(omega, 0, 8, "ω") >= 1
    return BELOW_ONE if off else omega


def roll(rows: Any, before: Any, *values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """10,000 rounds more, in steps: the histogram, and what was counted for the next press.

    Args:
        before: what the last press counted; goes on from there when rows and rule are the same, else starts anew.
        values: the knobs.
    """
    p, q = read_rows(rows)
    knobs = exact.read_knobs(*values)
    setup = {"p": p.tolist(), "q": q.tolist()} | knobs.active
    goes_on = isinstance(before, dict) and before.get("setup") == setup
    counts = torch.tensor(before["counts"] if goes_on else [0] * len(p))
    if int(counts.sum()) >= MOST:
        raise LaboratoryError(f"{MOST:,} rounds are on the histogram already. Press a rule to start again.")
    rule_case, result = exact.case(knobs, q), exact.one_token(p, q, knobs)
    generator = torch.Generator().manual_seed(int(counts.sum()))
    for _ in range(STEPS):
        counts = counts + exact.simulate(p, rule_case, ROUNDS // STEPS, generator)
        yield parts.histogram(p, result, counts, knobs), {"setup": setup, "counts": counts.tolist()}


def roll_live(*values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """`roll`, slowly enough to be watched, its refusals shown as messages."""
    with as_messages():
        for view in roll(*values):
            yield view
            time.sleep(PAUSE)


# ---- layout


def draw() -> "OneTokenPanel":
    """Place the tab's three parts and wire them; gives the one that rows of a run can be carried to."""
    rows = gr.HTML(
        preset(FIRST_PRESET),
        html_template=parts.bars(),
        js_on_load=templates.on_load("editor", "props", "() => trigger('input')", "watch"),
        apply_default_css=False,
        render=False,
    )
    with gr.Tabs(elem_id="laboratory"):
        with gr.Tab("One token", id="one-token"):
            panel = OneTokenPanel(rows)
        with gr.Tab("One round", id="one-round"):
            draw_round()
        with gr.Tab("Is it lossless?", id="is-it-lossless"):
            draw_trials(rows)
    return panel


def carried(row: Any) -> tuple[Any, ...]:
    """Updates of OneTokenPanel.rows for a row of a run, as the browser sends it; none for what is no such row."""
    try:
        p, q = read_rows(row)
        omega = exact.read_number(row["omega"], 0, 1e6, "ω")
        names = [str(name)[:8] for name in row["names"]][: len(TOKENS)]
        source = str(row["source"])[:200]
    except (LaboratoryError, KeyError, TypeError):
        return gr.skip(), gr.skip(), gr.skip()
    value = {"p": p.tolist(), "q": q.tolist(), "names": names, "source": source}
    return value, "relaxed", gr.update(value=round(min(omega, OMEGA_LIMIT), 2), visible=True)


def _presets(rows: gr.HTML) -> list[Any]:
    """Buttons that set both rows, as events to go on from."""
    with gr.Row(elem_classes="lab-presets"):
        gr.HTML("<span>Rows</span>", apply_default_css=False)
        buttons = [(name, gr.Button(name.capitalize(), size="sm")) for name in PRESETS]
    return [button.click(lambda name=name: preset(name), None, rows, queue=False, **PRIVATE) for name, button in buttons]


class LanternKnobs:
    """LANTERN's own knobs, out of sight until `fit` shows those that a rule has."""

    def __init__(self, borrower: bool = False):
        first, small = Knobs(), {"min_width": 110}
        with gr.Row(visible=False, elem_classes="lab-knobs") as row:
            k = gr.Slider(1, len(TOKENS) - 2, first.k, step=1, label="k", buttons=[], **small)
            budget = gr.Slider(0, 1, first.budget, step=0.01, label="budget", buttons=[], **small)
            cap = gr.Slider(*CAPS, first.cap, step=0.1, label="λ cap", buttons=[], visible=False, **small)
            self.code = gr.Dropdown(list(TOKENS), value=BORROWER, label="borrower", visible=borrower, **small)
            optimal = gr.Checkbox(first.optimal, label="residual G*", **small)
        self.knobs = [k, budget, cap, optimal]  # in the order of Knobs
        self.fitted = [row, budget, cap]
        self.settled = [k.release, budget.release, cap.release, optimal.input]

    @staticmethod
    def fit(choice: str) -> tuple[Any, ...]:
        """Updates of `fitted` for a rule."""
        return tuple(gr.update(visible=visible) for visible in (choice in LANTERNS, choice != "lantern++", choice == "lantern++"))


class OneTokenPanel:
    """What happens to one drafted token?"""

    def __init__(self, rows: gr.HTML):
        first = look(preset(FIRST_PRESET), *astuple(Knobs()), BORROWER)
        self.editor = rows
        with gr.Row():
            with gr.Column(scale=11, min_width=340):
                gr.HTML("<h2>What happens to one drafted token?</h2>", apply_default_css=False)
                _presets(rows)
                rows.render()
            with gr.Column(scale=9, min_width=340, elem_classes="lab-asking"):
                self.choice = gr.Radio(
                    [(("wrong: " if name in MISTAKES else "") + title, name) for name, title in CHOICES.items()],
                    value="lossless",
                    label="Rule",
                    show_label=False,
                    elem_classes="lab-rules",
                )
                self.omega = gr.Slider(0, OMEGA_LIMIT, 1.5, step=0.05, label="ω relaxation (1 is lossless)", visible=False, buttons=[])
                self.lantern = LanternKnobs(borrower=True)
                with gr.Row(elem_classes="lab-answering"):
                    self.reading = gr.HTML(
                        first[0],
                        html_template=parts.reading(),
                        js_on_load=templates.on_load("reading", "props", "watch"),
                        apply_default_css=False,
                        min_width=260,
                        scale=3,
                    )
                    self.picture = gr.HTML("", apply_default_css=False, visible=False, min_width=200, scale=2)
        self.connect(rows)

    @property
    def rows(self) -> list[Any]:
        """What a row of a run sets: both rows, the rule and its ω."""
        return [self.editor, self.choice, self.omega]

    def connect(self, rows: gr.HTML) -> None:
        """Everything that changes the answer."""
        knobs = [self.choice, self.omega, *self.lantern.knobs, self.lantern.code]
        outputs = [self.reading, self.picture]
        gr.on([rows.input, *(knob.change for knob in knobs)], speaking(look), [rows, *knobs], outputs, **LIVE)
        self.choice.change(
            lambda choice: (gr.update(visible=choice in USES_OMEGA), gr.update(visible=choice in LANTERNS), *LanternKnobs.fit(choice)),
            self.choice,
            [self.omega, self.picture, *self.lantern.fitted],
            **LIVE,
        )


def draw_round() -> None:
    """How far does a draft get, what does it cost, and which schedule costs least?"""
    first = unroll(*ROUND.values())
    number = {"buttons": [], "min_width": 120}
    with gr.Row(elem_classes="lab-panels"):
        with gr.Column(scale=5, min_width=220, elem_classes="lab-controls"):
            kinds = [(title, name) for name, title in SHAPES.items()]
            shape = gr.Radio(kinds, value=ROUND["shape"], label="Schedule", elem_classes="lab-rules")
            delta = gr.Slider(0, 8, ROUND["delta"], step=0.05, label="δ relaxation", **number)
            nu = gr.Slider(0, 3, ROUND["nu"], step=0.05, label="ν annealing", **number)
            with gr.Row():
                mu_auto = gr.Checkbox(ROUND["mu_auto"], label="μ auto", min_width=80)
                clamp = gr.Checkbox(ROUND["clamp"], label="clamp ω ≥ 1", min_width=120)
            mu = gr.Slider(-5, 5, ROUND["mu"], step=0.05, label="μ", visible=False, **number)
            length = gr.Slider(1, MAX_LENGTH, ROUND["length"], step=1, label="draft length", **number)
            near = gr.Slider(0, 0.5, ROUND["first"], step=0.01, label="draft's TV at position 1", **number)
            far = gr.Slider(0, 0.5, ROUND["last"], step=0.01, label="draft's TV at the last", **number)
        with gr.Column(scale=9, min_width=340):
            gr.HTML("<h2>How far does a draft get, and what does it cost?</h2>", apply_default_css=False)
            profile = gr.HTML(first[0], apply_default_css=False)
        with gr.Column(scale=9, min_width=340):
            gr.HTML("<h2>Same accept length: which schedule costs least?</h2>", apply_default_css=False)
            contest = gr.HTML(first[1], apply_default_css=False)
    controls = [shape, length, delta, nu, mu_auto, mu, clamp, near, far]
    gr.on([control.change for control in controls], speaking(unroll), controls, [profile, contest], **LIVE)
    mu_auto.change(lambda auto: gr.update(visible=auto is False), mu_auto, mu, **LIVE)


def draw_trials(rows: gr.HTML) -> None:
    """Do 10,000 rounds look like p?"""
    *_, first = roll(preset(FIRST_PRESET), None, *astuple(Knobs()))
    choice, counted = gr.State("lossless"), gr.State(first[1])
    gr.HTML("<h2>Do 10,000 rounds look like the target?</h2>", apply_default_css=False)
    with gr.Row():
        with gr.Column(scale=5, min_width=300):
            pressed = []
            gr.HTML("<p class='lab-note'>Correct rules</p>", apply_default_css=False)
            with gr.Row(elem_classes="lab-buttons"):
                pressed += [(name, gr.Button(title, size="sm")) for name, title in CORRECT.items()]
            gr.HTML("<p class='lab-note'>Famous wrong rules</p>", apply_default_css=False)
            with gr.Row(elem_classes="lab-buttons"):
                pressed += [(name, gr.Button(mistake.title, size="sm", elem_classes="lab-wrong")) for name, mistake in MISTAKES.items()]
            omega = gr.Slider(0, 8, Knobs.omega, step=0.05, label="ω (relaxed, and vanilla residual)", buttons=[])
            lantern = LanternKnobs()
            moved = _presets(rows)
            more = gr.Button("10,000 rounds more", variant="primary")
        with gr.Column(scale=8, min_width=340):
            histogram = gr.HTML(first[0], apply_default_css=False)
    for knob in (omega, *lantern.knobs):
        knob.preprocess = lambda value: value  # as LIVE; an event with a State cannot do without preprocessing as a whole
    lane = {**PRIVATE, "concurrency_id": "laboratory", "concurrency_limit": 8}
    inputs, outputs = [rows, counted, choice, omega, *lantern.knobs], [histogram, counted]
    for name, button in pressed:
        start = speaking(lambda omega, name=name: (name, omega_for(name, omega), None, *LanternKnobs.fit(name)))
        chosen = button.click(start, omega, [choice, omega, counted, *lantern.fitted], **lane)
        chosen.success(roll_live, inputs, outputs, **lane)
    gr.on([more.click, omega.release, *lantern.settled], roll_live, inputs, outputs, **lane)
    for event in moved:
        event.success(roll_live, inputs, outputs, **lane)
