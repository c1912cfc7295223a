"""A pair made of tables, for testing the engine without weights: the law of a token depends on the last two tokens."""

from dataclasses import dataclass, field

import torch
from PIL import Image
from tables import Toy
from torch import Tensor

from coolsd.models.protocols import Draft, Step
from coolsd.sampling import draw


@dataclass
class ToyTarget:
    toy: Toy
    committed: list[int] = field(default_factory=list)
    last: list[list[int]] = field(default_factory=list)
    passes: int = 0

    def _step(self, contexts: list[list[int]]) -> Step:
        rows = torch.stack([self.toy.p[tuple([0, 0, *c][-2:])] for c in contexts])
        return Step(rows.log().float(), torch.zeros(1, len(contexts), 1))

    def prefill(self, prompt: str) -> Step:
        self.passes += 1
        return self._step([[]])

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        self.passes += 1
        self.last = []
        for token, parent in zip(tokens.tolist(), parents, strict=True):
            self.last.append([*(self.committed if parent < 0 else self.last[parent]), token])
        return self._step(self.last)

    def keep(self, path: list[int]) -> None:
        self.committed = self.last[path[-1]]
        assert [len(self.last[i]) for i in path] == list(range(len(self.committed) - len(path) + 1, len(self.committed) + 1))


@dataclass
class ToyDrafter:
    toy: Toy
    seen: list[int] = field(default_factory=list)
    lie: bool = False  # report rows it did not draw from

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        self.seen += tokens.tolist()

    def propose(self, shape, to_probs, generator) -> Draft:
        assert shape == tuple(range(-1, len(shape) - 1))
        context, tokens, rows = list(self.seen), [], []
        for _ in shape:
            row = to_probs(self.toy.q[tuple([0, 0, *context][-2:])].log().float()[None])[0]
            tokens.append(int(draw(row, generator)))
            context.append(tokens[-1])
            rows.append(row.flip(0) if self.lie else row)
        return Draft(torch.tensor(tokens), torch.stack(rows), shape, len(shape))


@dataclass
class ToyPair:
    toy: Toy
    grid: tuple[int, int] = (1, 6)
    name: str = "toy"
    drafts: bool = True
    lie: bool = False
    environment: dict = field(default_factory=dict)
    target: ToyTarget | None = None

    def begin(self, cfg_scale: float):
        self.target = ToyTarget(self.toy)
        return self.target, ToyDrafter(self.toy, lie=self.lie) if self.drafts else None

    def picture(self, tokens: list[int]) -> Image.Image:
        return Image.new("RGB", (8, 8))
