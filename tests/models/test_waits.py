"""On a GPU a round waits for the device once: decoding on a pretended one, with every wait counted, gives the CPU's tokens."""

import pytest
import torch
from far import THERE, Far, Waits, move
from tiny import tiny_pair

from coolsd import METHODS, stream
from coolsd.models.cuda_graphs import Workspaces

OWN = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 1, 0], [0, 1, 1]]
TREES = ("chain", OWN, "dynamic")
COPY = "copy to the host"
CASES = [(name, "auto", {}) for name in METHODS]
CASES += [("coolsd", tree, {"siblings": siblings}) for tree in TREES[1:] for siblings in ("salvage", "every")]
CASES += [("lantern", tree, {"budget": 0.6, "neighbours": 9}) for tree in TREES]


def far_pair():
    """The tiny pair over there, with the GPU's path."""
    pair = tiny_pair.__wrapped__()
    with Waits():
        for module in (pair.target_model, pair.drafter_model, pair.tokenizer.vqvae):
            move(module)
        pair.target_rope, pair.drafter_rope = Far(pair.target_rope), Far(pair.drafter_rope)
        pair.workspaces = Workspaces(pair.caches, None)
    return pair


@pytest.fixture(autouse=True)
def _views(monkeypatch):
    """Inference mode has no views of tensors like these."""
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)


@pytest.mark.parametrize(("method", "tree", "settings"), CASES, ids=str)
def test_a_round_waits_once_and_the_tokens_are_the_cpus(method, tree, settings):
    settings = {"cfg_scale": 3.0, "draft_length": 4, "top_k": 20, "delta": 2.0, "tree": tree} | settings
    ranked = tree == "dynamic" or (tree, method) == ("auto", "lantern")
    expected = list(stream(tiny_pair(), "a red rose", method, seed=1, **settings))
    result = []
    with Waits() as waits:
        for event in stream(far_pair(), "a red rose", method, seed=1, **settings):
            # The prompt and the first round set up tables that the others use. A ranked draft's shape is the host's to know.
            if event.index > 1:
                assert waits.events == [COPY] * (1 + (ranked and event.drafted > 0))
            result.append(event)
            waits.events.clear()
    assert [r.tokens for r in result] == [r.tokens for r in expected]
    for one, other in zip(result, expected, strict=True):
        assert one.relaxed == other.relaxed
        assert one.accept_prob == pytest.approx(other.accept_prob, abs=1e-4)
        assert one.cost == pytest.approx(other.cost, abs=1e-4)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-3)
        assert (one.drafts is None) == (other.drafts is None)
        if one.drafts:
            assert one.drafts.outcome == other.drafts.outcome
            assert [x for x in one.drafts.u if x is not None] == pytest.approx([x for x in other.drafts.u if x is not None], abs=1e-3)


LOOKS = {
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "masked set": lambda x: x.__setitem__(x > 1, 0.0),
    "upload": lambda x: torch.ones(2).to(THERE),
    "list index": lambda x: x[[0, 1]],
    "new": lambda x: x + torch.tensor([1.0], device=x.device),
}


@pytest.mark.parametrize("name", LOOKS)
def test_control_what_waits_is_seen(name):
    with torch.inference_mode(), Waits() as waits:
        x = torch.tensor([1.0, 2.0]).to(THERE, non_blocking=True)
        (x + torch.arange(2, device=THERE)).cumsum(0)[x.argmax()[None]]
        assert waits.events == []
        refused = False
        try:
            LOOKS[name](x)
        except AssertionError:
            refused = True
        assert refused or len(waits.events) == 1
