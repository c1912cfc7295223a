"""Commands as people type them: those of README and card, files that cannot be written, Ctrl-C, streams that close or lack letters."""

import io
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image
from tiny import tiny_pair

import coolsd.__main__ as cli
from coolsd.options import check_files

ROOT = Path(__file__).parents[1]
TYPED = re.compile(r"python -m coolsd ([^`\n#]*)")


def typed() -> list[str]:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "assets/meadow/README.md")]
    return sorted({command.strip() for text in texts for command in TYPED.findall(text) if command.strip()})


@pytest.mark.parametrize("command", typed())
def test_every_command_of_readme_and_card_passes_its_argument_check(command, capsys):
    """One that is named without options is asked for its help; one that goes on with dots may lack what it requires."""
    words = shlex.split(command.replace("…", ""))
    shortened = "…" in command or not any(word.startswith("-") for word in words)
    code, message = parsed(words, capsys)
    assert not code or (shortened and "the following arguments are required" in message), message
    assert not code or "…" in command or parsed([*words, "--help"], capsys)[0] == 0


def parsed(words: list[str], capsys) -> tuple[int, str]:
    """Exit code of the argument check, and what it says."""
    try:
        cli.build_parser().parse_args(words)
    except SystemExit as ended:
        return ended.code, capsys.readouterr().err
    return 0, ""


def test_the_commands_are_found_in_the_texts():
    assert len(typed()) > 8
    assert any(command.startswith("train drafter --target") for command in typed())


# ---- files


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(cli, "chosen_pair", lambda args: tiny_pair())


def test_files_that_cannot_be_written_are_refused_before_anything_is_decoded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "chosen_pair", lambda args: pytest.fail("loaded"))
    one = str(tmp_path / "a.png")
    (tmp_path / "b").mkdir()
    for out, figures, message in (
        (one, str(tmp_path / "b" / ".." / "a.png"), "a.png is to be written twice"),
        (str(tmp_path / "c" / "a.png"), None, "There is no folder"),
        (one, str(tmp_path / "b"), "is a folder"),
    ):
        options = ["--out", out, *(["--json", figures] if figures else [])]
        assert cli.main(["generate", "a rose", *options]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"a\.png cannot be written"):
        check_files(Path(one))


def test_ctrl_c_writes_what_was_decoded(tmp_path, tiny, monkeypatch, capsys):
    decode = cli.decode

    def interrupted(*args):
        for event in decode(*args):
            yield event
            if event.index == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(cli, "decode", interrupted)
    out, figures = tmp_path / "a.png", tmp_path / "a.json"
    assert cli.main(["generate", "a rose", "--out", str(out), "--json", str(figures)]) == 130
    run = json.loads(figures.read_text())
    assert (len(run["rounds"]), run["complete"]) == (2, False)
    assert Image.open(out).text["stopped"].endswith("of 16")
    assert "stopped" in capsys.readouterr().err


# ---- streams


def test_letters_that_a_stream_lacks_end_nothing_and_files_come_first(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(cli, "targets_command", lambda args: print("δ = 2, ω × 3"))
    assert cli.main(["targets"]) == 0
    sys.stdout.seek(0)
    assert sys.stdout.read() == "? = 2, ? ? 3\n"

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.main(["generate", "a rose", "--json", str(tmp_path / "a.json")]) == 2
    assert json.loads((tmp_path / "a.json").read_text())["complete"]


def test_a_reader_that_has_read_enough_is_no_error(monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(cli, "targets_command", lambda args: print("a line " * 10_000))
        assert cli.main(["targets"]) == 0
        stream.write("more at exit")
    assert capsys.readouterr().err == ""
