"""What meadow is asked to paint when it is measured: 30 fixed prompts, chosen before any picture was seen, and captions of valid photos."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.captions import COLOURS, PLACES
from ..data.pictures import Row
from ..models.catalog import sampling_defaults
from ..settings import SETTINGS
from .photos import chosen

DEFAULTS = {**sampling_defaults("meadow"), "temperature": SETTINGS["temperature"].default}


@dataclass(frozen=True)
class Asked:
    """A prompt with what its picture must show: a kind of the photos, and a colour word of the petals or a trait of the scene."""

    prompt: str
    kind: str
    colour: str = ""
    trait: str = ""


FLOWERS = (
    Asked("a red rose on a dark background", "rose", "red"),
    Asked("a white passion flower", "passion flower", "white"),
    Asked("a purple petunia", "petunia", "purple"),
    Asked("an orange wallflower", "wallflower", "orange"),
    Asked("a pink foxglove on a green background", "foxglove", "pink"),
    Asked("a pink lotus", "lotus lotus", "pink"),
    Asked("a red hibiscus", "hibiscus", "red"),
    Asked("a yellow sunflower", "sunflower", "yellow"),
    Asked("a yellow daffodil", "daffodil", "yellow"),
    Asked("a blue morning glory", "morning glory", "blue"),
    Asked("a pink bougainvillea", "bougainvillea", "pink"),
    Asked("a red geranium", "geranium", "red"),
    Asked("an orange gazania", "gazania", "orange"),
    Asked("a white magnolia", "magnolia", "white"),
    Asked("a yellow dandelion", "common dandelion", "yellow"),
)
SCENES = (
    Asked("a misty forest", "forest", trait="mist"),
    Asked("a forest in autumn", "forest", trait="autumn"),
    Asked("a snowy forest", "forest", trait="snow"),
    Asked("a forest at night", "forest", trait="night"),
    Asked("a mountain under a blue sky", "mountain", trait="blue sky"),
    Asked("sunset over a mountain", "mountain", trait="sunset"),
    Asked("snow on a mountain", "mountain", trait="snow"),
    Asked("a mountain in autumn", "mountain", trait="autumn"),
    Asked("a glacier under a blue sky", "glacier", trait="blue sky"),
    Asked("a glacier under an overcast sky", "glacier", trait="overcast"),
    Asked("fog over a glacier", "glacier", trait="mist"),
    Asked("sunset over the sea", "sea", trait="sunset"),
    Asked("the sea under a blue sky", "sea", trait="blue sky"),
    Asked("the sea on a cloudy day", "sea", trait="overcast"),
    Asked("the sea at night", "sea", trait="night"),
)
FIXED = FLOWERS + SCENES


def valid_prompts(photos: Sequence[Row], count: int) -> list[Asked]:
    """Captions of `count` valid photos, one wording each, drawn alike each time; more than there are photos: further wordings."""
    valid, random = chosen(photos, "valid"), np.random.default_rng(1)
    found = []
    for i in range(count):
        photo = valid[i % len(valid)]
        wording = photo.wordings[random.integers(len(photo.wordings))]
        words = set(wording.split())
        colours = [colour for colour in COLOURS if colour in words] if photo.label not in PLACES else []
        found.append(Asked(wording, photo.label, colours[0] if len(colours) == 1 else ""))
    return found
