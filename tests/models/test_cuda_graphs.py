"""The GPU's path on a CPU: static shapes give the tokens of the ordinary path, and recordings are used as a GPU would use them."""

import gc

import pytest
import torch
from static import replayed, static, tokens
from tiny import tiny_pair

from coolsd import generate, stream
from coolsd.models import cuda_graphs
from coolsd.models.cuda_graphs import GraphCache

TREES = ["chain", [[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]], "mc_sim_7b_63", "dynamic"]


@pytest.mark.parametrize("record", [None, replayed], ids=["eager", "recorded"])
@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_static_shapes_give_the_same_tokens(record, tree, scale):
    pair = static(tiny_pair(), record)
    for seed in (1, 2):
        expected = tokens(tiny_pair(), "coolsd", tree, seed, cfg_scale=scale)
        assert tokens(pair, "coolsd", tree, seed, cfg_scale=scale) == expected
    assert tokens(pair, "eagle1", tree, temperature=0) == tokens(tiny_pair(), "ar", temperature=0)


@pytest.mark.parametrize("record", [None, replayed], ids=["eager", "recorded"])
def test_plain_ar_and_blocks_of_the_cache(record, monkeypatch):
    monkeypatch.setattr("coolsd.models.cache.BLOCK", 8)  # several spans within a picture
    for method in ("ar", "eagle1", "block"):
        assert tokens(static(tiny_pair(), record), method) == tokens(tiny_pair(), method)


@pytest.mark.parametrize("record", [None, replayed], ids=["eager", "recorded"])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_lumina_too(lumina, record, tree):
    for seed, scale in ((1, 3.0), (2, 1.0)):
        expected = tokens(lumina, "coolsd", tree, seed, cfg_scale=scale)
        assert tokens(static(lumina, record), "coolsd", tree, seed, cfg_scale=scale) == expected
    assert tokens(static(lumina, record), "ar") == tokens(lumina, "ar")


@pytest.mark.parametrize("block", [1, 5])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_pass_looks_at_no_entry_too_few(lumina, tree, block, monkeypatch):
    """Blocks so small that every pass stands at the edge of one; a room for exactly this prompt."""
    monkeypatch.setattr("coolsd.models.cache.BLOCK", block)
    monkeypatch.setattr("coolsd.models.lumina.session.PROMPT", len(lumina.text("a red rose")))
    for pair in (lumina, tiny_pair()):
        assert tokens(static(pair), "coolsd", tree, draft_length=6, delta=6.0) == tokens(pair, "coolsd", tree, draft_length=6, delta=6.0)


@pytest.mark.parametrize("entries", [1, 3])
def test_observations_padded_to_other_widths(entries, monkeypatch):
    monkeypatch.setattr("coolsd.models.drafter.OBSERVED", entries)
    assert tokens(static(tiny_pair()), "coolsd", "mc_sim_7b_63") == tokens(tiny_pair(), "coolsd", "mc_sim_7b_63")


def test_a_prompt_too_long_for_a_room(lumina, monkeypatch):
    monkeypatch.setattr("coolsd.models.lumina.session.PROMPT", 4)
    assert tokens(static(lumina), "coolsd") == tokens(lumina, "coolsd")


def test_lanes_that_take_turns_have_rooms_of_their_own_and_leave_them():
    pair = static(tiny_pair())
    lanes = [stream(pair, "a red rose", "coolsd", seed=seed, cfg_scale=3.0) for seed in (1, 2)]
    result = [[], []]
    for _ in range(16):
        for lane, emitted in zip(lanes, result, strict=True):
            emitted += [t for r in [next(lane, None)] if r for t in r.tokens]
    assert result == [generate(tiny_pair(), "a red rose", "coolsd", seed=seed, cfg_scale=3.0).tokens for seed in (1, 2)]
    del lanes, lane
    gc.collect()
    assert pair.workspaces.spare(2) == 2
    tokens(pair, "ar")
    gc.collect()
    assert pair.workspaces.spare(2) == 2


def test_a_recording_serves_the_next_picture():
    """Sessions come and go; a recording reads nothing of the session it was made in but what its key says."""
    counts = []

    def record(fn, inputs):
        counts.append(1)
        return replayed(fn, inputs)

    pair = static(tiny_pair(), record)
    acquire = pair.workspaces.acquire
    workspaces: dict = {}
    pair.workspaces.acquire = lambda rows, session: (
        workspaces.setdefault(rows, None) or workspaces.update({rows: acquire(rows, session)}) or workspaces[rows]
    )
    for seed in range(4):
        for cache in (workspaces[2].target, workspaces[2].drafter) if 2 in workspaces else ():
            cache.committed = 0
        assert tokens(pair, "eagle1", seed=seed) == tokens(tiny_pair(), "eagle1", seed=seed)
        if seed == 2:
            recordings = len(counts)
    assert recordings
    assert len(counts) <= recordings + 2


# ---- recordings


def test_the_second_call_is_recorded_and_inputs_are_copied():
    calls = []

    def add(x, n):
        calls.append(x.data_ptr())
        return (x + n,)

    run = GraphCache(replayed)
    inputs = [torch.tensor([float(i)]) for i in range(4)]
    assert [run(add, (), x, 10 * i)[0].item() for i, x in enumerate(inputs)] == [0.0, 11.0, 22.0, 33.0]
    assert torch.cat(inputs).tolist() == [0.0, 1.0, 2.0, 3.0]  # not written to
    assert len(set(calls[1:])) == 1  # always the same place
    first = run(add, (), torch.tensor([1.0]), 0)[0]
    second = run(add, (), torch.tensor([2.0]), 0)[0]
    assert first is second
    other = run(add, ("other",), torch.tensor([5.0]), 1)[0]
    assert other.item() == 6.0
    assert second.item() == 2.0
    assert run(add, (), torch.tensor([1.0, 2.0]), 0)[0].tolist() == [1.0, 2.0]


def test_the_oldest_recording_is_forgotten(monkeypatch):
    records = []
    for most in (2, 3):
        monkeypatch.setattr(cuda_graphs, "MAX_RECORDINGS", most)
        run = GraphCache(lambda fn, inputs, most=most: records.append(most) or replayed(fn, inputs))
        for key in "abcab":
            assert run(lambda x: (x + 1,), (key,), torch.ones(1))[0].item() == 2
    assert records == [3, 3]  # a function is recorded when it comes again, unless it was forgotten


def test_without_recording_decoding_goes_on(caplog):
    def record(fn, inputs):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    pair = static(tiny_pair(), record)
    assert tokens(pair, "coolsd") == tokens(tiny_pair(), "coolsd")
    assert caplog.text.count("CUDA graphs are off") == 1


def test_a_full_memory_is_not_hidden():
    def record(fn, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    run = GraphCache(record)
    run(lambda x: (x,), (), torch.ones(1))
    with pytest.raises(torch.OutOfMemoryError):
        run(lambda x: (x,), (), torch.ones(1))
