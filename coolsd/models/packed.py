"""Weights of linear layers in oneDNN's own order, for passes on a CPU: otherwise the library reorders them again at every call.

The public door (torch.utils.mkldnn) converts inputs and outputs of every layer, so the private operators beneath it are used, in this
module alone. Where they are missing or give other products, nothing is packed and all works as before.
"""

import warnings
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 12  # of the inputs that the order is chosen for: a draft of five and the last token, with guidance
# Packed float32 rounds otherwise in the last bit, and gains on some processors what it loses on others (2 rows: 0.8 of the speed of plain
# products, 12 rows: 1.3); bfloat16 gives the same numbers, 1.4 times faster.
DTYPES = (torch.bfloat16,)


def reorder(weight: Tensor) -> Tensor:
    """A weight (out, in) in oneDNN's order."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)


def product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) times a packed weight, (..., out); there is no gradient, so that none may be asked for."""
    assert not (x.requires_grad and torch.is_grad_enabled()), "packed weights pass no gradient on: call pair.unpack() before training"
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@lru_cache
def available(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can be packed here, by trying: two products and the way back."""
    if dtype not in DTYPES or not torch.backends.mkldnn.is_available():
        return False
    weight = torch.linspace(-1, 1, 64 * 32).view(64, 32).to(dtype)
    x = torch.linspace(-1, 1, ROWS * 32).view(1, ROWS, 32).to(dtype)
    try:
        packed = reorder(weight)
        same = torch.equal(packed.to_dense(), weight)
        return same and all(torch.allclose(product(rows, packed), F.linear(rows, weight), atol=1e-5) for rows in (x, x[:, :1]))
    except (RuntimeError, AttributeError, TypeError) as error:
        warnings.warn(f"Weights stay as they are, so that decoding is slower: {error}", stacklevel=2)
        return False


def placeholder(weight: Tensor) -> Tensor:
    """Stands in for a weight that is packed: its shape, dtype and device, one NaN in memory."""
    return weight.new_full((), float("nan")).expand(weight.shape)


def is_placeholder(weight: Tensor) -> bool:
    """Whether the numbers are elsewhere."""
    return weight.stride() == (0, 0)


class Linear(nn.Linear):
    """nn.Linear whose weight can be packed; stored once, in one form or the other."""

    packed: Tensor | None = None

    def pack(self) -> None:
        """Put the weight into oneDNN's order."""
        if self.packed is None and not is_placeholder(self.weight):
            self.packed = reorder(self.weight.detach())
            self.weight.data = placeholder(self.weight)

    def unpack(self) -> None:
        """Undo `pack`, exactly."""
        if self.packed is not None and is_placeholder(self.weight):
            self.weight.data = self.packed.to_dense()
        self.packed = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return super().forward(x) if self.packed is None else product(x, self.packed, self.bias)


class Fused(nn.Module):
    """A module with linear layers that read the same input, whose weights can be joined to one matrix: one product in place of several.

    The layers keep their names and parameters, which become views of the matrix, or placeholders when it is packed: nothing is stored
    twice. In training, and when the parameters were moved or replaced since, the layers are used one by one.
    """

    joins: tuple[str, ...]  # names of the layers
    joined: Tensor | None = None
    packed: Tensor | None = None

    def fuse(self) -> None:
        """Join the weights; nothing happens where they are."""
        if not self.is_fused() and self.packed is None:
            self._join(torch.cat([getattr(self, name).weight.detach() for name in self.joins]))

    def _join(self, matrix: Tensor) -> None:
        self.joined = matrix
        layers = [getattr(self, name) for name in self.joins]
        for layer, part in zip(layers, matrix.split([layer.out_features for layer in layers]), strict=True):
            layer.weight.data = part

    def is_fused(self) -> bool:
        """Whether the parameters are views of the joined matrix."""
        return self.joined is not None and self.joined.data_ptr() == getattr(self, self.joins[0]).weight.data_ptr()

    def pack(self) -> None:
        """Put the joined weights into oneDNN's order."""
        if self.is_fused():
            self.packed, self.joined = reorder(self.joined), None
            for name in self.joins:
                layer = getattr(self, name)
                layer.weight.data = placeholder(layer.weight)

    def unpack(self) -> None:
        """Undo `pack`, exactly; weights that were replaced since stay."""
        if self.packed is not None and is_placeholder(getattr(self, self.joins[0]).weight):
            self._join(self.packed.to_dense())
        self.packed = None

    def products(self, x: Tensor) -> Tensor:
        """Outputs of all layers side by side, (..., in) -> (..., out of all)."""
        if self.packed is not None:
            return product(x, self.packed)
        if self.is_fused() and not self.training:
            return F.linear(x, self.joined)
        return torch.cat([getattr(self, name)(x) for name in self.joins], dim=-1)


def fuse(*models: nn.Module | None) -> None:
    """Join what can be joined in models, for inference."""
    for model in models:
        for module in model.modules() if model is not None else ():
            if isinstance(module, Fused):
                module.fuse()


def pack(*models: nn.Module | None) -> None:
    """Pack what can be packed in fused models on a CPU."""
    for model in models:
        for module in model.modules() if model is not None else ():  # a module comes before its layers
            if isinstance(module, Fused | Linear) and available(next(module.parameters()).dtype):
                module.pack()


def unpack(*models: nn.Module | None) -> None:
    """Give all layers of models their plain weights back: for gradients, state dicts, other devices, and passes under vmap."""
    for model in models:
        for module in model.modules() if model is not None else ():
            if isinstance(module, Fused | Linear):
                module.unpack()
