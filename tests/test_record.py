"""Recordings: a comparison with its words, heads and patches, made by command, read back, and made anew from itself."""

import base64
import io
import json
import shutil

import pytest
from PIL import Image
from tiny import tiny_pair

from coolsd import bundle, exports
from coolsd.__main__ import main
from coolsd.scene import Question, Scene, Show, read, read_patches
from coolsd.show import record

WORDS = ["--title", "A guess", "--sentence", "A small model guesses.", "--question", "How many?", "--choice", "one", "--choice", "two"]
SCENE = Scene("A guess", "A small model guesses.", Question("How many?", ("one", "two"), 1, "Two."), Show("relaxed", "both", None, 3, 5))


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "chosen_pair", lambda args: tiny_pair())
        yield


@pytest.fixture(scope="module")
def stored(tiny, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("runs")
    line = ["record", "a", "red", "rose", "--name", "one", "--folder", str(tmp_path), "--plain", "--seed", "4", "--top-k", "0", *WORDS]
    more = ["--answer", "2", "--reveal", "Two.", "--lane", "relaxed", "--map", "both", "--round", "3", "--cell", "5", "--patches", "6"]
    assert main([*line, *more]) == 0
    return tmp_path / "one.json"


def test_a_scene_is_recorded_with_heads_and_patches(stored):
    comparison = exports.load(stored)
    assert comparison.scene == SCENE
    assert [run.settings.method for run in (comparison.reference, comparison.relaxed, comparison.plain)] == ["eagle1", "coolsd", "ar"]
    assert comparison.relaxed.settings.prompt == "a red rose"
    assert all(run.image is not None and run.complete for run in (comparison.reference, comparison.relaxed, comparison.plain))
    assert all(event.top for event in comparison.relaxed.rounds)
    assert set(comparison.patches) == {"reference", "relaxed", "plain"}
    patches = comparison.patches["relaxed"]
    assert "5" in patches
    assert len(patches) <= 7
    own = str(comparison.relaxed.tokens[5])
    picture = Image.open(io.BytesIO(base64.b64decode(patches["5"][own].partition(",")[2])))
    assert picture.size == (12, 12)  # three cells of four pixels
    assert len(patches["5"]) > 3


def test_it_is_recorded_anew_from_itself(stored, tmp_path):
    before = exports.load(stored)
    shutil.copy(stored, tmp_path)
    assert main(["record", "--again", "--folder", str(tmp_path), "--patches", "2"]) == 0
    after = exports.load(tmp_path / stored.name)
    assert after.scene == SCENE
    assert after.relaxed.tokens == before.relaxed.tokens
    assert after.relaxed.settings == before.relaxed.settings
    assert len(after.patches["relaxed"]) < len(before.patches["relaxed"])


def test_a_patch_is_cut_with_its_neighbours():
    image = Image.new("RGB", (16, 16))
    for cell in range(16):
        image.paste((cell, 0, 0), (cell % 4 * 4, cell // 4 * 4, cell % 4 * 4 + 4, cell // 4 * 4 + 4))
    middle = record.crop(image, 5, (4, 4))
    assert [middle.getpixel((4 * x, 4 * y))[0] for y in range(3) for x in range(3)] == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    corner = record.crop(image, 15, (4, 4))
    assert corner.getpixel((11, 11))[0] == 15
    assert corner.size == (12, 12)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["a rose"], "Give --name"),
        (["a rose", "--name", "x", "--title", "T"], "A scene has a title and a sentence"),
        (["a rose", "--name", "x", "--question", "Why?"], "A question belongs to a scene"),
        (["a rose", "--name", "x", *WORDS], "which of them is right"),
        (["a rose", "--name", "x", *WORDS, "--answer", "3"], "which of them is right"),
        (["--name", "x"], "The prompt is empty"),
        (["--again"], "Nothing is recorded"),
    ],
)
def test_what_makes_no_recording_is_refused(line, message, tiny, tmp_path, capsys):
    assert main(["record", *line, "--folder", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_words_and_patches_from_outside_are_checked(stored):
    data = json.loads(stored.read_text(encoding="utf-8"))
    assert read(data["scene"], "scene") == SCENE
    for path, value in {"title": 3, "question.answer": 2, "question.choices": ["one"], "show.lane": "left", "show.colour": "red"}.items():
        scene = json.loads(json.dumps(data["scene"]))
        inner = scene
        *above, name = path.split(".")
        for key in above:
            inner = inner[key]
        inner[name] = value
        with pytest.raises(ValueError, match=f"scene.*{name}"):
            bundle.read(json.dumps(data | {"scene": scene}))
    for bad in (3, {"x": {}}, {"5": {"7": "javascript:alert(1)"}}, {"5": {"7": "data:text/html;base64,AAAA"}}, {"5": ["a"]}):
        with pytest.raises(ValueError, match="patches"):
            read_patches(bad, "patches.relaxed")


def test_the_cells_looked_at_are_the_telling_ones(stored):
    run = exports.load(stored).relaxed
    kinds = [(kind, only) for r in run.rounds for kind, only in zip(r.kinds, r.relaxed, strict=True)]
    only_relaxed = [cell for cell, (_, only) in enumerate(kinds) if only]
    cells = record.cells_of(run, len(only_relaxed) + 2, first=0)
    assert set(only_relaxed) <= set(cells)
    assert len(cells) <= len(only_relaxed) + 2
    assert 0 in cells
