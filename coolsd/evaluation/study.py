"""What an evaluation works with: the pair, the photos it is measured against, and where all that is slow is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ..data.features import eight_bit, features
from ..data.pictures import Record
from ..data.store import fingerprint
from ..models.pair import LoadedPair
from ..models.vq import ImageTokenizer, to_uint8
from .photos import Networks, PhotoFigures, measure
from .samples import Job, Opener, Sample, collect, collection, open_pair


@dataclass(frozen=True)
class Study:
    """Generated pictures lie in a folder named by the weights, photos' figures by the tokenizer's: new weights are measured again.

    Args:
        images, photos, networks: left out where nothing is measured against photos. workers, opener: as for `collect`.
    """

    folder: Path
    images: Path | None = None
    photos: Sequence[Record] = ()
    networks: Networks | None = None
    target: str = "meadow"
    workers: int | None = None
    opener: Opener = open_pair

    @cached_property
    def weights(self) -> str:
        """The target's fingerprint."""
        return fingerprint(self.target)

    @property
    def own(self) -> Path:
        """The folder of these weights."""
        return self.folder / self.weights

    @cached_property
    def pair(self) -> LoadedPair:
        """The pair, in the dtype of its pictures."""
        return self.opener(self.target, collection(self.own, self.target, self.opener, self.weights)["dtype"])

    def collect(self, jobs: Sequence[Job]) -> dict[str, list[Sample]]:
        """The jobs' pictures by label, in the order of the jobs, so that rows of two labels belong together."""
        samples = collect(jobs, self.own, self.target, self.workers, self.opener, self.weights)
        by_key = {(s.label, s.prompt, s.seed): s for s in samples}
        lanes: dict[str, list[Sample]] = {}
        for job in jobs:
            lanes.setdefault(job.label, []).append(by_key[job.label, job.prompt, job.seed])
        return lanes

    def measure(self, photos: Sequence[Record], reconstruct: bool = True) -> PhotoFigures:
        """Figures of photos, as `photos.measure`."""
        return measure(self.images, photos, self.pair.tokenizer, self.networks, self.folder, reconstruct)

    def pixels(self, samples: Sequence[Sample], tokenizer: ImageTokenizer | None = None) -> Tensor:
        """Pictures (N, 3, H, W) in [-1, 1], rounded to 8 bits; by the pair's tokenizer or another of the same codes."""
        tokenizer = tokenizer or self.pair.tokenizer
        codes = (torch.tensor([s.tokens], device=tokenizer.codebook.device) for s in samples)
        return eight_bit(torch.cat([tokenizer.decode(one).cpu() for one in codes]))

    def pictures(self, pixels: Tensor) -> list[Image.Image]:
        """Pictures as the tokenizer shows them."""
        rounding = self.pair.tokenizer.rounding
        return [Image.fromarray(to_uint8(one.permute(1, 2, 0).float().numpy(), rounding)) for one in pixels]

    def features(self, pixels: Tensor) -> Tensor:
        """Features (N, D) of pictures, by which they are named."""
        return features(pixels, self.networks.extract)

    def judged(self, pixels: Tensor) -> Tensor:
        """Features (N, D) of pictures by the network that no loss sees, by which they are compared with photos."""
        return features(pixels, self.networks.judge)
