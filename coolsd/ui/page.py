"""The page: layout and events. What is shown is made in lanes, figures and compare; this module only places it and passes it on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from .. import exports
from ..settings import SettingsError
from . import api, lanes, templates
from .compare import View, compare, describe, snapshot
from .controls import CONTROLS, DEFAULTS, RANGES, from_query, read
from .engine import Engine, Loader, default_engine
from .text import EXAMPLES, TARGETS, about

QUEUE = 20  # people who may wait for the model
PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}
NAMES = str(list(CONTROLS))
FULL = "Too many people are waiting. Press Generate again in a minute."
WAITING = "Waiting for your turn: one run at a time."


def build(engine: Engine | None = None, recorded: Path = exports.RECORDED) -> gr.Blocks:
    """The whole page.

    Args:
        engine: what decodes; None takes the project's own.
        recorded: folder with the comparison shown before anything is pressed; nothing is shown when it holds none.
    """
    engine = engine or default_engine()
    loader = Loader(engine.load)
    plotly_js = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    gr.set_static_paths([plotly_js])
    with gr.Blocks(title="COOL-SD", fill_width=True, analytics_enabled=False, delete_cache=(600, 1800)) as demo:
        page = Page(engine, loader, f'<script src="gradio_api/file={plotly_js.as_posix()}"></script>')
        page.draw(recorded)
        page.connect(demo)
        api.publish(demo, engine, loader)
    demo.queue(max_size=QUEUE, default_concurrency_limit=1)
    demo.loader = loader
    return demo


def launch_options() -> dict[str, Any]:
    """What `launch` needs besides an address: looks, and nothing that leaves the host."""
    fonts = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="zinc", font=fonts, font_mono=mono, spacing_size="sm", radius_size="sm")
    return {
        "theme": theme,
        # Not as `css`, which gradio rewrites selector by selector, the root's too.
        "head": f"<style>{templates.asset('page.css')}</style><script>{templates.asset('page.js')}</script>",
        "footer_links": ["api"],
        "enable_monitoring": False,
        "run_history": False,
        "show_error": True,  # else a caller with the wrong number of values is told "null"
        "max_file_size": "1mb",
    }


class Page:
    """Components by name while the page is built; holds nothing of any run."""

    def __init__(self, engine: Engine, loader: Loader, plotly_tag: str):
        self.engine = engine
        self.loader = loader
        self.plotly_tag = plotly_tag
        self.controls: dict[str, Any] = {}

    # --- layout ---------------------------------------------------------------------------------------------------------------

    def draw(self, recorded: Path) -> None:
        """Place everything, with the recorded comparison in it."""
        first = self.first_view(recorded)
        with gr.Row(elem_id="header"):
            gr.HTML(templates.header(), elem_id="title")
            self.pair = self.bound(templates.line(), {"status": "starting", "tone": "loading"}, elem_id="pair", min_width=140)
            targets = [(card.title + (f" (needs {card.needs})" if card.needs else ""), name) for name, card in TARGETS.items()]
            self.controls["target"] = gr.Dropdown(
                targets, value="meadow", label="Target", show_label=False, container=False, min_width=230, elem_id="target"
            )
            theme = gr.Button("Light / dark", size="sm", scale=0, min_width=110)
            theme.click(None, js="() => coolsd.toggleTheme()", **PRIVATE)
        with gr.Tabs():
            with gr.Tab("Generate", id="generate"):
                self.draw_generate(first)
            with gr.Tab("About the method", id="about"):
                maths = [{"left": mark, "right": mark, "display": mark == "$$"} for mark in ("$$", "$")]
                gr.Markdown(about(), elem_classes="about", latex_delimiters=maths)

    def draw_generate(self, first: View) -> None:
        """The Generate tab."""
        with gr.Row(elem_id="ask"):
            bare = {"show_label": False, "container": False, "placeholder": "What should be drawn?"}
            self.controls["prompt"] = gr.Textbox(DEFAULTS["prompt"], label="Prompt", scale=8, max_lines=2, **bare)
            self.generate = gr.Button("Generate", variant="primary", scale=1)
            self.stop = gr.Button("Stop", variant="stop", scale=1, interactive=False)
        with gr.Row(elem_id="examples"):
            for example in EXAMPLES:
                gr.Button(example, size="sm").click(None, outputs=self.controls["prompt"], js=f"() => {example!r}", **PRIVATE)
            self.status = self.bound(templates.line(), {"status": first.status, "tone": first.tone}, elem_id="status")
        with gr.Row():
            with gr.Column(scale=11, min_width=460):
                self.lanes = self.bound(templates.lanes(), first.lanes)
                with gr.Row(elem_classes="downloads"):
                    self.export = self.bound(templates.exports(), first.export, min_width=120)
                    self.copy = gr.Button("Copy link", size="sm", scale=0, min_width=110)
            with gr.Column(scale=9, min_width=460):
                self.answer = self.bound(templates.answer(), first.headline)
                self.chart = gr.HTML(
                    first.chart,
                    html_template=templates.curve(),
                    js_on_load="coolsd.chart(element, props, watch)",
                    head=self.plotly_tag,
                    apply_default_css=False,
                    uses={name: list(method.uses) for name, method in self.engine.methods.items()},
                )
                self.draw_schedule()
        with gr.Accordion("Compare the two pictures", open=False) as self.comparing:
            self.slider = gr.ImageSlider(
                first.images, type="pil", format="png", label="Reference and relaxed", show_label=False, interactive=False, max_height=512
            )
        self.draw_more()

    def draw_schedule(self) -> None:
        """The knobs of ω."""
        with gr.Row(elem_id="schedule"):
            self.number("delta", "δ relaxation")
            self.number("nu", "ν annealing")
            self.number("draft_length", "L draft length")
        with gr.Row(elem_id="schedule2"):
            self.controls["mu_auto"] = gr.Checkbox(True, label="μ auto (mean ω = δ)", min_width=100)
            self.number("mu", "μ", visible=False)
            self.controls["clamp"] = gr.Checkbox(False, label="clamp (ω ≥ 1)", min_width=100)

    def draw_more(self) -> None:
        """What most people leave alone."""
        with gr.Accordion("Sampling and seed", open=False):
            with gr.Row():
                self.number("temperature", "Temperature")
                self.number("top_k", "Top-k (0: off)")
                self.number("top_p", "Top-p (1: off)")
                self.number("cfg_scale", "Guidance scale")
            with gr.Row():
                low, high, _ = RANGES["seed"]
                self.controls["seed"] = gr.Number(DEFAULTS["seed"], label="Seed", precision=0, minimum=low, maximum=high)
                dice = gr.Button("Roll the dice for a seed", size="sm", scale=0, min_width=180)
                dice.click(None, outputs=self.controls["seed"], js="() => Math.floor(Math.random() * 2 ** 32)", **PRIVATE)
        with gr.Accordion("Compare other methods", open=False), gr.Row():
            choices = [(method.title, name) for name, method in self.engine.methods.items()]
            self.controls["reference"] = gr.Dropdown(choices, value=DEFAULTS["reference"], label="Reference lane (left)")
            self.controls["method"] = gr.Dropdown(choices, value=DEFAULTS["method"], label="Relaxed lane (right)")

    def number(self, name: str, label: str, **more: Any) -> None:
        """A slider over a setting's range."""
        low, high, step = RANGES[name]
        self.controls[name] = gr.Slider(low, high, DEFAULTS[name], step=step, label=label, min_width=90, buttons=[], **more)

    def bound(self, template: str, value: Any, **more: Any) -> gr.HTML:
        """A fixed template that the browser fills from `value`."""
        return gr.HTML(value, html_template=template, js_on_load="coolsd.bind(element, props, watch)", apply_default_css=False, **more)

    def first_view(self, folder: Path) -> View:
        """The recorded comparison, or empty lanes that say what to do."""
        comparison = exports.recorded(folder)
        if comparison is None:
            ask = read({**DEFAULTS}, self.engine.methods)
            empty = [lanes.Lane(s, (16, 16), "empty") for s in (ask.reference, ask.relaxed)]
            return snapshot(empty, "Type a prompt and press Generate. Move δ and watch ω.", None, tone="")
        pair_of_lanes = [lanes.from_run(comparison.reference), lanes.from_run(comparison.relaxed)]
        run = comparison.relaxed
        return snapshot(
            pair_of_lanes,
            f"Recorded on {describe(run.environment)}. Press Generate to decode one here.",
            comparison.ar_token_seconds,
            tone="",
            images=tuple(lane.image for lane in pair_of_lanes) if run.image is not None else None,
            export=lanes.bundle(pair_of_lanes, run.target, run.environment, comparison.ar_token_seconds),
        )

    # --- events ---------------------------------------------------------------------------------------------------------------

    def connect(self, demo: gr.Blocks) -> None:
        """Wire the controls to what they do. Every event is private: the public endpoint is `generate`."""
        inputs = [self.controls[name] for name in CONTROLS]
        buttons = [self.generate, self.stop, self.status]
        busy = self.busy = gr.State(False)
        link = f"(...values) => coolsd.link({NAMES}, values)"
        pressed = [self.generate.click, self.controls["prompt"].submit]
        start = gr.on(pressed, self.prepare, [busy, *inputs], [busy, *buttons], concurrency_limit=None, **PRIVATE)
        shown = [busy, *buttons, self.lanes, self.chart, self.answer, self.slider, self.export]
        run = start.success(self.run, inputs, shown, concurrency_id="model", concurrency_limit=1, **PRIVATE)
        start.failure(self.refused, [busy, *inputs], self.status, queue=False, **PRIVATE)
        run.failure(self.freed, self.status, [busy, *buttons], queue=False, **PRIVATE)
        start.success(None, inputs, None, js=link, **PRIVATE)
        self.stop.click(None, None, self.status, js="() => ({ status: 'Stopping.', tone: 'busy' })", **PRIVATE)
        self.stop.click(self.stopped, self.lanes, [busy, *buttons, self.lanes], cancels=[run], queue=False, **PRIVATE)
        self.copy.click(None, inputs, self.status, js=f"(...values) => coolsd.copyLink({NAMES}, values)", **PRIVATE)
        self.controls["mu_auto"].change(
            lambda auto: gr.update(visible=auto is False), self.controls["mu_auto"], self.controls["mu"], queue=False, **PRIVATE
        )
        follow = f"(...values) => coolsd.controls({NAMES}, values)"
        moved = [self.controls[n].change for n in ("delta", "nu", "mu", "mu_auto", "clamp", "draft_length", "method")]
        gr.on([*moved, demo.load], None, inputs, None, js=follow, **PRIVATE)
        demo.load(self.restore, None, [*inputs, self.status], queue=False, **PRIVATE)
        demo.load(self.watch_pair, None, self.pair, concurrency_limit=None, **PRIVATE)

    def prepare(self, busy: bool, *values: Any) -> tuple[Any, ...]:
        """Refuse bad input before the queue; else lock the button and say what is awaited."""
        if busy is True:
            raise gr.Error("A run of yours is on its way. Stop it first, or wait for it.", title="Already running", print_exception=False)
        self.ask(values)
        return True, gr.update(interactive=False), gr.update(interactive=True), say(WAITING)

    def ask(self, values: tuple[Any, ...]) -> Any:
        """The validated request behind control values."""
        try:
            return read(dict(zip(CONTROLS, values, strict=True)), self.engine.methods)
        except SettingsError as error:
            raise gr.Error(str(error), title="Please change one thing", print_exception=False) from None

    def run(self, *values: Any) -> Iterator[dict[Any, Any]]:
        """Decode both lanes and show them as they come."""
        for view in compare(self.engine, self.loader, self.ask(values)):
            yield self.changes(view)

    def changes(self, view: View) -> dict[Any, Any]:
        """The components a view touches."""
        out: dict[Any, Any] = {self.status: {"status": view.status, "tone": view.tone}}
        parts = ((self.lanes, view.lanes), (self.chart, view.chart), (self.answer, view.headline), (self.slider, view.images))
        out |= {component: value for component, value in parts if value is not None}
        if view.ended:
            out |= {self.busy: False, self.generate: gr.update(interactive=True), self.stop: gr.update(interactive=False)}
        if view.export:
            out[self.export] = view.export
        return out

    def refused(self, busy: bool, *values: Any) -> Any:
        """Why `prepare` refused, in the status line, where it stays after the pop-up is gone."""
        try:
            read(dict(zip(CONTROLS, values, strict=True)), self.engine.methods)
        except SettingsError as error:
            return say(str(error), "bad")
        return gr.skip() if busy is True else say(FULL, "bad")

    def freed(self, status: Any) -> tuple[Any, ...]:
        """The run ended without its last view: it was cancelled, or the queue was full. Free the button; say so where it never began."""
        waiting = isinstance(status, dict) and status.get("status") == WAITING
        told = say(FULL, "bad") if waiting else gr.skip()
        return False, gr.update(interactive=True), gr.update(interactive=False), told

    def stopped(self, shown: Any) -> tuple[Any, ...]:
        """After Stop: the pictures stay, and the lanes no longer claim to run."""
        ends = {"running": "stopped", "waiting": "empty"}
        shown = dict(shown) if isinstance(shown, dict) else {}
        for key in "ab":
            state = ends.get(shown.get(f"{key}.state"), shown.get(f"{key}.state", "empty"))
            shown |= {f"{key}.state": state, f"{key}.badge": lanes.BADGES.get(state, "")}
        message = "Stopped. What was decoded stays; press Generate to start again."
        return False, gr.update(interactive=True), gr.update(interactive=False), say(message, ""), shown

    def restore(self, request: gr.Request) -> list[Any]:
        """Set the controls a link asks for; say which of its values were not usable."""
        values, notices = from_query(dict(request.query_params), self.engine.methods)
        updates = [gr.update(value=values[name]) if name in values else gr.skip() for name in CONTROLS]
        if notices:
            return [*updates, say(f"The link was not used in full: {'; '.join(notices)}. The usual values stand there instead.", "bad")]
        return [*updates, gr.skip()]

    def watch_pair(self) -> Iterator[dict[str, str]]:
        """Say how far the embedded pair's loading is, until it has ended."""
        name = DEFAULTS["target"]
        loading = self.loader.start(name)
        if not loading.done.is_set():
            yield {"status": f"{name} is loading", "tone": "loading"}
        loading.done.wait()
        if loading.error:
            yield {"status": f"{name} could not be loaded; press Generate for why", "tone": "failed"}
        else:
            yield {"status": f"{name} is ready on {describe(loading.pair.environment)}", "tone": "ready"}


def say(status: str, tone: str = "busy") -> dict[str, str]:
    """A value for the status line."""
    return {"status": status, "tone": tone}
