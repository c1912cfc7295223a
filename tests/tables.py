"""Toy models with context, their exact laws by enumeration, and a chi-square test: shared by the tests of the mathematics.

Nothing here calls the code under test for a law: everything is spelled out from the definitions, in float64.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

PASSES = 1e-6  # a correct law is refused less often than this
FAILS = 1e-9  # a negative control must be refused at this level


def random_rows(*shape: int, seed: int, sharpness: float = 2.0) -> Tensor:
    """(..., V) float64 rows of uneven probabilities."""
    rows = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** sharpness + 0.02
    return rows / rows.sum(-1, keepdim=True)


def drafted_rows(length: int = 3, vocabulary: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 rows p (L+1, V) and q (L, V), and a draft (L,) drawn from q."""
    p, q = random_rows(length + 1, vocabulary, seed=seed).float(), random_rows(length, vocabulary, seed=seed + 1).float()
    return p, q, torch.multinomial(q, 1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)


@dataclass(frozen=True)
class Toy:
    """A target p and a drafter q whose rows depend on the last two tokens: (V, V, V), indexed [before last, last]."""

    p: Tensor
    q: Tensor

    @classmethod
    def make(cls, vocabulary: int, seed: int) -> "Toy":
        p = random_rows(vocabulary, vocabulary, vocabulary, seed=seed)
        noise = random_rows(vocabulary, vocabulary, vocabulary, seed=seed + 1)
        return cls(p, 0.2 * p + 0.8 * noise)

    def rows(self, context: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
        """For contexts (B, 2) and drafts (B, L): target rows (B, L+1, V) and draft rows (B, L, V)."""
        tokens = torch.cat((context, draft), 1)
        return self.p[tokens[:, :-1], tokens[:, 1:]], self.q[tokens[:, :-2], tokens[:, 1:-1]]

    def draft(self, context: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """Drafts (B, length) drawn from q after contexts (B, 2)."""
        tokens = context
        for _ in range(length):
            token = torch.multinomial(self.q[tokens[:, -2], tokens[:, -1]], 1, generator=generator)
            tokens = torch.cat((tokens, token), 1)
        return tokens[:, 2:]


def relaxed_kept(p: Tensor, q: Tensor, omega: float) -> Tensor:
    """q min(1, ω p/q), spelled out; p and q (..., V)."""
    return q * torch.minimum(torch.ones_like(p), omega * p / q)


def relaxed_step(p: Tensor, q: Tensor, omega: float) -> Tensor:
    """Law of an emitted token: accepted plus recovered from the general residual. (..., V)."""
    kept = relaxed_kept(p, q, omega)
    excess = (p - kept).clamp(min=0)
    return kept + (1 - kept.sum(-1, keepdim=True)) * excess / excess.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Exact:
    """One round from a context, enumerated: joint law of the block completed by the target, E[N], and B."""

    law: dict[tuple[int, ...], float]
    target: dict[tuple[int, ...], float]
    accepted: float
    bias: float

    @property
    def variation(self) -> float:
        return 0.5 * sum(abs(self.law[x] - self.target[x]) for x in self.law)


def completing(law: dict[tuple[int, ...], float], p_row: Callable, length: int) -> Callable[[tuple[int, ...], float], None]:
    """add(prefix, mass): mass spread over all paths of `length` that go on from the prefix as the target does, added to `law`."""

    def add(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == length:
            law[prefix] += mass
            return
        for x, probability in enumerate(p_row(prefix).tolist()):
            add((*prefix, x), mass * probability)

    return add


def enumerate_round(p_row: Callable, q_row: Callable, omega: list[float]) -> Exact:
    """Walk every drafted prefix. `p_row(prefix)` and `q_row(prefix)` give the (V,) rows after a prefix of the round."""
    length, vocabulary = len(omega), len(p_row(()))
    law, target = Counter(), {}
    for path in product(range(vocabulary), repeat=length):
        target[path] = float(torch.stack([p_row(path[:i])[x] for i, x in enumerate(path)]).prod())
        law[path] += 0.0
    accepted = bias = 0.0
    completed = completing(law, p_row, length)

    def drafted(prefix: tuple[int, ...], mass: float) -> None:
        nonlocal accepted, bias
        if len(prefix) == length:
            law[prefix] += mass
            return
        p, q = p_row(prefix), q_row(prefix)
        kept = relaxed_kept(p, q, omega[len(prefix)])
        emitted = relaxed_step(p, q, omega[len(prefix)])
        accepted += mass * float(kept.sum())
        bias += mass * 0.5 * float((emitted - p).abs().sum())
        for x in range(vocabulary):
            completed((*prefix, x), mass * float(emitted[x] - kept[x]))
            drafted((*prefix, x), mass * float(kept[x]))

    drafted((), 1.0)
    return Exact(dict(law), target, accepted, bias)


def chi_square(observed: Tensor, law: Tensor) -> float:
    """p-value that the counts (rows, V) were drawn row by row from the laws (rows, V).

    Cells that expect fewer than 5 join the smallest other cell of their row.
    """
    statistic, freedom = 0.0, 0
    for row, probability in zip(observed.double(), law.double(), strict=True):
        if bool((row[probability == 0] > 0).any()):
            return 0.0
        expected = row.sum() * probability
        large = expected >= 5
        if int(large.sum()) < 2:
            continue
        smallest = expected.masked_fill(~large, torch.inf).argmin()
        group = torch.where(large, torch.arange(len(row)), smallest)
        o, e = (torch.zeros_like(expected).index_add_(0, group, cells)[large] for cells in (row, expected))
        statistic += float(((o - e) ** 2 / e).sum())
        freedom += len(o) - 1
    assert freedom > 0, "too few observations for a test"
    return float(
        torch.special.gammaincc(torch.tensor(freedom / 2.0, dtype=torch.float64), torch.tensor(statistic / 2.0, dtype=torch.float64))
    )


def counts(rows: Tensor, tokens: Tensor, shape: tuple[int, int]) -> Tensor:
    """How often token t came in row r: (rows, V) float64."""
    return torch.bincount(rows * shape[1] + tokens, minlength=shape[0] * shape[1]).view(shape).double()
