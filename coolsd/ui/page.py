"""The page: layout and events. What is shown is made in lanes, figures and compare; this module only places it and passes it on."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from .. import exports
from ..settings import SETTINGS, Setting, SettingsError
from . import api, evidence_tab, figures, lanes, patches, templates
from .backend import DEFAULT_TARGET, Backend, Loader, default_backend
from .compare import COMPLETE, Board, View, compare, describe
from .compression import CompressedPage
from .controls import CONTROLS, DEFAULTS, METHOD_SETTINGS, Request, Value, from_query, listening, matters, read, span
from .gate import Calls, Gate, Listeners, RunStop, Until, guard
from .laboratory import tab
from .open_file import opened, view_of
from .shared_link import SharedLink
from .targets import FOLLOWING, TargetPicker, Update
from .text import CHANGE, DEFINITIONS, EXAMPLES, NAME, RUNNING, TOKEN_KINDS, about
from .zerogpu import Door

EVENTS = 100  # that may wait for a thread
NOTICES = 2  # of a bad link that are spelled out
PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}
RAW = {"preprocess": False}  # values as they were sent: `validate` words the refusal, not gradio
BY_HAND = 100_000  # a whole number of a wider range is typed, not slid to
NAMES = str(list(CONTROLS))
Changes = dict[gr.components.Component, Update | str]  # new values of the components that a handler touches
BUSY = "A run of yours is on its way. Stop it first, or wait for it."
LOST = "The server is too busy, or does not answer. Press Generate again in a minute."
LOADED = "The point's settings stand in the controls. Press Generate to draw with them."
STOPPED = "Stopped. Press Generate to start again."
SETTLED = "(shown) => (shown?.tone === 'bad' ? { status: '', tone: '' } : shown)"  # a complaint about the target that was chosen before
STOPPING = "(shown) => (shown?.tone === 'busy' ? { status: 'Stopping.', tone: 'busy' } : shown)"


def build(backend: Backend | None = None, recorded: Path = exports.RECORDED, evidence: evidence_tab.Stored | None = None) -> gr.Blocks:
    """The whole page.

    Args:
        backend: what decodes; None takes the package itself.
        recorded: folder with the comparison shown before anything is pressed; nothing is shown when it holds none.
        evidence: what the tab of that name shows; None takes what ships.
    """
    backend = backend or default_backend()
    loader = Loader(backend.load)
    gr.set_static_paths([templates.ASSETS, exports.PAGE_PICTURE])
    with gr.Blocks(title=NAME, fill_width=True, analytics_enabled=False, delete_cache=(600, 1800)) as demo:
        page = Page(backend, loader)
        page.draw(recorded, evidence or evidence_tab.shipped())
        page.connect(demo)
        api.publish(demo, backend, loader, page.door, page.listeners)
    for function in demo.fns.values():
        if function.fn and function.api_visibility == "private" and not inspect.isgeneratorfunction(function.fn):
            function.fn = guard(function.fn)
    demo.queue(max_size=EVENTS, default_concurrency_limit=1)
    demo.loader, demo.page = loader, page
    return demo


def launch_options(demo: gr.Blocks) -> dict[str, Any]:
    """What `launch` needs besides an address: looks, the gate in front of it, and nothing that leaves the host."""
    inputs = {index: len(function.inputs) for index, function in demo.fns.items()}
    files = {index for index, function in demo.fns.items() if getattr(function.fn, "__name__", "") == "open_file"}
    servers = {(index, function.__name__) for index, block in demo.blocks.items() for function in getattr(block, "server_fns", ())}
    calls = Calls(inputs, (api.NAME, len(SETTINGS)), files, servers)
    gate = Middleware(Gate, listeners=demo.page.listeners, calls=calls)
    middleware = [Middleware(CompressedPage), Middleware(SharedLink), gate]
    fonts = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="zinc", font=fonts, font_mono=mono, spacing_size="sm", radius_size="sm")
    # So dark that everything can be read (4.5 to 1 at least).
    theme.set(
        body_text_color_subdued="#5d5d66",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )
    return {
        "theme": theme,
        "head": templates.head(),  # not as `css`, which gradio rewrites selector by selector, the root's too
        "footer_links": ["api"],
        "enable_monitoring": False,
        "run_history": False,
        "show_error": True,  # else a caller with the wrong number of values is told "null"
        "max_file_size": "1mb",
        "ssr_mode": False,
        "app_kwargs": {"middleware": middleware, "docs_url": None, "redoc_url": None, "openapi_url": None},
    }


class Page:
    """Components by name while the page is built; of the runs it holds nothing but the stop events, by session."""

    def __init__(self, backend: Backend, loader: Loader):
        self.backend = backend
        self.loader = loader
        self.controls: dict[str, gr.components.Component] = {}
        self.active = listening(DEFAULTS, backend.methods)
        self.stops: dict[str, RunStop] = {}
        self.listeners = Listeners()
        self.door = Door(backend, loader)
        self.targets = TargetPicker(backend)

    # --- layout ---------------------------------------------------------------------------------------------------------------

    def draw(self, recorded: Path, evidence: evidence_tab.Stored | None = None) -> None:
        """Place everything, with the recorded comparison and the evidence in it."""
        first = self.first_view(recorded)
        with gr.Row(elem_id="header"):
            gr.HTML(templates.header(), elem_id="title")
            self.pair = self.bound(templates.line(), {"status": "starting", "tone": "loading"}, elem_id="pair", min_width=140)
            self.controls["target"] = self.targets.draw()
            theme = gr.Button("Light / dark", size="sm", scale=0, min_width=110)
            theme.click(None, js=templates.call("toggleTheme"), **PRIVATE)
        self.targets.draw_note()
        with gr.Tabs() as self.tabs:
            with gr.Tab("Generate", id="generate"):
                self.draw_generate(first)
            with gr.Tab("Laboratory", id="laboratory-tab"):
                self.laboratory = tab.draw()
            with gr.Tab("Evidence", id="evidence-tab"):
                self.evidence = evidence_tab.draw(evidence)
            with gr.Tab("About", id="about"):
                maths = [{"left": mark, "right": mark, "display": mark == "$$"} for mark in ("$$", "$")]
                gr.Markdown(about(self.backend.methods), elem_classes="about", latex_delimiters=maths)

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
                self.lanes = self.draw_lanes(first)
                with gr.Row(elem_classes="downloads"):
                    self.export = self.bound(templates.exports(), first.export, min_width=120)
                    self.copy = gr.Button("Copy link", size="sm", scale=0, min_width=110)
                    open_file = templates.on_load("openFile", "(file) => trigger('file', file)")
                    self.opener = gr.HTML(html_template=templates.mount(), js_on_load=open_file, apply_default_css=False, min_width=110)
            with gr.Column(scale=9, min_width=460, elem_id="why"):
                self.answer = self.bound(templates.answer(), first.headline, act="answer")
                gr.HTML(html_template=templates.mount(), js_on_load=templates.on_load("mountCurves"), apply_default_css=False)
                self.draw_schedule()
        self.draw_more()

    def draw_lanes(self, first: View) -> gr.HTML:
        """The lanes with their token maps, the bar over the rounds, and the inspector; drawn by the browser from the runs themselves."""
        return gr.HTML(
            first.lanes,
            html_template=templates.mount(),
            js_on_load=templates.on_load("mountStage", "props", "watch", "(row) => trigger('row', row)", "server"),
            server_functions=[patches.server(self.backend, self.loader)],
            apply_default_css=False,
            elem_id="stage",
            shapes=figures.shapes(self.backend.methods),
            definitions={name: list(DEFINITIONS[name]) for name in templates.READOUT},
            kinds={name: list(words) for name, words in TOKEN_KINDS.items()},
        )

    def draw_schedule(self) -> None:
        """The knobs of ω: numbers above, switches with μ below."""
        schedule = [s for s in SETTINGS.values() if s.group == "schedule"]
        with gr.Row(elem_id="schedule"):
            for setting in schedule:
                if setting.kind not in ("flag", "row") and not setting.optional:
                    self.draw_setting(setting)
        with gr.Row(elem_id="schedule2"):
            self.controls["mu_auto"] = gr.Checkbox(True, label="μ auto (mean ω = δ)", min_width=100)
            for setting in schedule:
                if setting.kind in ("flag", "row") or setting.optional:
                    self.draw_setting(setting)

    def draw_more(self) -> None:
        """What most people leave alone."""
        with gr.Accordion("Methods and their settings", open=False):
            choices = [(method.title, name) for name, method in self.backend.methods.items()]
            with gr.Row():
                self.controls["reference"] = gr.Dropdown(choices, value=DEFAULTS["reference"], label="Reference lane (left)")
                self.controls["method"] = gr.Dropdown(choices, value=DEFAULTS["method"], label="Relaxed lane (right)")
                self.controls["plain"] = gr.Checkbox(DEFAULTS["plain"], label="Plain AR too", min_width=120)
            with gr.Row():
                for setting in SETTINGS.values():
                    if setting.group == "rule":
                        self.draw_setting(setting)
        with gr.Accordion("Sampling and seed", open=False):
            with gr.Row():
                for setting in SETTINGS.values():
                    if setting.group == "sampling":
                        self.draw_setting(setting)
            dice = gr.Button("Roll the dice for a seed", size="sm", scale=0, min_width=180)
            dice.click(None, outputs=self.controls["seed"], js="() => Math.floor(Math.random() * 2 ** 32)", **PRIVATE)

    def draw_setting(self, s: Setting) -> None:
        """The control of a row of the table; hidden while neither method uses it."""
        more = {"value": DEFAULTS[s.name], "label": s.label, "visible": s.name in self.active or s.name not in METHOD_SETTINGS}
        if s.kind == "flag":
            control = gr.Checkbox(min_width=100, **more)
        elif s.kind == "choice":
            control = gr.Radio(list(s.choices), min_width=200, **more)
        elif s.kind == "row":
            control = gr.Textbox(max_lines=1, min_width=150, elem_id=f"row-{s.name}", **more)
        elif s.kind == "tree":
            control = gr.Dropdown(list(s.choices), allow_custom_value=True, min_width=220, **more)
        elif (s.kind == "integer" and s.slider[1] > BY_HAND) or s.name == "neighbours":
            lowest = 0 if s.optional else s.slider[0]
            control = gr.Number(precision=0, minimum=lowest, maximum=s.slider[1], min_width=160, **more)
        else:
            low, high, step = s.slider
            control = gr.Slider(low, high, step=step, min_width=90, buttons=[], **more)
        self.controls[s.name] = control

    def bound(self, template: str, value: Update, act: str = "bind", **more: str | int) -> gr.HTML:
        """A fixed template that the browser fills from `value`."""
        return gr.HTML(value, html_template=template, js_on_load=templates.on_load(act, "props", "watch"), apply_default_css=False, **more)

    def first_view(self, folder: Path) -> View:
        """The recorded comparison, or empty lanes that say what to do."""
        comparison = exports.recorded(folder)
        if comparison is None:
            request = read({**DEFAULTS}, self.backend.methods)
            empty = [lanes.Lane(s, (16, 16), "empty") for s in request.lanes]
            return Board("", empty).view("Type a prompt and press Generate. Move δ and watch ω.", tone="")
        run = comparison.relaxed
        status = f"“{run.settings.prompt}”, recorded on {describe(run.environment)}. Press Generate for yours."
        return view_of(comparison.bundle(), self.backend, status)

    # --- events ---------------------------------------------------------------------------------------------------------------

    def connect(self, demo: gr.Blocks) -> None:
        """Wire the controls to what they do. Every event is private: the public endpoint is `generate`."""
        inputs = [self.controls[name] for name in CONTROLS]
        buttons = [self.generate, self.stop, self.status]
        outputs = [*buttons, self.lanes, self.answer, self.export]
        pressed = [self.generate.click, self.controls["prompt"].submit]
        start = gr.on(pressed, self.prepare, inputs, buttons, concurrency_limit=None, **RAW, **PRIVATE)
        run = start.success(self.run, inputs, outputs, concurrency_limit=None, **RAW, **PRIVATE)
        start.failure(self.refused, inputs, self.status, queue=False, **RAW, **PRIVATE)
        run.failure(self.unlock, None, buttons, queue=False, **PRIVATE)
        start.success(None, inputs, None, js=templates.call("link", NAMES), **PRIVATE)
        self.stop.click(None, self.status, self.status, js=STOPPING, **PRIVATE)
        self.stop.click(self.stop_run, None, buttons, queue=False, **PRIVATE)
        demo.unload(self.leave)
        self.opener.file(self.open_file, None, outputs, concurrency_limit=None, **PRIVATE)
        self.copy.click(None, inputs, self.status, js=templates.call("copyLink", NAMES), **PRIVATE)
        deciding = [self.controls[name].change for name in ("reference", "method", "tree", "mu_auto")]
        gr.on(deciding, self.fit, inputs, [self.controls[name] for name in METHOD_SETTINGS], queue=False, **RAW, **PRIVATE)
        follow = templates.call("controls", NAMES)
        sliders = [self.controls[name].input for name in ("delta", "nu", "mu", "mu_auto", "clamp")]
        gr.on(sliders, None, None, self.controls["omega"], js=f"() => {SETTINGS['omega'].default!r}", **PRIVATE)  # in its place
        moved = [self.controls[name].change for name in ("method", *METHOD_SETTINGS)]
        gr.on([*moved, demo.load], None, inputs, None, js=follow, **PRIVATE)
        demo.load(self.restore, None, [*inputs, self.status], queue=False, **PRIVATE)
        self.lanes.row(self.open_row, None, [self.tabs, *self.laboratory.rows], queue=False, **PRIVATE)
        if self.evidence:
            self.evidence.point(self.load_point, None, [self.tabs, *inputs, self.status], queue=False, **PRIVATE)
        target = self.controls["target"]
        demo.load(self.targets.list_targets, None, target, concurrency_limit=None, **PRIVATE)
        target.change(None, self.status, self.status, js=SETTLED, **PRIVATE)
        target.change(self.targets.explain, target, self.targets.note, queue=False, **RAW, **PRIVATE)
        target.input(self.targets.defaults, target, [self.controls[name] for name in FOLLOWING], queue=False, **RAW, **PRIVATE)
        demo.load(self.watch_pair, None, self.pair, concurrency_limit=None, **PRIVATE)

    def open_file(self, event: gr.EventData, request: gr.Request) -> Iterator[Changes]:
        """The runs of a file in place of those on the page."""
        if request.session_hash in self.stops:
            yield {self.status: say(BUSY, "bad")}
            return
        for view in opened(event._data, self.backend, self.loader, self.door.redraw, api.visitor(request)):
            yield self.changes(view)

    def open_row(self, event: gr.EventData) -> tuple[gr.Tabs | Update, ...]:
        """A row of a run in the laboratory, with the rule and the ω that met it."""
        return gr.Tabs(selected="laboratory-tab"), *tab.carried(event._data)

    def load_point(self, event: gr.EventData) -> list[Update]:
        """The settings of a point of the evidence, to be drawn."""
        values, notices = from_query(
            {name: spelled(value) for name, value in evidence_tab.settings_of(event._data).items()}, self.backend.methods
        )
        updates = [shows(name, values[name]) if name in values else gr.skip() for name in CONTROLS]
        words = say(f"Not all of the point's settings can be used here: {notices[0]}.", "bad") if notices else say(LOADED, "")
        return [gr.Tabs(selected="generate"), *updates, words]

    def prepare(self, request: gr.Request, *values: Value) -> tuple[Update, ...]:
        """Refuse bad input at once; else lock the button, and make the event by which the run can be stopped from now on."""
        waiting = self.stops.get(request.session_hash)
        if waiting and waiting.holds:
            raise gr.Error(BUSY, title=RUNNING, print_exception=False)
        self.validated(values)
        if request.session_hash:
            self.stops[request.session_hash] = RunStop()
        return gr.update(interactive=False), gr.update(interactive=True), say("Starting.")

    def read(self, values: tuple[Value, ...]) -> Request:
        """As `controls.read`, with this machine's targets."""
        named = dict(zip(CONTROLS, values, strict=True))
        return read(named, self.backend.methods, self.backend.statuses_for(named["target"]))

    def validated(self, values: tuple[Value, ...]) -> Request:
        """The validated request behind control values."""
        try:
            return self.read(values)
        except SettingsError as error:
            raise gr.Error(str(error), title=CHANGE, print_exception=False) from None

    def run(self, request: gr.Request, *values: Value) -> Iterator[Changes]:
        """Decode both lanes and show them as they come; the last view is the run's own, so that nothing comes after it."""
        stop = self.stops.get(request.session_hash) or RunStop()
        stop.running = True
        until = Until(stop, lambda: self.listeners.here(request.session_hash))
        conditions = matters(dict(zip(CONTROLS, values, strict=True)), self.backend.methods)
        try:
            if not until.begins():
                return
            for view in compare(self.backend, self.loader, self.validated(values), until, self.door, api.visitor(request)):
                if view.headline and not view.headline.get("keep"):
                    view.headline |= {"conditions": conditions}
                if view.ended:
                    self.stops.pop(request.session_hash, None)
                    if stop.is_set() and view.tone == "good":
                        view.status = COMPLETE
                yield self.changes(view)
        finally:
            if self.stops.get(request.session_hash) is stop:  # and not that of a run begun since the last view
                del self.stops[request.session_hash]

    def changes(self, view: View) -> Changes:
        """The components a view touches."""
        out: Changes = {self.status: {"status": view.status, "tone": view.tone}}
        parts = ((self.lanes, view.lanes), (self.answer, view.headline))
        out |= {component: value for component, value in parts if value is not None}
        if view.ended:
            out |= {self.generate: gr.update(interactive=True), self.stop: gr.update(interactive=False)}
        if view.export is not None:
            out[self.export] = view.export
        return out

    def refused(self, request: gr.Request, *values: Value) -> Update:
        """Why `prepare` refused, in the status line, where it stays after the pop-up is gone."""
        try:
            self.read(values)
        except SettingsError as error:
            return say(str(error), "bad")
        return gr.skip() if request.session_hash in self.stops else say(LOST, "bad")

    def unlock(self, request: gr.Request) -> tuple[Update, ...]:
        """The run ended without its last view: free the button."""
        self.stops.pop(request.session_hash, None)
        return gr.update(interactive=True), gr.update(interactive=False), say(LOST, "bad")

    def stop_run(self, request: gr.Request) -> tuple[Update, ...]:
        """Ask the run to end; its last view says so. Where there is none (the server was restarted), unlock the page."""
        if stop := self.stops.get(request.session_hash):
            stop.set()
            return gr.skip(), gr.skip(), gr.skip()
        return gr.update(interactive=True), gr.update(interactive=False), say(STOPPED, "")

    def leave(self, request: gr.Request) -> None:
        """The visitor closed the page."""
        if stop := self.stops.pop(request.session_hash, None):
            stop.set()

    def fit(self, *values: Value) -> list[Update]:
        """Show the settings that one of the two lanes listens to, and hide the others."""
        active = listening(dict(zip(CONTROLS, values, strict=True)), self.backend.methods)
        return [gr.update(visible=name in active) for name in METHOD_SETTINGS]

    def restore(self, request: gr.Request) -> list[Update]:
        """Set the controls a link asks for; say which of its values were not usable."""
        query = dict(request.query_params)
        values, notices = from_query(query, self.backend.methods, self.backend.statuses_for(query.get("target", DEFAULT_TARGET)))
        updates = [shows(name, values[name]) if name in values else gr.skip() for name in CONTROLS]
        if notices:
            more = f"; and {len(notices) - NOTICES} more" if len(notices) > NOTICES else ""
            named = "; ".join(notice[:120] for notice in notices[:NOTICES])
            return [*updates, say(f"The link was not used in full: {named}{more}. The usual values stand there instead.", "bad")]
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


def spelled(value: Value) -> str:
    """A value as a link spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shows(name: str, value: Value) -> Update:
    """The update that shows a value, on a slider also one outside of its usual range."""
    return gr.update(value=value, **span(name, value))


def say(status: str, tone: str = "busy") -> dict[str, str]:
    """A value for the status line."""
    return {"status": status, "tone": tone}
