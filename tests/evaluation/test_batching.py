"""Pictures decoded at once are those decoded one by one."""

from dataclasses import replace

import pytest
import torch
from static import static, tokens
from tiny import tiny_pair

from coolsd.evaluation import batching
from coolsd.evaluation.batching import PassBatcher, neighbours


def batcher(ordinary, lanes=5):
    """The pair whose pictures are decoded at once."""
    pair = replace(ordinary)
    pair.workspaces = PassBatcher(pair.caches, lanes)
    return pair


@pytest.mark.parametrize("method", ["ar", "eagle1", "coolsd", "block", "lantern"])
@pytest.mark.parametrize("block", [8, 64])
def test_the_same_tokens(method, block, monkeypatch):
    monkeypatch.setattr(batching, "BLOCK", block)
    pair = batcher(tiny_pair())
    result = pair.workspaces.map(lambda seed: tokens(pair, method, seed=seed), range(5))
    assert result == [tokens(tiny_pair(), method, seed=seed) for seed in range(5)]
    again = pair.workspaces.map(lambda seed: tokens(pair, method, seed=seed, cfg_scale=1.0), range(7, 10))  # fewer, and other caches
    assert again == [tokens(tiny_pair(), method, seed=seed, cfg_scale=1.0) for seed in range(7, 10)]


@pytest.mark.parametrize("method", ["ar", "coolsd"])
def test_lumina_too(lumina, method):
    pair = batcher(lumina)
    result = pair.workspaces.map(lambda seed: tokens(pair, method, seed=seed), range(4))
    assert result == [tokens(lumina, method, seed=seed) for seed in range(4)]


def test_methods_and_trees_may_differ():
    pair = batcher(tiny_pair())
    request = [("coolsd", "mc_sim_7b_63"), ("ar", "auto"), ("eagle1", "dynamic"), ("coolsd", "chain"), ("ar", "auto")]
    result = pair.workspaces.map(lambda job: tokens(pair, *job), request)
    assert result == [tokens(tiny_pair(), *job) for job in request]


def test_passes_are_shared(monkeypatch):
    pair, calls, vmap = batcher(tiny_pair()), [], torch.vmap

    def counting(fn):
        return lambda stacks, *inputs: calls.append(len(inputs[0])) or vmap(fn)(stacks, *inputs)

    monkeypatch.setattr(torch, "vmap", counting)
    pair.workspaces.map(lambda seed: tokens(pair, "ar", seed=seed), range(5))
    assert calls == [5] * 15  # all but the first of sixteen tokens


def test_an_error_belongs_to_its_picture():
    pair = batcher(tiny_pair())

    def work(seed: int):
        if seed == 2:
            raise ValueError("no such picture")
        return tokens(pair, "eagle1", seed=seed)

    with pytest.raises(ValueError, match="no such picture"):
        pair.workspaces.map(work, range(5))
    assert pair.workspaces.map(lambda seed: tokens(pair, "eagle1", seed=seed), [1]) == [tokens(tiny_pair(), "eagle1", seed=1)]


def test_a_broken_pass_is_everybodys(monkeypatch):
    pair = batcher(tiny_pair())

    def broken(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "vmap", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        pair.workspaces.map(lambda seed: tokens(pair, "eagle1", seed=seed), range(5))


def test_sessions_of_other_threads_work_alone():
    pair = batcher(tiny_pair())
    assert tokens(pair, "coolsd") == tokens(tiny_pair(), "coolsd") == tokens(static(tiny_pair()), "coolsd")


def test_runs_without_a_gap():
    request = [batching.PassRequest(None, lane, None, (), []) for lane in (0, 1, 3, 4, 5, 8)]
    assert [[a.lane for a in run] for run in neighbours(request)] == [[0, 1], [3, 4, 5], [8]]
