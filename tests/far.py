"""A pretended GPU: tensors "over there" whose values live on the CPU, and a count of what would make the host wait for them."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

THERE = torch.device("meta")  # a device that torch takes without having it; no real tensor of it comes up here
LOOKS = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "equal",
    "allclose",
    "unique_dim",
    "_unique2",
}
MOVES = {"to", "_to_copy", "copy_"}


class Far(Tensor):
    """A tensor over there; `near` holds its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        far = Tensor._make_wrapper_subclass(cls, near.shape, strides=near.stride(), dtype=near.dtype, device=THERE)
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of Waits")

    def tolist(self) -> Any:
        return self.cpu().tolist()


def _index_of_bools(name: str, args: tuple) -> bool:
    return name in ("index", "index_put", "index_put_") and any(x is not None and x.dtype == torch.bool for x in args[1])


class Waits(TorchDispatchMode):
    """Runs everything on the CPU and notes in `events` each operation after which a GPU's host would have waited.

    That is every copy to the host, every copy to the GPU that is not `non_blocking`, and every operation whose result's shape depends
    on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        assert all(isinstance(x, Far) or x.device != THERE for x in tensors), "a tensor made over there from the host's values: it waits"
        far = any(isinstance(x, Far) for x in tensors)
        request = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.device)), None)
        there = far if request is None else request == THERE
        if name in MOVES:
            source, goal = (isinstance(args[1], Far), isinstance(args[0], Far)) if name == "copy_" else (far, there)
            blocking = not (kwargs.get("non_blocking") or any(x is True for x in args[1:3]))
            if source and not goal:
                self.events.append("copy to the host")
            elif goal and not source and blocking:
                self.events.append("blocking copy from the host")
        elif far and (name in LOOKS or _index_of_bools(name, args)):
            self.events.append(name)
        else:
            mixed = far and any(not isinstance(x, Far) and x.ndim for x in tensors)
            assert not mixed, f"{name} of tensors here and there"

        def nearer(x: Any) -> Any:
            return x.near if isinstance(x, Far) else torch.device("cpu") if x == THERE and isinstance(x, torch.device) else x

        out = func(*tree_map(nearer, args), **tree_map(nearer, kwargs))
        return tree_map(lambda x: Far(x) if there and isinstance(x, Tensor) else x, out)


def move(module: torch.nn.Module) -> None:
    """Put a module's parameters and buffers over there."""
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            table.update({name: Far(x.detach()) for name, x in table.items() if x is not None})
