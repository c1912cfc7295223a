"""Packed weights: the same products, one copy, and everything back as it was; layers stay plain where packing is not to be had."""

import pytest
import torch
from tiny import write_tiny
from torch import nn

from coolsd import generate, load
from coolsd.models import packed
from coolsd.models.packed import Fused, Linear


class Two(Fused):
    joins = ("a", "b")

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = Linear(32, 48, bias=False), Linear(32, 16, bias=False), Linear(64, 32)

    def forward(self, x):
        return self.out(self.products(x))


def model(dtype):
    torch.manual_seed(0)
    two = Two().to(dtype).eval().requires_grad_(False)
    packed.fuse(two)
    return two


def test_products_are_the_same_and_weights_come_back_exactly():
    two = model(torch.bfloat16)
    weights = {name: tensor.clone() for name, tensor in two.state_dict().items()}
    inputs = [torch.randn(2, rows, 32).bfloat16() for rows in (1, 6, 30)]
    plain = [two(x) for x in inputs]
    packed.pack(two)
    assert two.packed is not None
    assert two.out.packed is not None
    for x, expected in zip(inputs, plain, strict=True):
        assert torch.equal(two(x), expected)
    for layer in (two.a, two.b, two.out):
        assert layer.weight.untyped_storage().nbytes() == 2  # one copy, and not here
        assert layer.weight.isnan().all()
        assert layer.weight.dtype == torch.bfloat16
    packed.pack(two)  # once is enough
    packed.unpack(two)
    assert two.is_fused()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in two.state_dict().items())
    assert all(torch.equal(two(x), expected) for x, expected in zip(inputs, plain, strict=True))


def test_weights_that_were_loaded_after_packing_stay():
    two, other = model(torch.bfloat16), {name: torch.ones_like(tensor) for name, tensor in model(torch.bfloat16).state_dict().items()}
    packed.pack(two)
    two.load_state_dict(other, assign=True)
    packed.unpack(two)
    assert all((tensor == 1).all() for tensor in two.state_dict().values())
    assert two(torch.ones(1, 1, 32).bfloat16()).eq(64 * 32).all()  # and 1, which bfloat16 has no room for


def test_no_gradient_is_lost_in_silence():
    two = model(torch.bfloat16)
    packed.pack(two)
    with pytest.raises(AssertionError, match="unpack"):
        two(torch.randn(1, 2, 32).bfloat16().requires_grad_())


@pytest.mark.parametrize("fault", ["gone", "wrong", "no library"])
def test_layers_stay_plain_where_the_operators_are_not_to_be_had(monkeypatch, fault):
    def gone(*_):
        raise AttributeError("no such operator")

    faults = {
        "gone": lambda: monkeypatch.setattr(packed, "reorder", gone),
        "wrong": lambda: monkeypatch.setattr(packed, "product", lambda x, w, bias=None: nn.functional.linear(x, w.to_dense()) + 1),
        "no library": lambda: monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False),
    }
    faults[fault]()
    packed.available.cache_clear()
    try:
        two = model(torch.bfloat16)
        if fault == "gone":
            with pytest.warns(UserWarning, match="no such operator"):
                packed.pack(two)
        else:
            packed.pack(two)
        assert two.packed is None
        assert two.out.packed is None
        assert two(torch.randn(1, 2, 32).bfloat16()).isfinite().all()
    finally:
        packed.available.cache_clear()


def test_a_pair_is_packed_on_a_cpu_and_draws_the_same_tokens(tmp_path):
    pair = load("meadow", "cpu", "bfloat16", folder=write_tiny(tmp_path))
    layers = [m for m in pair.target_model.modules() if isinstance(m, Linear | Fused)]
    assert all(m.packed is not None for m in layers if isinstance(m, Fused))
    tokens = generate(pair, "a rose", "eagle1", seed=1).tokens
    pair.unpack()
    assert all(m.packed is None for m in layers)
    assert generate(pair, "a rose", "eagle1", seed=1).tokens == tokens
    pair.to("cpu", torch.float32)
    assert all(m.packed is None for m in layers)
