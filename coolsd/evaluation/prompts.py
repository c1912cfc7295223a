"""Evaluation prompts for meadow: 30 fixed ones, chosen before any picture was seen, and captions of valid photos."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.captions import COLOURS, PLACES
from ..data.pictures import Record
from ..models.catalog import sampling_defaults
from ..settings import SETTINGS
from .photos import chosen

DEFAULTS = {**sampling_defaults("meadow"), "temperature": SETTINGS["temperature"].default}


@dataclass(frozen=True)
class PromptCase:
    """A prompt with what its picture must show: a kind of the photos, and a colour word of the petals or a trait of the scene."""

    prompt: str
    kind: str
    colour: str = ""
    trait: str = ""


FLOWERS = (
    PromptCase("a red rose on a dark background", "rose", "red"),
    PromptCase("a white passion flower", "passion flower", "white"),
    PromptCase("a purple petunia", "petunia", "purple"),
    PromptCase("an orange wallflower", "wallflower", "orange"),
    PromptCase("a pink foxglove on a green background", "foxglove", "pink"),
    PromptCase("a pink lotus", "lotus lotus", "pink"),
    PromptCase("a red hibiscus", "hibiscus", "red"),
    PromptCase("a yellow sunflower", "sunflower", "yellow"),
    PromptCase("a yellow daffodil", "daffodil", "yellow"),
    PromptCase("a blue morning glory", "morning glory", "blue"),
    PromptCase("a pink bougainvillea", "bougainvillea", "pink"),
    PromptCase("a red geranium", "geranium", "red"),
    PromptCase("an orange gazania", "gazania", "orange"),
    PromptCase("a white magnolia", "magnolia", "white"),
    PromptCase("a yellow dandelion", "common dandelion", "yellow"),
)
SCENES = (
    PromptCase("a misty forest", "forest", trait="mist"),
    PromptCase("a forest in autumn", "forest", trait="autumn"),
    PromptCase("a snowy forest", "forest", trait="snow"),
    PromptCase("a forest at night", "forest", trait="night"),
    PromptCase("a mountain under a blue sky", "mountain", trait="blue sky"),
    PromptCase("sunset over a mountain", "mountain", trait="sunset"),
    PromptCase("snow on a mountain", "mountain", trait="snow"),
    PromptCase("a mountain in autumn", "mountain", trait="autumn"),
    PromptCase("a glacier under a blue sky", "glacier", trait="blue sky"),
    PromptCase("a glacier under an overcast sky", "glacier", trait="overcast"),
    PromptCase("fog over a glacier", "glacier", trait="mist"),
    PromptCase("sunset over the sea", "sea", trait="sunset"),
    PromptCase("the sea under a blue sky", "sea", trait="blue sky"),
    PromptCase("the sea on a cloudy day", "sea", trait="overcast"),
    PromptCase("the sea at night", "sea", trait="night"),
)
FIXED = FLOWERS + SCENES


def valid_prompts(photos: Sequence[Record], count: int) -> list[PromptCase]:
    """Captions of `count` valid photos, one wording each, drawn alike each time; more than there are photos: further wordings."""
    valid, random = chosen(photos, "valid"), np.random.default_rng(1)
    cases = []
    for i in range(count):
        photo = valid[i % len(valid)]
        wording = photo.wordings[random.integers(len(photo.wordings))]
        words = set(wording.split())
        colours = [colour for colour in COLOURS if colour in words] if photo.label not in PLACES else []
        cases.append(PromptCase(wording, photo.label, colours[0] if len(colours) == 1 else ""))
    return cases
