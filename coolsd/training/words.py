"""The words of a pair's domain, from the captions that it was trained on."""

from collections.abc import Iterable
from pathlib import Path

from ..data.captions import HUES, PLACES
from ..data.pictures import read_records
from ..models.checksums import refresh
from ..models.prompt_domain import PromptDomain, split

# What captions say besides the thing itself: grammar, colours, and how a photo was taken.
GRAMMAR = {"a", "an", "the", "of", "on", "in", "at", "with", "under", "over", "and", "up", "close"}
LOOKS = {*HUES, "black", "white", "grey", "golden", "dark", "light", "deep", "photo", "background", "day"}
BESIDES = GRAMMAR | LOOKS


def things(captions: Path) -> set[str]:
    """Words that stand for a thing: the last word of a label; of places, and where there is no label, of all wordings.

    Args:
        captions: CSV with columns label and captions (wordings joined by '|'), as `train captions` writes it.

    Raises:
        ValueError: there is no such column, or no line.
    """
    words: set[str] = set()
    for row in read_records(captions, ("captions",)):
        label = split(row.label)
        if label and row.label not in PLACES:
            words |= {label[-1], "flower"}
        else:
            words |= set(split(row.captions)) - BESIDES
    return words


def write_words(
    captions: Path, pair: Path, about: str, examples: Iterable[str], also: Iterable[str], without: Iterable[str]
) -> PromptDomain:
    """Write words.json into a pair's folder.

    Args:
        about: what the pair paints. examples: prompts to offer. also: words to count as its own. without: words not to.
    """
    domain = PromptDomain(about, frozenset((things(captions) | set(also)) - set(without)), tuple(examples))
    domain.save(pair)
    refresh(pair)
    return domain
