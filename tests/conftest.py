"""Tests find their helpers beside this file, in whichever folder they are; fixtures that several of them use."""

import os
import sys
from pathlib import Path

import pytest

# Workers of pytest-xdist share the cores: threads beyond those spin, and make small passes many times slower.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


@pytest.fixture(scope="module")
def lumina_folders(tmp_path_factory):
    """Folders of target, drafter and picture tokenizer of a tiny Lumina."""
    from files import write_lumina

    return write_lumina(tmp_path_factory.mktemp("lumina"))


@pytest.fixture(scope="module")
def lumina(lumina_folders):
    """The tiny Lumina pair."""
    from files import IDS

    from coolsd.models.lumina.load import load_lumina

    return load_lumina(lumina_folders / "target", lumina_folders / "vq", lumina_folders / "drafter", grid=4, ids=IDS)


@pytest.fixture(scope="module")
def released_janus(tmp_path_factory):
    """A tiny Janus as transformers runs it, and its folder."""
    from files import write_janus

    folder = tmp_path_factory.mktemp("janus")
    return write_janus(folder), folder


@pytest.fixture(scope="module")
def janus(released_janus):
    """The tiny Janus pair with a random drafter."""
    from files import JANUS
    from tiny import randomise

    from coolsd.models.eagle import Eagle
    from coolsd.models.janus.load import load_janus
    from coolsd.models.janus.session import drafter_sizes

    pair = load_janus("janus-pro-1b", JANUS, released_janus[1])
    pair.drafter_model = randomise(Eagle(drafter_sizes(JANUS)), 2, 0.1)
    return pair
