"""Files of weights that are damaged, wrapped, quantised or described wrongly: each is named in one line, with what to do."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_pair, write_tiny
from torch import nn

from coolsd.__main__ import main
from coolsd.data.store import load_checkpoint, save_checkpoint
from coolsd.models import checksums
from coolsd.models.checkpoints import ASSETS, LoadError, read_state
from coolsd.models.llamagen.load import load_meadow
from coolsd.training.export import export_drafter
from coolsd.training.loop import Training


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pathlib.Path:
    folder = write_tiny(tmp_path_factory.mktemp("whole"))
    (folder / "words.json").write_text(json.dumps({"about": "flowers", "words": ["rose"], "examples": ["a rose"]}))
    checksums.write(folder)
    return folder


@pytest.fixture
def pair(whole, tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(whole, tmp_path / "pair"))


def refused(folder: pathlib.Path) -> str:
    with pytest.raises(LoadError) as caught:
        load_meadow(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["target.safetensors", "drafter/model.safetensors", "vq/model.safetensors", "text_table.safetensors", "words.json"]
)
def test_a_flipped_byte_in_any_file_of_a_pair_is_noticed(pair, name, capsys):
    load_meadow(pair)
    content = bytearray((pair / name).read_bytes())
    content[len(content) // 2] ^= 1
    (pair / name).write_bytes(content)
    assert name in (message := refused(pair))
    assert "train checksums --pair" in message
    if name == "target.safetensors":
        assert main(["train", "checksums", "--pair", str(pair)]) == 0
        load_meadow(pair)


def test_the_embedded_pair_has_its_checksums():
    names = json.loads((ASSETS / "meadow" / checksums.FILE).read_text()).keys()
    assert names >= {"target.safetensors", "drafter/model.safetensors", "vq/model.safetensors", "text_table.safetensors", "config.json"}
    checksums.check(ASSETS / "meadow")


def test_what_training_writes_into_a_pair_renews_its_checksums(pair):
    drafter = tiny_pair().drafter_model
    export_drafter({name: tensor + 1 for name, tensor in drafter.state_dict().items()}, drafter.config, pair / "drafter")
    assert load_meadow(pair).drafter_model.fc.bias.mean() != drafter.fc.bias.mean()


def changed(folder: pathlib.Path, name: str, change) -> None:
    """Other tensors in a file, with the checksums of a person's own pair: none."""
    state = load_file(folder / name)
    change(state)
    save_file(state, folder / name)
    (folder / checksums.FILE).unlink()


def test_numbers_that_are_not_finite_and_whole_numbers_are_no_weights(pair):
    for value in (float("nan"), float("inf"), float("-inf")):
        shutil.copytree(pair, pair.parent / "copy", dirs_exist_ok=True)
        changed(pair.parent / "copy", "target.safetensors", lambda state, value=value: state["norm.weight"].view(-1)[3:4].fill_(value))
        assert "target: norm.weight holds numbers that are not finite" in refused(pair.parent / "copy")
    changed(pair, "drafter/model.safetensors", lambda state: state.update({"fc.weight": state["fc.weight"].to(torch.int8)}))
    assert "drafter: fc.weight is of int8" in refused(pair)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"rms_norm_eps": "1e-5"}, "gives rms_norm_eps as '1e-5'; a number above 0"),
        ("config.json", {"rope_base": None}, "gives rope_base as None"),
        ("config.json", {"hidden_size": True}, "does not give hidden_size as a whole number"),
        ("config.json", {"cls_token_num": None}, "does not give cls_token_num"),
        ("config.json", {"block_size": "16"}, "does not give block_size"),
        ("drafter/config.json", {"bias": "false"}, "gives bias as 'false'; true or false"),
        ("drafter/config.json", {"rms_norm_eps": 0}, "gives rms_norm_eps as 0"),
        ("drafter/config.json", {"cls_token_num": "6"}, "does not give cls_token_num"),
        ("drafter/config.json", {"block_size": None}, "does not give block_size"),
        ("vq/config.json", {"num_patches": "four"}, "config.json"),
        ("words.json", {"words": None}, "words.json"),
        ("words.json", {"examples": [1]}, "words.json"),
    ],
)
def test_a_wrong_value_in_a_description_is_named(pair, file, change, message):
    (pair / checksums.FILE).unlink()
    data = json.loads((pair / file).read_text())
    (pair / file).write_text(json.dumps(data | change))
    assert message in refused(pair)


def test_cut_descriptions_and_tables_that_are_too_short_are_named(pair):
    (pair / checksums.FILE).unlink()
    words = (pair / "words.json").read_text()
    (pair / "words.json").write_text(words[: len(words) // 2])
    assert "words.json" in refused(pair)
    (pair / "words.json").unlink()
    save_file({"embedding.weight": torch.rand(3, 8)}, pair / "text_table.safetensors")
    assert "has 3 rows, but text_tokenizer.json has 10 tokens" in refused(pair)


# ---- pickled files


class Network(nn.Linear):
    pass


@pytest.mark.parametrize(
    "beside", [np.float64(0.5), pathlib.PurePosixPath("a"), Network(1, 1)], ids=["numpy scalar", "path", "pickled module"]
)
def test_a_sound_file_that_holds_code_is_not_called_cut(tmp_path, beside):
    torch.save({"model": {"w": torch.ones(2)}, "beside": beside}, tmp_path / "a.pt")
    with pytest.raises(LoadError, match=r"a\.pt holds code beside its weights .* not run\. Save them alone: torch\.save") as caught:
        read_state(tmp_path / "a.pt")
    assert "cut" not in str(caught.value)
    torch.save({"model": {"w": torch.ones(2)}}, tmp_path / "b.pt")
    content = (tmp_path / "b.pt").read_bytes()
    (tmp_path / "b.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(LoadError, match="may be cut short"):
        read_state(tmp_path / "b.pt")


@pytest.mark.parametrize("name", ["a.pt", "a.bin", "a.safetensors"])
def test_a_pointer_of_git_lfs_has_a_sentence_of_its_own(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(LoadError, match="git lfs pull"):
        read_state(tmp_path / name)


def test_names_lose_what_wrappers_put_in_front(tmp_path):
    inner = {"layers.0.w": torch.ones(2), "module.w": torch.ones(1)}
    for number, names in enumerate(
        (
            {f"_orig_mod.{name}": name for name in inner},
            {f"module.{name}": name for name in inner},
            {f"module._orig_mod.{name}": name for name in inner},
            {"layers.0._orig_mod.w": "layers.0.w", "module.w": "module.w"},
            {name: name for name in inner},
        )
    ):
        torch.save({"model": {wrapped: inner[name] for wrapped, name in names.items()}}, tmp_path / f"{number}.pt")
        assert read_state(tmp_path / f"{number}.pt").keys() == inner.keys()


# ---- checkpoints of a training


@pytest.mark.parametrize("content", [b"", b"no checkpoint", "half", "list", "other"])
def test_a_damaged_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "c.pt"
    network = nn.Linear(2, 2)
    save_checkpoint(path, small=network.state_dict(), optimizers=[], step=3)
    if content == "half":
        content = path.read_bytes()[:-400]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save([1] if content == "list" else {"small": 3, "optimizers": [], "step": None}, path)
    training = Training("small", network, [], None, path)
    with pytest.raises(ValueError, match=r"c\.pt is") as caught:
        training.restore()
    assert "\n" not in str(caught.value)
    if content != "other":
        with pytest.raises(ValueError, match=r"c\.pt is no checkpoint"):
            load_checkpoint(path)
