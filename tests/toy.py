"""A pair made of tables, for testing the engine without weights: the law of a token depends on the last two tokens."""

from dataclasses import dataclass, field

import torch
from PIL import Image
from tables import Toy
from torch import Tensor

from coolsd.protocols import Draft, Step
from coolsd.sampling import pick_distinct, uniforms
from coolsd.trees import Dynamic, children


@dataclass
class ToyTarget:
    toy: Toy
    committed: list[int] = field(default_factory=list)
    last: list[list[int]] = field(default_factory=list)
    passes: int = 0

    def answer(self, contexts: list[list[int]]) -> Step:
        rows = torch.stack([self.toy.p[tuple([0, 0, *c][-2:])] for c in contexts])
        return Step(rows.log().float(), torch.zeros(1, len(contexts), 1))

    def prefill(self, prompt: str) -> Step:
        self.passes += 1
        return self.answer([[]])

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        self.passes += 1
        self.last = []
        for token, parent in zip(tokens.tolist(), parents, strict=True):
            self.last.append([*(self.committed if parent < 0 else self.last[parent]), token])
        return self.answer(self.last)

    def keep(self, path: list[int]) -> None:
        self.committed = self.last[path[-1]]
        assert [len(self.last[i]) for i in path] == list(range(len(self.committed) - len(path) + 1, len(self.committed) + 1))


@dataclass
class ToyDrafter:
    toy: Toy
    history: list[int] = field(default_factory=list)
    lie: bool = False  # report rows it did not draw from

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        self.history += tokens.tolist()

    def _row(self, path: tuple[int, ...]) -> Tensor:
        return self.toy.q[tuple([0, 0, *self.history, *path][-2:])].float()

    def review(self, p, draft, accepted, generator) -> None:
        pass

    def propose(self, shape, to_probs, generator) -> Draft:
        if isinstance(shape, Dynamic):
            return self._ranked(shape)
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        rows: list[Tensor] = [torch.empty(0)] * len(shape)
        for parent, nodes in enumerate(children(shape), -1):
            if nodes:
                row = to_probs(self._row(paths[parent]).log()[None])[0]
                for node, token in zip(nodes, draw_distinct(row, len(nodes), generator).tolist(), strict=True):
                    paths[node] = (*paths[parent], token)
                    rows[node] = row.flip(0) if self.lie else row
        calls = max(map(len, paths.values()))
        return Draft(torch.tensor([paths[node][-1] for node in range(len(shape))]), torch.stack(rows), shape, calls)

    def _ranked(self, shape: Dynamic) -> Draft:
        """The most confident paths; with few codes every level keeps all that its parents have."""
        result, level = {}, {(): 1.0}
        for _ in range(shape.depth):
            widest = sorted(level, key=level.__getitem__, reverse=True)[: shape.top_k]
            level = {(*path, token): level[path] * float(self._row(path)[token]) for path in widest for token in range(len(self.toy.q))}
            result |= level
        best = sorted(sorted(result, key=result.__getitem__, reverse=True)[: shape.nodes], key=lambda path: (len(path), -result[path]))
        place = {(): -1} | {path: i for i, path in enumerate(best)}
        tokens = torch.tensor([path[-1] for path in best])
        rows = torch.nn.functional.one_hot(tokens, len(self.toy.q)).float()
        if self.lie:
            rows = torch.stack([self._row(path[:-1]) for path in best])
        return Draft(tokens, rows, tuple(place[path[:-1]] for path in best), shape.depth)


@dataclass
class ToyPair:
    toy: Toy
    grid: tuple[int, int] = (1, 6)
    name: str = "toy"
    drafts: bool = True
    lie: bool = False
    environment: dict = field(default_factory=dict)
    target: ToyTarget | None = None
    codebook: Tensor = field(default_factory=lambda: torch.tensor([[0.0, 1.0], [0.5, 0.5], [2.0, 0.0]]))

    def begin(self, cfg_scale: float):
        self.target = ToyTarget(self.toy)
        return self.target, ToyDrafter(self.toy, lie=self.lie) if self.drafts else None

    def picture(self, tokens: list[int]) -> Image.Image:
        return Image.new("RGB", (8, 8))

    def free(self) -> None:
        pass


def draw_distinct(probs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` tokens a row by `pick_distinct`, with numbers from a generator."""
    return pick_distinct(probs, uniforms((count, *probs.shape[:-1]), generator, probs.device))
