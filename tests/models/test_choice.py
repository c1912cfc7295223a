"""How a small pair's dtype and threads are chosen on a CPU, by scripted times; what the environment may force."""

import itertools

import pytest
import torch
from static import replayed
from tiny import tiny_pair

from coolsd import options
from coolsd.models import loading, pair
from coolsd.models.checkpoints import LoadError

FAST = {(torch.float32, 2): 8.0, (torch.float32, 1): 9.0, (torch.bfloat16, 2): 7.5, (torch.bfloat16, 1): 10.0}


@pytest.fixture
def clock(monkeypatch):
    """Passes that take what a script says: clock(busy) makes the times of each round, and counts them."""
    state = {"dtype": None, "threads": 2, "count": 0}
    monkeypatch.delenv("COOLSD_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: state.update(threads=n))

    def script(busy):
        model = tiny_pair.__wrapped__()
        monkeypatch.setattr(type(model), "to", lambda self, device, dtype: state.update(dtype=dtype))

        def seconds(*_):
            candidate = (state["dtype"], state["threads"])
            state["count"] += 1
            return FAST[candidate] * busy((state["count"] - 1) // len(FAST), candidate)

        monkeypatch.setattr(loading, "pass_seconds", seconds)
        return loading.choose_on_cpu(model, None) | {"rounds": state["count"] // len(FAST)}

    return script


def test_a_quiet_machine_is_measured_three_times(clock):
    choice = clock(lambda number, candidate: 1.0)
    assert (choice["dtype"], choice["threads"], choice["rounds"]) == ("float32", 2, loading.ROUNDS)  # bfloat16 gains too little


@pytest.mark.parametrize("victim", FAST, ids=str)
@pytest.mark.parametrize("length", [1, 2])
def test_a_busy_moment_decides_nothing(clock, victim, length):
    """For some rounds, whichever, all takes twice as long, and one candidate four times."""
    for start in (0, 1, 3):
        choice = clock(lambda number, candidate, s=start: (2.0 + 2 * (candidate == victim)) if s <= number < s + length else 1.0)
        assert (choice["dtype"], choice["threads"]) == ("float32", 2)


def test_measuring_ends_on_a_machine_that_is_always_busy(clock):
    noise = itertools.cycle([1.0, 3.0, 1.4, 2.2, 5.0])
    assert clock(lambda number, candidate: next(noise))["rounds"] == loading.MOST_ROUNDS


def test_threads_can_be_forced(monkeypatch):
    monkeypatch.setenv("COOLSD_THREADS", "1")
    monkeypatch.setattr(loading, "pass_seconds", lambda *_: 1.0)
    before = torch.get_num_threads()
    try:
        choice = loading.choose_on_cpu(tiny_pair.__wrapped__(), torch.float32)
    finally:
        torch.set_num_threads(before)
    assert choice["threads"] == 1
    assert list(choice["pass_ms"]) == ["float32, 1 threads"]


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "99999999", " "])
def test_no_number_of_threads_is_refused(monkeypatch, value):
    monkeypatch.setenv("COOLSD_THREADS", value)
    with pytest.raises(LoadError, match="whole number of threads from 1 to"):
        options.use_threads(None)
    monkeypatch.delenv("COOLSD_THREADS")
    options.use_threads(None)


@pytest.mark.parametrize("graphs", ["0", "1", ""])
def test_graphs_can_be_switched_off(monkeypatch, graphs):
    """COOLSD_GRAPHS=0: static shapes as on any GPU, nothing recorded."""
    tiny = tiny_pair.__wrapped__()
    monkeypatch.setenv("COOLSD_GRAPHS", graphs)
    monkeypatch.setattr(pair, "capture", replayed)
    monkeypatch.setattr(pair, "fuse", lambda *_: None)
    monkeypatch.setattr(type(tiny), "_make_tables", lambda self: None)
    monkeypatch.setattr(pair, "Workspaces", lambda caches, record: record)
    monkeypatch.setattr(type(tiny.target_model), "parameters", lambda self: iter([type("Cuda", (), {"device": torch.device("cuda")})()]))
    tiny.prepare()
    assert (tiny.workspaces is None) == (graphs == "0")
