"""The command line on the tiny pair: a picture with its settings, a run that can be repeated, clear refusals."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny import tiny_pair

import coolsd.__main__ as cli
from coolsd import Run, exports, generate
from coolsd import options as shared


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(shared, "load", lambda *_: tiny_pair())


def options(settings: dict) -> list[str]:
    """The command line that asks for these settings."""
    out = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            out.append(option)
        elif value not in (None, False) and name != "prompt":
            out += [option, str(value)]
    return [settings["prompt"], *out]


def test_generate_writes_a_picture_and_a_run_that_repeats(tmp_path, capsys):
    words = ["a red rose", "--method", "coolsd", "--delta", "3", "--nu", "0.5", "--mu", "auto", "--draft-length", "3", "--clamp"]
    words += ["--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--cfg-scale", "2.5", "--seed", "3", "--max-tokens", "14"]
    files = ["--out", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")]
    assert cli.main(["generate", *words, *files]) == 0
    output = capsys.readouterr()
    assert "14/14" in output.err
    assert "accept length" in output.out
    assert "bias spent" in output.out
    run = Run.from_json(tmp_path / "a.json")
    assert (run.settings.delta, run.settings.mu, run.settings.clamp, run.settings.seed, len(run.tokens)) == (3.0, None, True, 3, 14)
    text = Image.open(tmp_path / "a.png").text
    assert json.loads(text["coolsd"])["settings"] == run.settings.to_dict()
    assert cli.main(["generate", *options(run.settings.to_dict()), "--json", str(tmp_path / "b.json")]) == 0
    assert Run.from_json(tmp_path / "b.json").tokens == run.tokens


def test_a_lossless_run_says_so(capsys):
    assert cli.main(["generate", "a red rose", "--method", "eagle1"]) == 0
    assert "exactly the target's distribution" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", " "], "prompt is empty"),
        (["generate", "x", "--delta", "nan"], "out of range"),
        (["generate", "x", "--seed", "1.5"], "whole number"),
        (["generate", "x" * 1001], "Shorten"),
        (["bench", "--cfg-scale", "0"], "out of range"),
        (["bench", "--seeds", "0"], "--seeds 1 or more"),
        (["bench", "--random-weights", "llamagen-256", "--layers", "0"], "--layers 1 or more"),
        (["generate", "x", "--seed", "-1"], "from 0 to 4294967295."),
        (["bench", "--random-weights", "llamagen-256", "--dtype", "banana"], "not a dtype"),
        (["bench", "--random-weights", "llamagen-256", "--device", "banana"], "not a device"),
        (["generate", "x", "--out", "no/such/x.png"], "no folder no/such"),
        (["generate", "x", "--json", "."], "is a folder"),
        (["generate", "x", "--out", "x.gif"], "x.gif does not end like a picture. Give a name that ends in .png, .jpg, .jpeg, .webp."),
        (["generate", "x", "--out", "flower"], "flower does not end like a picture"),
    ],
)
def test_bad_input_says_what_to_do(arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "kind"), [("a.PNG", "PNG"), ("a.jpg", "JPEG"), ("a.jpeg", "JPEG"), ("a.webp", "WEBP")])
@pytest.mark.parametrize("tokens", [16, 6])
def test_a_picture_is_written_as_its_name_ends_with_its_settings(tmp_path, name, kind, tokens):
    words = ["a red “rose”", "--delta", "3", "--seed", "5", "--max-tokens", str(tokens)]
    assert cli.main(["generate", *words, "--out", str(tmp_path / name)]) == 0
    image = Image.open(tmp_path / name)
    assert image.format == kind
    comment = image.getexif().get_ifd(exports.EXIF).get(exports.COMMENT, b"").removeprefix(b"ASCII\0\0\0")
    recipe = json.loads(image.text["coolsd"] if kind == "PNG" else comment)
    run = generate(tiny_pair(), **recipe["settings"])
    assert (run.settings.prompt, run.settings.delta, run.settings.seed) == ("a red “rose”", 3.0, 5)
    rgb, there = (
        (np.asarray(picture.convert("RGB"), float) for picture in (image, run.image)),
        np.asarray(run.image.convert("RGBA"))[..., 3],
    )
    assert np.abs(np.subtract(*rgb))[there > 0].mean() < (8 if kind == "JPEG" else 1e-9)
    assert image.mode == ("RGB" if tokens == 16 or kind == "JPEG" else "RGBA")


def test_a_prompt_needs_no_quotes(tmp_path):
    assert cli.main(["generate", "a", "red", "rose", "--max-tokens", "2", "--json", str(tmp_path / "a.json")]) == 0
    assert Run.from_json(tmp_path / "a.json").settings.prompt == "a red rose"


def test_an_ending_is_refused_before_anything_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(shared, "load", lambda *_: pytest.fail("nothing may load"))
    assert cli.main(["generate", "x", "--out", "x.bmp"]) == 2


def test_local_files_are_named_by_part(monkeypatch, capsys):
    loads = []
    monkeypatch.setattr(shared, "load", lambda *names, **parts: loads.append((names[0], parts)) or tiny_pair())
    files = ["--files", "drafter=none", "--files", "vq=a=b/vq.pt"]
    assert cli.main(["generate", "x", "--target", "lumina-768", *files, "--max-tokens", "2"]) == 0
    assert loads == [("lumina-768", {"drafter": "none", "vq": "a=b/vq.pt"})]
    with pytest.raises(SystemExit):
        cli.main(["generate", "x", "--files", "drafter"])
    assert "PART=PATH" in capsys.readouterr().err


def test_what_cannot_be_written_ends_with_a_message(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise PermissionError(13, "Permission denied", "run.json")

    monkeypatch.setattr(Run, "to_json", full)
    assert cli.main(["generate", "x", "--max-tokens", "2", "--json", str(tmp_path / "run.json")]) == 2
    assert "coolsd: run.json: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "message"), [("--delta", "'auto' is not a number"), ("--mu", "'banana' is not a number")])
def test_words_where_a_number_belongs_are_named(option, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(["generate", "x", option, message.split("'")[1]])
    assert message in capsys.readouterr().err


def test_a_prompt_from_outside_the_pairs_world_gets_a_notice(monkeypatch, capsys):
    from coolsd.models.prompt_domain import PromptDomain

    monkeypatch.setattr(tiny_pair().text, "domain", PromptDomain("flowers", frozenset({"rose"}), ("a red rose",)))
    assert cli.main(["generate", "a red rose"]) == 0
    assert "paints flowers" not in capsys.readouterr().err
    monkeypatch.setattr("coolsd.models.prompt_domain.NEAR", 1.1)
    assert cli.main(["generate", "misty forest"]) == 0
    assert "tiny paints flowers" in capsys.readouterr().err


def test_targets_say_what_they_lack(capsys):
    assert cli.main(["targets"]) == 0
    output = capsys.readouterr().out
    assert "meadow: meadow, 128 px; runs here" in output
    for words in ("llamagen-256", "GPU with", "hf download peizesun/llamagen_t2i", "train drafter", "GB"):
        assert words in output


def test_the_memory_plan_is_printed(capsys):
    import logging

    cli.main(["targets"])
    assert logging.getLogger("coolsd").isEnabledFor(logging.INFO)
    assert not logging.getLogger("coolsd").handlers, "beside the root's, every line would stand there twice"


def test_bench_compares_every_lane_with_plain_ar(tmp_path, capsys):
    written = ["--json", str(tmp_path / "b.json")]
    assert cli.main(["bench", "--methods", "ar", "eagle1", "coolsd", "--seeds", "1", *written]) == 0
    report = json.loads((tmp_path / "b.json").read_text())
    rows = {row["label"]: row for row in report["rows"]}
    assert rows["Plain AR"]["speedup"] == rows["Plain AR"]["accept_length"] == 1
    assert rows["Eagle-1"]["bias_per_token"] == pytest.approx(0, abs=1e-6)
    assert rows["COOL-SD δ=2"]["call_speedup"] == pytest.approx(16 / rows["COOL-SD δ=2"]["target_calls"], rel=0.2)
    assert {"draft", "target", "verify", "other"} == set(rows["Eagle-1"]["round_ms"])
    assert "Eagle-1" in capsys.readouterr().out


def test_record_makes_what_the_page_reads(tmp_path):
    assert cli.main(["record", "a red rose", "--name", "rose", "--folder", str(tmp_path), "--delta", "1.5"]) == 0
    comparison = exports.recorded(tmp_path)
    assert (comparison.reference.settings.method, comparison.relaxed.settings.delta) == ("eagle1", 1.5)
    assert comparison.reference.image.size == (16, 16)
    assert comparison.ar_token_seconds > 0
