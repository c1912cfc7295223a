"""A file of runs on its way in: a single run, or the lanes of a comparison as the page exports and `record` stores them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from . import checks, scene
from .methods import METHODS
from .scene import LANES, Patches, Scene
from .trace import SCHEMA, Run

MOST_BYTES = 16 * 2**20  # of a file; a recorded comparison with heads has about one megabyte
MOST_PIXELS = 2**24  # of a picture beside it
_COMPARISON = checks.record(
    {"schema": lambda value, _: value, "reference": lambda value, _: value, "relaxed": lambda value, _: value},
    optional={
        "plain": lambda value, _: value,
        "ar_token_seconds": checks.maybe(checks.real(0.0, 1e6)),
        "scene": checks.maybe(scene.read),
        "patches": checks.record({}, optional=dict.fromkeys(LANES, scene.read_patches)),
    },
)


@dataclass(frozen=True)
class Bundle:
    """The runs of a file by lane, in the order they are shown; a single run is the lane "run"."""

    lanes: dict[str, Run]
    ar_token_seconds: float | None = None  # of a plain AR step, where it was measured beside them
    scene: Scene | None = None
    patches: dict[str, Patches] = field(default_factory=dict)  # by lane


def read(source: str | bytes | Path, methods: Collection[str] = METHODS) -> Bundle:
    """The runs in JSON text, or in a file where its path is given as a Path; pictures that lie beside the file are taken in.

    Raises:
        ValueError: no JSON, no run and no comparison, or a value that no run has; one line that says which.
        OSError: the file cannot be read.
    """
    if isinstance(source, Path) and source.stat().st_size > MOST_BYTES:
        raise checks.Unreadable(f"{source.name} is larger than {MOST_BYTES // 2**20} MB: it holds no run.")
    data = checks.parse(source.read_bytes() if isinstance(source, Path) else source)
    bundle = from_plain(data, methods)
    if isinstance(source, Path):
        _add_pictures(bundle, source)
    return bundle


def from_plain(data: Any, methods: Collection[str] = METHODS) -> Bundle:
    """As `read`, from parsed JSON."""
    if not isinstance(data, dict) or not {"rounds", "reference"} & set(data):
        raise checks.Unreadable("This is no run: it has neither rounds nor lanes. Give a JSON file that the page or `--json` wrote.")
    if "rounds" in data:
        return Bundle({"run": Run.from_dict(data, methods)})
    values, lanes = _COMPARISON(data, ""), {}
    for lane in LANES:
        if values.get(lane) is not None:
            try:
                lanes[lane] = Run.from_dict(values[lane], methods)
            except checks.Unreadable as error:
                raise checks.Unreadable(f"{lane}: {error}") from None
    if len({run.grid for run in lanes.values()}) > 1:
        raise checks.Unreadable("The lanes have pictures of different sizes; they cannot stand beside each other.")
    return Bundle(lanes, values.get("ar_token_seconds"), values.get("scene"), values.get("patches", {}))


def to_plain(bundle: Bundle) -> dict[str, Any]:
    """Plain values of a comparison, as `from_plain` reads them."""
    runs = {lane: run.to_dict() for lane, run in bundle.lanes.items()}
    words = {"scene": bundle.scene.to_dict()} if bundle.scene else {}
    if bundle.patches:
        words["patches"] = bundle.patches
    return {"schema": SCHEMA, **words, **runs, "ar_token_seconds": bundle.ar_token_seconds}


def _add_pictures(bundle: Bundle, path: Path) -> None:
    """The pictures beside a file: NAME-LANE.png of a comparison, NAME.png of a run."""
    for lane, run in bundle.lanes.items():
        picture = path.with_suffix(".png") if lane == "run" else path.with_name(f"{path.stem}-{lane}.png")
        if picture.exists():
            with Image.open(picture) as image:
                if image.width * image.height <= MOST_PIXELS:
                    run.image = image.convert("RGBA" if image.mode == "RGBA" else "RGB")
