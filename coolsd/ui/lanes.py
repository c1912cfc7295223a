"""The lanes and what they say: a lane's words and bars, and the speedups between them. Plain values for the browser to show."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

from PIL import Image

from ..decoding import run_of
from ..exports import Comparison, data_uri, file_stem, png
from ..methods import METHODS, Method, omega, shape
from ..race import Speedup, speedup
from ..scene import Patches
from ..settings import SETTINGS, Settings
from ..show.account import to_csv
from ..trace import Round, Run, Stats, plain, statistics, to_text
from ..trees import chain, depth
from .templates import READOUT

BADGES = {
    "empty": "",
    "waiting": "next",
    "running": "decoding",
    "done": "",
    "stopped": "stopped",
    "failed": "failed",
    "recorded": "recorded",
}
KEYS = ("reference", "relaxed", "ar")  # of the lanes in what the browser is sent
OWN_RESIDUAL = ("lantern", "lantern++")  # methods whose meter is a lower bound: their residual is not the best for their rule
ENDED = {"done", "recorded"}
BUSY = "busy computer: seconds uncertain"
BLANK = dict.fromkeys(("subject", "against", "calls", "ar_calls", "how", "ar_how", "interval", "ar_interval", "busy"), "") | {
    "reference": "–",
    "ar": "–",
    "state": "none",
}
ENOUGH = 8  # rounds of each lane from which on a speedup is more than the luck of its first tokens


@dataclass
class Lane:
    """One decode as far as it has come. picture: data URI; image: PIL, at the end; texts: the rounds as JSON, as far as they were
    sent; patches: what rival codes would paint, where the recording has them."""

    settings: Settings
    grid: tuple[int, int]
    state: str = "waiting"
    rounds: list[Round] = field(default_factory=list)
    picture: str = ""
    image: Image.Image | None = None
    id: str = field(default_factory=lambda: token_hex(4))
    texts: list[str] = field(default_factory=list)
    patches: Patches = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The lane's entry of METHODS."""
        return METHODS[self.settings.method]

    @property
    def title(self) -> str:
        """The method's title, with what sets its ω: δ, and ν where it is not the paper's; or that ω was set by hand."""
        own, usual = self.settings, SETTINGS["nu"].default
        if "omega" in self.method.uses and own.omega != SETTINGS["omega"].default:
            return f"{self.method.title}, ω by hand"
        if "delta" not in self.method.uses:
            return self.method.title
        annealed = f" ν={own.nu:g}" if "nu" in self.method.uses and own.nu != usual else ""
        return f"{self.method.title} δ={own.delta:g}{annealed}"

    @property
    def tokens(self) -> list[int]:
        """Emitted codes so far, row-major."""
        return [t for r in self.rounds for t in r.tokens]

    def run(self, target: str, environment: dict[str, Any]) -> Run:
        """The lane as a Run."""
        return replace(run_of(self.settings, self.rounds, target, self.grid, environment), image=self.image)


def from_run(run: Run, patches: Patches | None = None) -> Lane:
    """A recorded run as a lane."""
    lane = Lane(run.settings, run.grid, "recorded", run.rounds, image=run.image)
    lane.picture = data_uri(png(run.image, run), "image/png") if run.image is not None else ""
    lane.patches = patches or {}
    return lane


def show_partial(lane: Lane, webp: bytes) -> None:
    """Put a preview into the lane."""
    lane.picture = data_uri(webp, "image/webp")
    lane.image = Image.open(io.BytesIO(webp))


def finish(lane: Lane, image: Image.Image | None, target: str, environment: dict[str, Any], state: str = "done") -> None:
    """The lane's last token is out: the picture in full quality, with its settings inside; None: there is none yet."""
    lane.state, lane.image = state, image
    lane.picture = data_uri(png(image, lane.run(target, environment)), "image/png") if image is not None else ""


def number(value: float) -> str:
    """Two digits that matter: 0, 0.09, 2.46, 31, 104."""
    if value == 0:
        return "0"
    if value < 0.005:
        return "< 0.01"
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(ratio: float | None) -> str:
    """A speedup; below 1 it stays below 1."""
    return "–" if ratio is None else f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def readout(lane: Lane, stats: Stats) -> dict[str, str]:
    """The readout of a lane."""
    if not lane.rounds:
        return dict.fromkeys(READOUT, "–")
    return {
        "seconds": f"{number(stats.seconds)} s",
        "calls": str(stats.target_calls),
        "length": f"{stats.accept_length:.2f}",
        "tokens": f"{stats.tokens} / {lane.grid[0] * lane.grid[1]}",
        "drafts": str(stats.draft_calls),
        "bias": "0" if lane.method.lossless else number(stats.bias_per_token),
    }


def view(lanes: list[Lane], target: str) -> dict[str, Any]:
    """What the browser draws of the lanes, see assets/lanes.js: the rounds, from which it takes all figures, and what is not in them."""
    return {"lanes": [_lane_data(lane, target, place) for place, lane in enumerate(lanes)]}


def _lane_data(lane: Lane, target: str, place: int) -> dict[str, Any]:
    lane.texts += [to_text(plain(event)) for event in lane.rounds[len(lane.texts) :]]
    count = sum(len(event.tokens) for event in lane.rounds)
    return {
        "key": KEYS[place],
        "run": lane.id,
        "target": target,
        "title": lane.title,
        "about": lane.method.about,
        "state": lane.state,
        "badge": BADGES[lane.state],
        "picture": lane.picture,
        "alt": f"{lane.settings.prompt}, drawn by {lane.title}; {lane.state}, {count} tokens",
        "file": f"{file_stem(lane.run('', {}))}.png" if lane.image is not None else "",
        "grid": list(lane.grid),
        "omega": omega(lane.settings).tolist(),
        "drafts": lane.method.schedule is not None,
        "rows": lane.method.schedule is not None and not lane.method.jacobi,
        "relaxed": KEYS[place] == "relaxed",
        "thin": KEYS[place] == "ar",
        "bias": {"exact": lane.method.lossless, "note": bias_note(lane.settings)},
        "patches": lane.patches,
        "rounds": list(lane.texts),  # a copy: what was sent before is compared with it
    }


def bias_note(settings: Settings) -> str:
    """What the bias of a run is: exact, or a bound, and on which side."""
    method = METHODS[settings.method]
    if method.lossless:
        return "exact"
    if method.name in OWN_RESIDUAL:
        return "a token, or more"
    if "siblings" in method.uses and settings.siblings == "every" and not _is_chain(settings):
        return "a token, or less"
    return "a token"


def _is_chain(settings: Settings) -> bool:
    drafted = shape(settings)
    return drafted == chain(depth(drafted))


def ar_seconds(lane: Lane, stats: Stats, token_seconds: float) -> float:
    """What plain AR would take for the lane's tokens: the lane's prefill, then one measured step a token."""
    return lane.rounds[0].seconds + token_seconds * (stats.tokens - 1)


def headline(lanes: list[Lane], statuses: list[Stats], token_seconds: float | None) -> dict[str, Any]:
    """The numbers people came for, target calls first; of an unfinished run only once both lanes have come ENOUGH rounds far.

    Ratios of tokens per second and of tokens per call, so that they hold for unfinished lanes too. Until there are new ones, `keep` tells
    the browser to leave the last ones, and `state` that they are old.
    """
    reference, relaxed, *plain = lanes
    ended = relaxed.state in ENDED
    if not (ended and relaxed.rounds) and min(len(reference.rounds), len(relaxed.rounds)) < ENOUGH:
        return {"keep": True, "state": "old"} if relaxed.state in ("waiting", "running") else BLANK
    ratio = speedup(reference.rounds, relaxed.rounds)
    if ratio is None:
        return BLANK
    when = {"recorded": "recorded", "done": "measured just now"}.get(relaxed.state, "so far")
    fields = BLANK | {"state": "now", "subject": relaxed.title, "against": reference.title, "how": f", {when}"}
    fields["calls"] = times(statuses[1].accept_length / statuses[0].accept_length)
    fields["ar_calls"] = times(statuses[1].accept_length)
    fields |= {"reference": times(ratio.value), "interval": interval(ratio), "busy": BUSY if ratio.busy else ""}
    against_ar = speedup(plain[0].rounds, relaxed.rounds) if plain and len(plain[0].rounds) >= ENOUGH else None
    if reference.method.schedule is None:
        against_ar = ratio
    if against_ar:
        fields |= {"ar": times(against_ar.value), "ar_interval": interval(against_ar), "ar_how": fields["how"]}
    elif token_seconds:
        fields["ar"] = times(ar_seconds(relaxed, statuses[1], token_seconds) / statuses[1].seconds)
        fields["ar_how"] = f", estimated ({token_seconds * 1000:.3g} ms a token)"
    return fields


def interval(ratio: Speedup) -> str:
    """The ends of a ratio's interval, in words of the page."""
    return f"{ratio.low:.2f}–{ratio.high:.2f}"


def bundle(lanes: list[Lane], target: str, environment: dict[str, Any], token_seconds: float | None) -> dict[str, str]:
    """All runs as downloads: JSON, and their rounds as CSV."""
    runs = [lane.run(target, environment) for lane in lanes]
    comparison = Comparison(*runs[:2], token_seconds, *runs[2:])
    return downloads(comparison.relaxed, to_text(comparison.to_dict()), comparison.bundle().lanes)


def single(run: Run) -> dict[str, str]:
    """One run as downloads: JSON, and its rounds as CSV."""
    return downloads(run, run.to_json(), {"run": run})


def downloads(named: Run, text: str, runs: Mapping[str, Run]) -> dict[str, str]:
    """Files by name and content: `name` and `text` are the JSON, `table_name` and `table` the rounds as CSV; named after one of them."""
    stem = file_stem(named)
    return {"name": f"{stem}.json", "text": text, "table_name": f"{stem}.csv", "table": to_csv(runs)}


def stats_of(lanes: list[Lane]) -> list[Stats]:
    """Statistics of the lanes as they stand."""
    return [statistics(lane.rounds) for lane in lanes]
