"""Runs from files, shown and exported: a single run, the page's comparison with two or three lanes, and what is neither."""

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from PIL import Image, ImageColor
from real_rows import real_row
from tables import Toy
from tiny import tiny_pair
from toy import ToyPair

from coolsd import bundle, generate
from coolsd.__main__ import main
from coolsd.exports import Comparison, save
from coolsd.laboratory.exact import LaboratoryError
from coolsd.show import account, drawings
from coolsd.trace import Run, to_text

PROMPT = "a red rose"


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {
        lane: generate(tiny_pair(), PROMPT, method, seed=4, inspect=4)
        for lane, method in (("reference", "eagle1"), ("relaxed", "coolsd"), ("plain", "ar"))
    }


@pytest.fixture
def file(runs, tmp_path):
    return save(Comparison(runs["reference"], runs["relaxed"], 0.01), tmp_path, "rose")


def test_a_comparison_is_read_with_its_pictures(file, runs):
    lanes = bundle.read(file).lanes
    assert list(lanes) == ["reference", "relaxed"]
    assert all(lanes[name].tokens == runs[name].tokens for name in lanes)
    assert lanes["relaxed"].image.tobytes() == runs["relaxed"].image.convert("RGB").tobytes()
    assert bundle.read(file).ar_token_seconds == 0.01


def test_three_lanes_and_a_single_run_are_read(runs):
    three = bundle.Bundle(runs, None)
    assert list(bundle.read(to_text(bundle.to_plain(three))).lanes) == ["reference", "relaxed", "plain"]
    assert bundle.read(runs["plain"].to_json()).lanes["run"].tokens == runs["plain"].tokens


def test_what_is_no_run_is_refused_in_one_line(file, runs, tmp_path):
    data = json.loads(file.read_text(encoding="utf-8"))
    data["relaxed"]["rounds"][1]["drafted"] = "many"
    other = generate(ToyPair(Toy.make(3, seed=5), (2, 3)), PROMPT, "ar")
    unlike = {"schema": 2, "reference": runs["reference"].to_dict(), "relaxed": other.to_dict()}
    half = {"schema": 2, "reference": runs["reference"].to_dict()}
    cases = [
        (to_text(data), r"relaxed: rounds\[1\]\.drafted is 'many'"),
        (to_text(unlike), "different sizes"),
        (to_text(half), "lacks 'relaxed'"),
        ("[]", "This is no run"),
        ("{}", "This is no run"),
        ("a rose", "not JSON"),
    ]
    for text, message in cases:
        with pytest.raises(ValueError, match=message) as refusal:
            bundle.read(text)
        assert "\n" not in str(refusal.value)
    big = tmp_path / "big.json"
    big.write_bytes(b" " * (bundle.MOST_BYTES + 1))
    with pytest.raises(ValueError, match="larger than"):
        bundle.read(big)


def test_the_command_shows_every_round(file, runs, capsys):
    assert main(["show", str(file), "--lane", "relaxed"]) == 0
    out = capsys.readouterr().out
    assert f"“{PROMPT}”, COOL-SD, δ = 2, seed 4" in out
    assert account.KEY in out
    lines = out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.strip().startswith("round ")) + 1 :]
    assert [int(line.split()[0]) for line in table if line and line.split()[0].isdigit()] == [r.index for r in runs["relaxed"].rounds]


def test_the_command_shows_one_round_in_full(file, runs, capsys):
    event = runs["relaxed"].rounds[1]
    assert main(["show", str(file), "--lane", "relaxed", "--round", "1"]) == 0
    out = capsys.readouterr().out
    assert all(outcome in out for outcome in event.drafts.outcome)
    assert f"{event.last.u:.3g}" in out
    assert "likeliest of q" in out
    assert main(["show", str(file), "--round", "99"]) == 2
    assert "There is no round 99" in capsys.readouterr().err


def test_the_command_exports(file, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawings, "FRAMES_A_SECOND", 1)
    names = {kind: tmp_path / f"out.{kind}" for kind in ("png", "gif", "csv", "json")}
    assert main(["show", str(file), *(word for kind, path in names.items() for word in (f"--{kind}", str(path)))]) == 0
    with Image.open(names["png"]) as image:
        assert image.format == "PNG"
        assert image.width == 1024
    records = list(csv.DictReader(io.StringIO(names["csv"].read_text(encoding="utf-8"))))
    assert len(records) == sum(len(runs[lane].rounds) for lane in ("reference", "relaxed"))
    emitted = [int(token) for record in records if record["lane"] == "relaxed" for token in record["tokens"].split()]
    assert emitted == runs["relaxed"].tokens
    assert float(records[-1]["clock"]) == pytest.approx(runs["relaxed"].stats.seconds, abs=1e-4)
    assert bundle.read(names["json"]).lanes["relaxed"].to_dict() == bundle.read(file).lanes["relaxed"].to_dict()
    capsys.readouterr()
    assert main(["show", str(file), "--png", str(tmp_path / "none" / "a.png")]) == 2
    assert main(["show", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def paced(run: Run, seconds: float) -> Run:
    """The run with rounds of so many seconds each."""
    clock = {"draft_seconds": 0.0, "target_seconds": seconds, "verify_seconds": 0.0, "other_seconds": 0.0}
    return replace(run, rounds=[replace(event, **clock) for event in run.rounds])


def is_cover(colour: tuple[int, int, int]) -> bool:
    """Whether a pixel is covered, as near as the GIF's palette comes."""
    return max(abs(a - b) for a, b in zip(colour, ImageColor.getrgb(drawings.COVER), strict=True)) <= 6


def test_the_race_runs_on_the_lanes_own_clocks(runs, monkeypatch):
    monkeypatch.setattr(drawings, "FRAMES_A_SECOND", 4)
    lanes = {name: paced(runs[name], seconds) for name, seconds in (("reference", 0.02), ("relaxed", 0.01))}
    with Image.open(io.BytesIO(drawings.gif(lanes))) as film:
        assert film.n_frames > 20
        durations, covered = [], []
        layout = drawings.Layout(lanes, drawings.GIF_WIDTH)
        for i in range(film.n_frames):
            film.seek(i)
            durations.append(film.info["duration"])
            frame = film.convert("RGB")
            area = [frame.crop((x0, layout.top, x0 + layout.side, layout.top + layout.side)) for x0 in layout.left]
            covered.append([sum(count for count, colour in part.getcolors(2**20) if is_cover(colour)) for part in area])
    assert sum(durations) / 1000 == pytest.approx(drawings.USUAL + drawings.LAST_SECONDS, rel=0.1)
    for lane in zip(*covered, strict=True):
        assert all(later <= earlier for earlier, later in pairwise(lane))
        assert lane[0] > lane[-1]
    slower = max(lanes, key=lambda name: lanes[name].stats.seconds)
    ends = [next(i for i, count in enumerate(lane) if count == lane[-1]) for lane in zip(*covered, strict=True)]
    assert ends[list(lanes).index(slower)] == max(ends)


def test_a_lane_without_its_picture_is_refused(runs):
    bare = Run.from_json(runs["plain"].to_json())
    with pytest.raises(ValueError, match="no picture of the lane 'run'"):
        drawings.sheet({"run": bare})


def test_text_of_a_drawing_keeps_to_its_font():
    assert drawings.ascii_text("δ = 2, 1.5× é") == "delta = 2, 1.5x e"
    assert drawings.ascii_text("玫瑰") == "?"


def test_a_cell_of_a_run_becomes_a_row_of_the_laboratory(runs):
    run = runs["relaxed"]
    event = next(r for r in run.rounds if r.drafts)
    row = real_row(run, event.start)
    assert sum(row.p) == pytest.approx(1)
    assert sum(row.q) == pytest.approx(1)
    node = event.drafts.tokens.index(int(row.names[0])) if int(row.names[0]) in event.drafts.tokens[:1] else None
    head = dict(event.top[0]["p"])
    assert all(p == pytest.approx(head[int(name)]) for name, p in zip(row.names[:-1], row.p, strict=False) if name)
    assert row.omega == pytest.approx(run.omega[0])
    assert node is None or row.q[0] == pytest.approx(event.drafts.q[0])
    with pytest.raises(LaboratoryError, match="no token in cell"):
        real_row(run, 99)
    with pytest.raises(LaboratoryError, match="kept no rows"):
        real_row(generate(tiny_pair(), PROMPT, "coolsd", seed=4, max_tokens=6), 1)
    with pytest.raises(LaboratoryError, match="Nothing was drafted"):
        real_row(runs["plain"], 3)
