"""The choice of a target: the picker, what a target lacks here, and the settings that follow the choice."""

from collections.abc import Mapping

import gradio as gr

from ..models.catalog import TargetStatus
from .backend import DEFAULT_TARGET, EMBEDDED, Backend
from .controls import DEFAULTS, Value
from .text import describe_target

FOLLOWING = ("reference", "method", "plain", "top_k", "cfg_scale")  # controls that are set anew with the target
Update = dict[str, Value]  # of a component, as gradio takes it


def choices(target_statuses: Mapping[str, TargetStatus]) -> list[tuple[str, str]]:
    """Targets for the picker."""
    return [(f"target: {status.title}{' (not here yet)' if status.missing else ''}", name) for name, status in target_statuses.items()]


class TargetPicker:
    """A dropdown in the page's header, and a note under it."""

    def __init__(self, backend: Backend):
        self.backend = backend

    def draw(self) -> gr.Dropdown:
        """The dropdown; with the embedded pair alone, until the page is loaded."""
        bare = {"label": "Target", "show_label": False, "container": False}
        self.dropdown = gr.Dropdown(choices(EMBEDDED), value=DEFAULT_TARGET, min_width=230, elem_id="target", **bare)
        return self.dropdown

    def draw_note(self) -> None:
        """Where the note stands."""
        self.note = gr.Markdown(visible=False, elem_id="offered")

    def list_targets(self) -> Update:
        """The dropdown with all targets, each saying whether it runs here."""
        return gr.update(choices=choices(self.backend.target_statuses()))

    def status_of(self, target: Value) -> TargetStatus | None:
        """The target behind the dropdown's value; None where there is none."""
        return self.backend.statuses_for(target).get(target) if isinstance(target, str) else None

    def explain(self, target: Value) -> Update:
        """What the chosen target lacks here and how to get it, or what to know before it is used."""
        status = self.status_of(target)
        words = describe_target(status) if status else ""
        return gr.update(value=words, visible=bool(words))

    def defaults(self, target: Value) -> list[Update]:
        """The settings a target's authors sampled with, for FOLLOWING; Jacobi drafting in both lanes where it has no drafter."""
        status = self.status_of(target)
        if status is None:
            return [gr.skip()] * len(FOLLOWING)
        values = {name: DEFAULTS[name] for name in FOLLOWING} | status.settings
        if not status.drafts:
            values |= {"reference": "sjd-coupled", "method": "coolsd-jacobi"}
        values["plain"] = target == DEFAULT_TARGET  # a picture in a few seconds; elsewhere it would hold up the others
        return [gr.update(value=values[name]) for name in FOLLOWING]
