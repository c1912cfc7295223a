"""Local files for the page: named on the command line or in the environment, refused in one line, offered by the picker, decoded from."""

import runpy
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
import torch
from pages import METHODS, counts
from released import DATA, shrink_llamagen, write_llamagen
from tiny import write_tiny

from coolsd.models import catalog
from coolsd.models.catalog import read_files
from coolsd.ui import controls, text
from coolsd.ui.backend import EMBEDDED, Loader, default_backend
from coolsd.ui.compare import compare
from coolsd.ui.gate import Listeners
from coolsd.ui.page import Page

NAME = "llamagen-256"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_llamagen(tmp_path_factory.mktemp("llamagen"))


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(catalog, "local", lambda part: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def entries(paths) -> list[str]:
    return [f"{NAME}.{part}={path}" for part, path in paths.items()]


def view(files, folder):
    """The page with these files, its target picker filled."""
    instance = default_backend(files)
    page = Page(instance, Loader(instance.load))
    with gr.Blocks():
        page.draw(folder)
    return page, {name: title for title, name in page.targets.list_targets()["choices"]}


def test_files_are_read_by_target_and_part():
    named = ["llamagen-256.target=a.pt", "llamagen-256.vq=b=c/d e.pt", "lumina-768.drafter=none", "llamagen-256.target=later.pt"]
    assert read_files(named) == {"llamagen-256": {"target": "later.pt", "vq": "b=c/d e.pt"}, "lumina-768": {"drafter": "none"}}
    assert read_files([]) == {}


BAD = [
    ("target=a.pt", "'target=a.pt' is not TARGET.PART=PATH, for example llamagen-256.target="),
    ("llamagen-256.target", "is not TARGET.PART=PATH"),
    ("llamagen-256.target=", "is not TARGET.PART=PATH"),
    ("llamagen.target=a.pt", "There is no target called 'llamagen'. Known: meadow, llamagen-256"),
    ("llamagen-256.tokenizer=a.pt", "llamagen-256 has no part called tokenizer. Parts: drafter, target, text, vq."),
]


@pytest.mark.parametrize(("entry", "message"), BAD)
def test_what_is_no_file_of_a_target_is_refused(entry, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_files([entry])
    assert message in str(caught.value)


@pytest.mark.parametrize("variable", [True, False])
def test_the_app_refuses_in_one_line(monkeypatch, variable):
    import app

    options = "llamagen-256.tokens=a.pt"
    monkeypatch.setenv("COOLSD_FILES", options if variable else "")
    monkeypatch.setattr(sys, "argv", ["app.py", *([] if variable else ["--files", options])])
    with pytest.raises(SystemExit, match=r"^app\.py: --files or COOLSD_FILES: llamagen-256 has no part called tokens\. Parts: [^\n]+$"):
        app.page() if variable else app.main()


def test_the_variable_and_the_option_reach_the_page(monkeypatch, no_hub, tmp_path):
    import app

    instance = []
    monkeypatch.setattr(app, "build", lambda backend, evidence: instance.append(backend))
    monkeypatch.setenv("COOLSD_FILES", f"lumina-768.target='{tmp_path / 'no such'}'\nlumina-768.vq={tmp_path}")
    app.page([f"lumina-768.drafter={tmp_path / 'missing'}"])
    lines = instance[0].target_statuses()["lumina-768"].missing[1:]
    assert lines == (f"target: {tmp_path / 'no such'} does not exist.", f"drafter: {tmp_path / 'missing'} does not exist.")
    monkeypatch.setenv("COOLSD_FILES", "lumina-768.target='open")
    with pytest.raises(SystemExit, match=r"app\.py: --files or COOLSD_FILES: No closing quotation"):
        app.page()
    (tmp_path / "evidence.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"^app\.py: --evidence: .+evidence\.json.+"):
        app.page(evidence=tmp_path / "evidence.json")


@pytest.mark.parametrize("options", [[], ["--files", "llamagen-256.drafter=none"]])
def test_the_page_is_built_once(monkeypatch, options, tmp_path):
    instance = []
    runs = SimpleNamespace(listeners=None)
    loader = SimpleNamespace(start=lambda _: None)
    page = SimpleNamespace(
        launch=lambda **_: None, block_thread=lambda: None, loader=loader, page=runs, fns={}, blocks={}, mcp_server_obj=None
    )
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr("coolsd.ui.page.build", lambda backend, evidence: instance.append(backend) or page)
    monkeypatch.setattr(sys, "argv", ["app.py", *options])
    runpy.run_path(str(Path(__file__).parents[2] / "app.py"), run_name="__main__")
    assert len(instance) == 1


def test_local_files_make_a_target_present(monkeypatch, no_hub, paths, tmp_path):
    shrink_llamagen(monkeypatch, memory={})
    page, titles = view({}, tmp_path)
    assert titles[NAME] == "target: LlamaGen-XL, 256 px (not here yet)"
    assert f"`python app.py --files {NAME}.PART=PATH`" in page.targets.explain(NAME)["value"]
    page, titles = view(read_files(entries(paths)), tmp_path)
    assert titles[NAME] == "target: LlamaGen-XL, 256 px"
    assert titles["lumina-768"].endswith("(not here yet)")
    missing = read_files(entries(paths | {"vq": tmp_path / "vq.pt"}))
    assert f"vq: {tmp_path / 'vq.pt'} does not exist." in view(missing, tmp_path)[0].targets.explain(NAME)["value"]


def test_the_gpu_is_asked_for_all_the_same(no_hub, paths):
    instance = default_backend(read_files(entries(paths)))
    assert instance.target_statuses()[NAME].missing == ("LlamaGen-XL, 256 px needs a GPU with 4.6 GB; none was found.",)
    plain = default_backend(read_files([*entries(paths), f"{NAME}.drafter=none"])).target_statuses()[NAME]
    assert plain.missing == ("LlamaGen-XL, 256 px needs a GPU with 4.5 GB; none was found.",)
    assert not plain.drafts
    assert "drafter 0.09" not in plain.plan
    assert default_backend(read_files([f"lumina-768.drafter={DATA}"])).target_statuses()["lumina-768"].drafts


def test_the_page_decodes_from_local_files(monkeypatch, no_hub, paths):
    shrink_llamagen(monkeypatch, memory={})
    instance = default_backend(read_files(entries(paths)))
    wishes = controls.read({**controls.DEFAULTS, "target": NAME, "top_k": 50}, METHODS, instance.target_statuses())
    last = list(compare(instance, Loader(instance.load), wishes))[-1]
    assert (last.tone, counts(last)[:2]) == ("good", [16, 16]), last.status


def test_meadow_is_read_from_another_folder(tmp_path):
    instance = default_backend(read_files([f"meadow.folder={write_tiny(tmp_path / 'mine')}"]))
    assert instance.load("meadow").name == "mine"


def test_a_target_that_simply_runs_says_nothing_of_files():
    assert text.describe_target(EMBEDDED["meadow"]) == ""
    assert "COOLSD_FILES" in text.describe_target(replace(EMBEDDED["meadow"], name="big", plan="GPU memory in GB: 3 in all."))


def test_a_taken_port_is_said_in_one_line(monkeypatch, tmp_path):
    import app

    with gr.Blocks() as empty:
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["app.py", "--port", str(port)])
        empty.page = SimpleNamespace(listeners=Listeners())
        monkeypatch.setattr(app, "page", lambda files, evidence: empty)
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
        with pytest.raises(SystemExit, match=rf"^app\.py: 127\.0\.0\.1, port {port} cannot be served on [^\n]+ Give another --port\.$"):
            app.main()
