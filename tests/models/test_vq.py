"""Picture tokenizers: public files by name and order of levels, look-up and pixels, pictures of unfinished token sequences."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from files import DATA, NAMES, patterned
from tiny import vqvae

from coolsd.models.checkpoints import LoadError
from coolsd.models.vq import LEVELS, ImageTokenizer, load_chameleon_vq, load_llamagen_vq, to_uint8

LOADERS = {"llamagen": (load_llamagen_vq, "model"), "chameleon": (load_chameleon_vq, "state_dict")}


@pytest.fixture(scope="module", params=LOADERS)
def public(request, tmp_path_factory):
    load, key = LOADERS[request.param]
    state = patterned(NAMES[request.param])
    path = tmp_path_factory.mktemp(request.param) / "vq.pt"
    torch.save({key: state}, path)
    return request.param, load, path, state


def test_original_names_load_and_decode_as_the_original_does(public):
    name, load, path, state = public
    tokenizer = load(path, 2)
    pixels = tokenizer.decode(torch.tensor([[3, 0, 250, 77, 9, 9]]))
    assert pixels.shape == (1, 3, 48, 32)
    golden = torch.load(DATA / "vq_pixels.pt", weights_only=True)[name]
    assert golden.std() > 0.1
    torch.testing.assert_close(pixels, golden, rtol=0, atol=1e-4)
    torch.testing.assert_close(tokenizer.codebook, state["quantize.embedding.weight"])
    exact = ImageTokenizer(copy.deepcopy(tokenizer.vqvae).double(), 2, tokenizer.normalise).decode(torch.tensor([[3, 0, 250, 77, 9, 9]]))
    torch.testing.assert_close(exact.float(), golden, rtol=0, atol=1e-5)  # float32 adds its own, by the machine
    assert all(p.is_contiguous() for p in tokenizer.vqvae.parameters())


def test_both_orders_of_chameleons_levels_are_the_same_picture(tmp_path):
    state, turned = patterned(NAMES["chameleon"]), {}
    for key, tensor in state.items():
        parts = key.split(".")
        if key.startswith("decoder.up."):
            parts[2] = str(len(LEVELS) - 1 - int(parts[2]))
        turned["model.vqmodel." + ".".join(parts)] = tensor
    pixels = []
    for order in (state, turned):
        torch.save(order, tmp_path / "vq.pt")
        pixels.append(load_chameleon_vq(tmp_path / "vq.pt", 2).decode(torch.tensor([[1, 2]])))
    assert torch.equal(*pixels)


def test_files_that_do_not_fit_are_named(public, tmp_path):
    _, load, path, state = public
    other = tmp_path / "other.pt"
    with pytest.raises(LoadError, match=r"other\.pt is missing"):
        load(other, 2)
    other.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(LoadError, match=r"other\.pt cannot be read"):
        load(other, 2)
    torch.save({"state_dict": {k: v for k, v in state.items() if k != "decoder.norm_out.weight"}}, other)
    with pytest.raises(LoadError, match="missing"):
        load(other, 2)
    torch.save({"state_dict": {k: v for k, v in state.items() if not k.startswith("decoder")}}, other)
    with pytest.raises(LoadError, match="decoder"):
        load(other, 2)


@pytest.mark.parametrize("normalise", [True, False])
def test_encoding_finds_the_nearest_code(normalise):
    tokenizer = ImageTokenizer(vqvae(), 4, normalise)
    pixels = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    z = tokenizer.vqvae.quant_conv(tokenizer.vqvae.encoder(pixels)).permute(0, 2, 3, 1).reshape(2, 16, 8)
    vectors = tokenizer.codebook
    if normalise:
        z, vectors = F.normalize(z, dim=-1), F.normalize(vectors, dim=-1)
    assert torch.equal(tokenizer.encode(pixels), torch.cdist(z, vectors).argmin(-1))


def test_decoding_looks_up_directions_only_where_it_should():
    network, codes = vqvae(), torch.arange(16)[None]
    plain, unit = ImageTokenizer(network, 4, False), ImageTokenizer(network, 4, True)
    before = plain.decode(codes), unit.decode(codes)
    network.quantize.embedding.weight.data *= 3
    torch.testing.assert_close(unit.decode(codes), before[1], rtol=0, atol=1e-5)
    assert (plain.decode(codes) - before[0]).abs().max() > 1e-3


def test_an_unfinished_picture_is_transparent_where_nothing_is_yet():
    tokenizer = ImageTokenizer(vqvae(), 4)
    alpha = np.array(tokenizer.picture([1, 2, 3, 4, 5]))[..., 3]
    assert alpha[:4].all()
    assert alpha[4:8, :4].all()
    assert not alpha[4:8, 4:].any()
    assert not alpha[8:].any()
    assert tokenizer.picture([]).size == (16, 16)
    assert tokenizer.picture(list(range(16))).mode == "RGB"


def test_pixels_are_rounded_or_truncated():
    pixels = np.array([-1.0, -0.99, 0.0, 1.0, 1.5], np.float32)
    assert to_uint8(pixels).tolist() == [0, 1, 128, 255, 255]
    assert to_uint8(pixels, 0.0).tolist() == [0, 1, 127, 255, 255]
