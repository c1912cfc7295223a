"""A Space on ZeroGPU, through the real `spaces` package: what zero_gpu.py went through in a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest
import torch
from tiny import CONFIG, DRAFTER, write_tiny

import coolsd
from coolsd.ui.zerogpu import advise

pytest.importorskip("spaces")
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("pair"), replace(CONFIG, grid=8), replace(DRAFTER, grid=8))


@pytest.fixture(scope="module")
def trials(folder):
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "zero_gpu.py"), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.rpartition("\n{")[1].strip() + ended.stdout.rpartition("\n{")[2])


@pytest.fixture(scope="module")
def here(folder):
    """The same weights in this process, one thread as there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield coolsd.load(str(folder), device="cpu", dtype="bfloat16")
    torch.set_num_threads(threads)


def test_tokens_are_those_of_this_process(trials, here):
    there = trials["tokens"]
    assert there["status"].startswith("Done on cpu")  # the device is asked where the run was
    for lane, settings in there["settings"].items():
        torch.set_num_threads(1)
        assert coolsd.generate(here, **settings).tokens == there["tokens"][lane], lane
    assert len({tuple(tokens) for tokens in there["tokens"].values()}) == 3


def test_the_endpoint_goes_the_same_way(trials, here):
    assert trials["endpoint"]["tokens"] == coolsd.generate(here, "a red rose", seed=4).tokens
    assert trials["endpoint"]["image"] == "\x89PNG"


def test_the_main_process_joins_no_weights(trials):
    assert trials["asleep"]["asleep"]
    assert (trials["asleep"]["joined"], trials["asleep"]["of"] > 0) == (0, True)


def test_the_time_that_is_asked_for_is_estimated(trials):
    assert 8 < trials["duration"]["estimate"] == trials["duration"]["asked"] <= 90
    assert trials["duration"]["endless"] == 90


def test_an_idle_process_is_used_again(trials):
    assert trials["process"]["first_event"] < 20  # a new one would load the pair


def test_stop_ends_the_run_within_a_few_rounds_and_gives_the_gpu_back(trials):
    assert trials["stop"]["status"].startswith("Stopped")
    assert trials["stop"]["rounds"] <= 3
    assert trials["stop"]["released"] < 10


def test_a_closed_page_gives_the_gpu_back(trials):
    assert trials["departure"]["count"] == 1
    assert trials["departure"]["released"] < 10
    assert trials["departure"]["waits"] == 0


def test_a_killed_process_is_said_so_and_the_next_run_works(trials):
    assert "GPU task aborted" in trials["killed"]["first"]
    assert trials["killed"]["then"].startswith("Done")


def test_an_error_there_keeps_its_words(trials):
    assert "illegal memory access" in trials["raised"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("quota", "Sign in to Hugging Face for more GPU time, or run the demo on your own computer."),
        ("runs", "Sign in to Hugging Face for more GPU time"),
        ("illegal", "Choose a smaller target or fewer lanes"),
        ("none", "No GPU was available. Press Generate again in a minute."),
        ("expired", "Reload the page"),
    ],
)
def test_refusals_say_what_to_do(trials, answer, words):
    assert words in trials["refused"][answer]
    assert len(trials["refused"][answer]) <= 300
    assert "Press Generate" not in trials["refused"]["illegal"]


def test_big_events_come_whole(trials):
    assert trials["big"] == {"sizes": [2**20] * 4, "lanes": [0, 1, 2, 3]}


def test_advice_leaves_the_platforms_advertisements_out():
    message = "You have exceeded your ZeroGPU quota (60s requested vs. 12s left). Subscribe to PRO"
    words = str(advise(gr.Error(message, title="ZeroGPU quota exceeded")))
    assert "60s requested vs. 12s left" in words
    assert "Subscribe" not in words
