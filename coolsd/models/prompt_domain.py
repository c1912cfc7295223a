"""The domain of a small pair, by the words it was trained on, and whether a prompt lies outside.

A small pair was trained on few subjects; for any other it draws one of these, and the person should learn why. Derived: a prompt is inside
when one of its words is a word of the domain, or lies near one in the pair's own text table.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .checkpoints import LoadError, read_json

FILE = "words.json"
QUOTED = 80  # characters of what was not read that are repeated
NEAR = 0.5  # cosine from which a word counts as near one of the domain; chosen on the words of tests/models/test_prompt_domain.py


@dataclass(frozen=True)
class PromptDomain:
    """about: what the pair paints, in a few words; words: things in its captions; examples: prompts that it can follow."""

    about: str
    words: frozenset[str]
    examples: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path) -> "PromptDomain | None":
        """From a pair's words.json; None where there is none.

        Raises:
            LoadError: the file is broken.
        """
        path = folder / FILE
        if not path.exists():
            return None
        data = read_json(path)
        lists = [data.get(name) for name in ("words", "examples")]
        if not isinstance(data.get("about"), str) or not all(isinstance(x, list) and all(isinstance(w, str) for w in x) for x in lists):
            raise LoadError(f"{FILE} in {folder} lacks about, words or examples; write it with `python -m coolsd train words`.")
        return cls(data["about"], frozenset(lists[0]), tuple(lists[1]))

    def save(self, folder: Path) -> None:
        """Write words.json."""
        data = {"about": self.about, "examples": list(self.examples), "words": sorted(self.words)}
        (folder / FILE).write_text(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def split(prompt: str) -> list[str]:
    """The words of a prompt, in lower case."""
    return re.findall(r"[^\W\d_]+", prompt.lower())


def is_known(word: str, words: frozenset[str]) -> bool:
    """Whether the word, or its singular, is one of these."""
    singulars = (word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    return word in words or (word.endswith("s") and any(form in words for form in singulars))


class Near:
    """Cosine similarity of words to those of a domain that the table holds in one piece: the pieces of rarer words mean other things."""

    def __init__(self, domain: PromptDomain, tokenizer: Any, table: Tensor):
        self.tokenizer, self.table = tokenizer, table
        whole = [ids for ids in map(self._ids, sorted(domain.words)) if len(ids) == 1]
        self.rows = F.normalize(table[torch.tensor(whole, dtype=torch.long).flatten()].float(), dim=-1)

    def _ids(self, word: str) -> list[int]:
        return self.tokenizer.encode(word, add_special_tokens=False).ids

    def __call__(self, word: str) -> float:
        """The highest cosine, in [-1, 1]; -1 where there is nothing to compare."""
        ids = self._ids(word)
        if not ids or not len(self.rows):
            return -1.0
        return float((self.rows @ F.normalize(self.table[torch.tensor(ids)].float().mean(0), dim=0)).max())


def outside(text: Any, prompt: str) -> bool:
    """Whether a prompt names nothing of the domain of a text table; False where its domain is not known."""
    domain = getattr(text, "domain", None)
    if domain is None or any(is_known(word, domain.words) for word in split(prompt)):
        return False
    near = Near(domain, text.tokenizer, text.table)
    return all(near(word) < NEAR for word in split(prompt))


def notice(pair: Any, prompt: str) -> str:
    """What to know about a prompt: that it lies outside the pair's domain, or that its end was not read; empty where there is nothing."""
    return " ".join(filter(None, (_outside(pair, prompt), _unread(pair, prompt))))


def _outside(pair: Any, prompt: str) -> str:
    text = getattr(pair, "text", None)
    if not outside(text, prompt):
        return ""
    examples = ", ".join(f"“{example}”" for example in text.domain.examples)
    return f"{pair.name} paints {text.domain.about}, so this prompt gets its nearest picture. It can follow: {examples}."


def _unread(pair: Any, prompt: str) -> str:
    text = getattr(pair, "text", None)
    end = text.unread(prompt).strip() if hasattr(text, "unread") else ""
    if not end:
        return ""
    quoted = end if len(end) <= QUOTED else f"{end[:QUOTED].rstrip()} …"
    return f"The prompt is too long: {pair.name} reads {text.length} text tokens, and left out “{quoted}”."
