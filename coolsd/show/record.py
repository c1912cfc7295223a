"""`python -m coolsd record`: a comparison as a file of its own, for the page and for talks; with words around it, a scene."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from .. import METHODS, stream, validate
from ..decoding import finished
from ..exports import RECORDED, Comparison, data_uri, encoded, load, save
from ..options import Words, chosen_pair, chosen_settings
from ..protocols import Pair
from ..race import interleave
from ..scene import CLOCKS, LANES, MAPS, Patches, Question, Scene, Show
from ..settings import Settings
from ..trace import Run

WARM_STEPS = 32  # tokens of every lane that are decoded unseen first
RIVALS = 12  # codes of a cell that patches are drawn for
AROUND = 1  # cells that a patch shows on each side


@dataclass(frozen=True)
class Recipe:
    """What to record: the settings of each lane by name, how many entries of each row to keep, and in how many cells rivals are drawn."""

    lanes: Mapping[str, Settings]
    heads: int = 8
    patches: int = 24
    scene: Scene | None = None


def recipe_of(comparison: Comparison, heads: int, patches: int) -> Recipe:
    """The recipe that a recorded comparison came from, to record it anew."""
    lanes = {lane: run.settings for lane in LANES if (run := getattr(comparison, lane))}
    return Recipe(lanes, heads, patches, comparison.scene)


def record(pair: Pair, recipe: Recipe) -> Comparison:
    """Decode the lanes on one clock, and plain AR with them for its seconds a token; draw what rivals would paint."""
    lanes = dict(recipe.lanes)
    plain = replace(lanes["reference"], method="ar")
    timed = lanes | {"plain": plain}
    for settings in timed.values():
        list(stream(pair, **{**settings.to_dict(), "max_tokens": WARM_STEPS}))
    rounds = [[] for _ in timed]
    for lane, event in interleave([stream(pair, **settings.to_dict(), inspect=recipe.heads) for settings in timed.values()]):
        if event is not None:
            rounds[lane].append(event)
    runs = {name: finished(pair, settings, events) for (name, settings), events in zip(timed.items(), rounds, strict=True)}
    for run in runs.values():
        run.image = pair.picture(run.tokens)
    seconds = [event.seconds for event in runs["plain"].rounds[2:]]
    first = recipe.scene.show.cell if recipe.scene else None
    rivals = {name: patches(pair, runs[name], cells_of(runs[name], recipe.patches, first)) for name in lanes if recipe.heads}
    return Comparison(**{name: runs[name] for name in lanes}, ar_token_seconds=median(seconds), scene=recipe.scene, patches=rivals)


def cells_of(run: Run, count: int, first: int | None = None) -> list[int]:
    """Cells whose rivals are worth a look: the given one, then those accepted only because relaxed, then recovered ones, then the others;
    of each kind evenly spread over the picture."""
    kinds = [(kind, only) for r in run.rounds for kind, only in zip(r.kinds, r.relaxed, strict=True)]
    groups = [
        [cell for cell, (_, only) in enumerate(kinds) if only],
        [cell for cell, (kind, only) in enumerate(kinds) if kind == "recovered"],
        [cell for cell, (kind, only) in enumerate(kinds) if kind != "recovered" and not only],
    ]
    cells = [] if first is None else [first]
    for group in groups:
        take = min(count - len(cells), len(group))
        cells += [group[i * len(group) // take] for i in range(take)] if take > 0 else []
    return sorted(set(cells))


def patches(pair: Pair, run: Run, cells: list[int]) -> Patches:
    """For each cell and each of its likeliest codes the picture with that code there: the cell and its neighbours."""
    out: Patches = {}
    for event in run.rounds:
        for i, (cell, token) in enumerate(zip(range(event.start, event.start + len(event.tokens)), event.tokens, strict=True)):
            if cell in cells and event.top:
                masses: dict[int, float] = {}
                for code, mass in (entry for head in event.top[i].values() for entry in head):
                    masses[int(code)] = max(mass, masses.get(int(code), 0.0))
                codes = dict.fromkeys([token, *sorted(masses, key=lambda code: -masses[code])][:RIVALS])
                out[str(cell)] = {str(code): _patch(pair, run.tokens, cell, code) for code in codes}
    return out


def _patch(pair: Pair, tokens: list[int], cell: int, code: int) -> str:
    image = pair.picture([*tokens[:cell], code, *tokens[cell + 1 :]])
    return data_uri(encoded(crop(image, cell, tuple(pair.grid)).convert("RGB"), "WEBP", quality=80), "image/webp")


def crop(image: Image.Image, cell: int, grid: tuple[int, int]) -> Image.Image:
    """The cell and its neighbours, moved inwards at the picture's edge so that the patch has the same size everywhere."""
    rows, columns = grid
    side, span = image.width // columns, min(2 * AROUND + 1, rows, columns)
    row, column = divmod(cell, columns)
    y0, x0 = min(max(row - AROUND, 0), rows - span), min(max(column - AROUND, 0), columns - span)
    return image.crop((x0 * side, y0 * side, (x0 + span) * side, (y0 + span) * side))


# ---- the command


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """The command and its own options; those of settings and pair are the caller's to add."""
    command = commands.add_parser("record", help="record a comparison, or a scene of a talk, that the page shows without a model")
    command.add_argument("prompt", nargs="*", action=Words, help="what to draw")
    command.add_argument("--name", help="file name; the page shows the first in alphabetical order")
    command.add_argument("--again", action="store_true", help="record anew what is recorded under --name, or everything in the folder")
    command.add_argument("--folder", type=Path, default=RECORDED, help="default assets/runs")
    command.add_argument("--reference", default="eagle1", choices=list(METHODS))
    command.add_argument("--relaxed", default="coolsd", choices=list(METHODS))
    command.add_argument("--plain", action="store_true", help="keep plain AR as a third lane")
    command.add_argument("--heads", type=int, default=Recipe.heads, help="entries of each row to keep (default %(default)s, 0: none)")
    command.add_argument("--patches", type=int, default=Recipe.patches, help="cells whose rivals are drawn (default %(default)s)")
    words = command.add_argument_group("scene", "words around the comparison, and how it is first shown")
    words.add_argument("--title")
    words.add_argument("--sentence", help="what is to be seen, in one sentence")
    words.add_argument("--question")
    words.add_argument("--choice", action="append", default=[], help="an answer to choose; once for each")
    words.add_argument("--answer", type=int, metavar="N", help="which choice is right, counted from 1")
    words.add_argument("--reveal", default="", help="what is said once a choice was made")
    words.add_argument("--lane", choices=LANES)
    words.add_argument("--map", choices=MAPS)
    words.add_argument("--clock", choices=CLOCKS)
    words.add_argument("--round", type=int)
    words.add_argument("--cell", type=int)
    command.set_defaults(run=record_command)
    return command


def scene_of(args: argparse.Namespace) -> Scene | None:
    """The scene on the command line.

    Raises:
        ValueError: words that do not make a scene.
    """
    if not (args.title or args.sentence):
        if args.question or args.choice:
            raise ValueError("A question belongs to a scene. Give --title and --sentence too.")
        return None
    if not (args.title and args.sentence):
        raise ValueError("A scene has a title and a sentence. Give --title and --sentence.")
    question = None
    if args.question:
        if not 2 <= len(args.choice) <= 6 or args.answer is None or not 1 <= args.answer <= len(args.choice):
            raise ValueError("A question needs 2 to 6 choices and which of them is right: --choice for each, and --answer from 1.")
        question = Question(args.question, tuple(args.choice), args.answer - 1, args.reveal)
    return Scene(args.title, args.sentence, question, Show(args.lane, args.map, args.clock, args.round, args.cell))


def record_command(args: argparse.Namespace) -> None:
    """Record a comparison or a scene, or those of a folder anew."""
    recipes = _anew(args) if args.again else {args.name: _recipe(args)}
    pair = chosen_pair(args)
    for name, recipe in recipes.items():
        print(save(record(pair, recipe), args.folder, name), flush=True)


def _anew(args: argparse.Namespace) -> dict[str, Recipe]:
    paths = [args.folder / f"{args.name}.json"] if args.name else sorted(args.folder.glob("*.json"))
    if not paths:
        raise ValueError(f"Nothing is recorded in {args.folder}.")
    recipes = {path.stem: recipe_of(load(path), args.heads, args.patches) for path in paths}
    scene = scene_of(args)
    return {name: replace(recipe, scene=scene) for name, recipe in recipes.items()} if scene else recipes


def _recipe(args: argparse.Namespace) -> Recipe:
    if not args.name:
        raise ValueError("The recording needs a file name. Give --name.")
    common: dict[str, Any] = chosen_settings(args)
    methods = {"reference": args.reference, "relaxed": args.relaxed} | ({"plain": "ar"} if args.plain else {})
    lanes = {lane: validate(METHODS, **common | {"method": method}) for lane, method in methods.items()}
    return Recipe(lanes, args.heads, args.patches, scene_of(args))
