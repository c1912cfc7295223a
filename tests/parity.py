"""Runs of every method, draft shape and dtype, as recorded: what a change that means to change nothing is compared with.

After a change that means to change tokens (or new weights of meadow), record anew and look at what differs:

    PYTHONPATH=. python tests/parity.py
"""

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tiny import write_tiny

import coolsd

RECORD = Path(__file__).parent / "data" / "parity.json.gz"
OWN = "[[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]"
TREES = ("chain", "mc_sim_7b_63", OWN, "dynamic")
# Five seeds, each with other settings: what a method does not use changes nothing there.
VARIANTS = (
    {"seed": 0},
    {"seed": 1, "top_k": 12, "cap": 3.0, "weight": 0.5},
    {"seed": 2, "top_p": 0.9, "temperature": 0.8, "distance": "normalised", "nu": -0.3},
    {"seed": 3, "siblings": "every", "clamp": True, "budget": 0.3},
    {"seed": 4, "cfg_scale": 1.0, "draft_length": 3, "delta": 1.2, "neighbours": 4},
)
PAIRS = {  # how many of the variants, tokens of a run, prompt
    "tiny float32": (5, 10, "a red rose"),
    "tiny bfloat16": (5, 10, "a red rose"),
    "meadow float32": (5, 4, "a purple petunia"),
}


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are split by thread: with one, a result does not depend on the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cases() -> list[tuple[str, str]]:
    """(method, tree): a tree where the method listens to one, else its chain."""
    return [(name, tree) for name, method in coolsd.METHODS.items() for tree in (TREES if "tree" in method.uses else TREES[:1])]


def figures(pair, prompt: str, settings: dict) -> dict:
    """One run in plain values: tokens exactly, probabilities to 7 digits. Kinds by round, a letter a token, capital where relaxed."""
    rounds = list(coolsd.stream(pair, prompt, **settings))
    letters = [[kind[0].upper() if relaxed else kind[0] for kind, relaxed in zip(r.kinds, r.relaxed, strict=True)] for r in rounds]
    return {
        "tokens": [token for r in rounds for token in r.tokens],
        "kinds": " ".join("".join(word) for word in letters),
        "ranks": [rank for r in rounds for rank in r.ranks],
        "drafted": [r.drafted for r in rounds],
        "draft_calls": [r.draft_calls for r in rounds],
        "accept_prob": [float(f"{f:.7g}") for r in rounds for f in r.accept_prob],
        "cost": [float(f"{cost:.7g}") for r in rounds for cost in r.cost],
    }


def loaded(name: str):
    """One of PAIRS. Tiny comes from files, so that reading them is compared too."""
    which, dtype = name.split()
    if which == "meadow":
        return coolsd.load("meadow", "cpu", dtype)
    with tempfile.TemporaryDirectory() as folder:
        return coolsd.load(write_tiny(Path(folder) / "pair"), "cpu", dtype)


def all_figures(name: str) -> dict[str, list[dict]]:
    """Every case of one of PAIRS: by "method tree", a run a variant."""
    variants, limit, prompt = PAIRS[name]
    with one_thread():
        pair = loaded(name)
        return {
            f"{method} {tree}": [
                figures(pair, prompt, {"method": method, "tree": tree, "max_tokens": limit, **variant}) for variant in VARIANTS[:variants]
            ]
            for method, tree in cases()
        }


def recorded() -> dict:
    """The record, as `record` wrote it."""
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def machine() -> str:
    """What the last bits of a sum depend on."""
    return f"torch {torch.__version__.split('+')[0]}, {torch.backends.cpu.get_cpu_capability()}"


def record() -> None:
    """Write the record anew."""
    content = {"machine": machine(), **{name: all_figures(name) for name in PAIRS}}
    RECORD.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    print(f"{RECORD}: {RECORD.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    record()
