"""Jacobi drafting: the target drafts for itself, so that no drafter is needed (SJD, arXiv 2410.01699; coupled: arXiv 2510.24211).

One pass looks at the last token and a window of guesses; besides verifying the first ones it gives rows for all the others, from which
the next window is drawn. Knows nothing of models or rounds. p is the target row of this pass, q the row a guess was drawn from.

A guess that was not tested is drawn anew from this pass's row: independently, or coupled with its old token so that it usually stays.
Either way its law is that row, so that row is what is stored as its q. Storing the old row for a token that stayed biases the picture
(derived; tests enumerate both). Slots without a row hold a pad: a code that was not drawn, whose q is one-hot.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .protocols import Draft, ToProbs
from .rules import norm_residual
from .sampling import pick, uniforms
from .trees import Shape

Redraw = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # p (n, V), q (n, V), tokens (n,), uniform (2, n) to tokens (n,)


def independent(p: Tensor, q: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """New tokens from p, whatever was there (SJD)."""
    return pick(p, uniform[1])


def maximal(p: Tensor, q: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """New tokens from p that are the old ones as often as any coupling allows: with probability 1 - TV(p, q).

    Keep x with probability min(1, p/q), else draw from Norm([p - q]_+): a speculative sampling step of its own.
    """
    index = tokens[:, None]
    keep = uniform[0] < (p.gather(-1, index) / q.gather(-1, index)).squeeze(-1)
    return torch.where(keep, tokens, pick(norm_residual(p - q, p), uniform[1]))


def gumbel(p: Tensor, noise: Tensor) -> Tensor:
    """argmax(log p + g): a draw from p that stays the same where p changes little, if the noise g stays (Gumbel coupling).

    Args:
        p: (n, V). noise: (n, V) standard Gumbel numbers, fixed for each cell of the picture.
    """
    return (p.log() + noise).argmax(-1)


COUPLINGS: dict[str, Redraw | None] = {"maximal": maximal, "gumbel": None, "independent": independent}


class JacobiDrafter:
    """Implements protocols.Drafter without a model of its own: `review` takes the rows of a target pass, `propose` gives the next window.

    Args:
        slots: guesses a pass, one less than the tokens it reads. columns: of the picture, for the pads "repeat".
        coupling: a name of COUPLINGS. pads: "random" codes, or "repeat" the code to the left, at a row's start the one above.
    """

    def __init__(self, slots: int, columns: int, coupling: str, pads: str):
        self.slots, self.columns, self.coupling, self.pads = slots, columns, coupling, pads
        self.cells = torch.empty(0, dtype=torch.long)  # committed codes
        self.tokens = self.q = self.noise = None  # guesses (n,) behind them with the rows they are draws of; noise (slots, V)

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed tokens (t,); the features are not used."""
        self.cells = torch.cat([self.cells.to(tokens.device), tokens])

    def review(self, p: Tensor, draft: Draft, accepted: int, generator: Generator) -> None:
        """Draw the guesses behind the first rejection anew from this pass's rows.

        Args:
            p: (L+1, V) the rows of the pass over the draft. accepted: so many of its tokens were; the next position is committed too.
        """
        rows = p[accepted + 1 :]  # of the guesses that were not tested, and of the position behind the last
        count = len(rows)
        uniform = uniforms((2, self.slots), generator, p.device)[:, :count]
        if self.coupling == "gumbel":
            self.tokens, self.q = gumbel(rows, self._noise_behind(accepted + 1, p, generator)[:count]), rows
            return
        redraw = COUPLINGS[self.coupling]
        untested = slice(accepted + 1, None)
        old = redraw(rows[:-1], draft.q[untested], draft.tokens[untested], uniform[:, : max(count - 1, 0)])
        self.tokens, self.q = torch.cat([old, pick(rows[-1:], uniform[1, count - 1 : count])]), rows

    def _noise_behind(self, emitted: int, p: Tensor, generator: Generator) -> Tensor:
        """Noise (slots, V) of the cells behind the committed ones; a cell keeps its own."""
        fresh = self.slots if self.noise is None else min(emitted, self.slots)
        new = uniforms((fresh, p.shape[-1]), generator, p.device).clamp(min=torch.finfo(torch.float64).tiny)
        new = -(-new.log()).log()
        self.noise = new if self.noise is None else torch.cat([self.noise[fresh:], new])
        return self.noise

    def propose(self, shape: Shape, to_probs: ToProbs, generator: Generator) -> Draft:
        """The window, filled up with pads; it spends no drafter call."""
        count, have = len(shape), min(len(self.tokens), len(shape))
        codes = self.q.shape[-1]
        pads = self._repeated(count - have, have) if self.pads == "repeat" else self._random(codes, generator)[: count - have]
        tokens = torch.cat([self.tokens[:have], pads])
        return Draft(tokens, torch.cat([self.q[:have], F.one_hot(pads, codes).to(self.q.dtype)]), shape, 0)

    def _random(self, codes: int, generator: Generator) -> Tensor:
        return (uniforms((self.slots,), generator, self.cells.device) * codes).long()

    def _repeated(self, count: int, have: int) -> Tensor:
        """Codes (count,) of the cells behind the guesses, each that of the nearest cell to the left, or above, that is no pad."""
        first = len(self.cells) + have
        source: dict[int, int] = {}
        for cell in range(first, first + count):
            near = cell - self.columns if cell % self.columns == 0 and cell >= self.columns else cell - 1
            source[cell] = source.get(near, near)
        index = torch.tensor(list(source.values()), dtype=torch.long).to(self.cells.device, non_blocking=True)
        return torch.cat([self.cells, self.tokens[:have]])[index]
