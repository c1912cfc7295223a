"""Run by test_coco.py in a fresh interpreter: kills, several processes and one process, on the tiny pair; prints what is stored as JSON.

Everything is forked from one interpreter, so that torch is imported once. Launched processes talk by gloo, as under `accelerate launch`.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from PIL import Image

from coolsd.__main__ import build_parser
from coolsd.evaluation.coco import command, launch
from coolsd.evaluation.coco.captions import read_prompts
from coolsd.evaluation.coco.store import groups_of, missing
from coolsd.training.loop import this_process

torch.set_num_threads(1)
FORK = multiprocessing.get_context("fork")
ROOT, DYING = Path(sys.argv[1]), "2"


def arguments(folder: Path):
    words = ["eval", "coco", "--target", str(ROOT / "tiny"), "--captions", str(ROOT / "captions.json"), "--batch", "2", "--limit", "7"]
    words += ["--deltas", "2", "--draft-length", "3", "--device", "cpu", "--folder", str(folder)]
    return build_parser().parse_args(words)


def jobs_of(folder: Path):
    args = arguments(folder)
    plan = command.plan_of(args)
    prompts = read_prompts(args.captions, args.prompts)
    return plan, missing(folder, command.variants_of(args, plan), groups_of(prompts, args.batch, args.limit))


def killed_after(count: int, work=command.decode_share):
    """The work of a process that is killed, as from outside, when it has stored so many groups."""

    def share(plan, jobs, here):
        work(plan, jobs[:count], here)
        os.kill(os.getpid(), signal.SIGKILL)

    return share


def stored(folder: Path) -> dict:
    """Pixels, recipe and figures but the clock's of every picture."""
    out = {}
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as picture:
            figures = {name: value for name, value in json.loads(picture.info["figures"]).items() if name != "seconds"}
            out[str(path.relative_to(folder))] = [picture.tobytes().hex(), picture.info["recipe"], figures]
    return out


def launched(rank: int, port: int, pipe, work, *given) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    pipe.send(work(rank, *given))


def trainer(rank: int) -> list:
    """Which of how many a training process takes itself for."""
    here = this_process()
    return [rank, here.rank, here.ranks]


def decoder(rank: int, folder: Path, dies: bool) -> list:
    here = launch.this_launch("fork")
    plan, jobs = jobs_of(folder)
    here.wait()
    work = killed_after(1) if dies and rank == 1 else command.decode_share
    return launch.run(work, plan, jobs, here)


def two(work, *given) -> list:
    """What the work of two launched processes gives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends = [FORK.Pipe() for _ in range(2)]
    processes = [FORK.Process(target=launched, args=(rank, port, ends[rank][1], work, *given)) for rank in range(2)]
    for process in processes:
        process.start()
    messages = [end.recv() for end, _ in ends]
    for process in processes:
        process.join()
    return messages


def killed(folder: Path) -> int:
    """A process that decodes everything, killed as soon as its third picture is there; how many there are then."""
    process = FORK.Process(target=lambda: command.decode_share(*jobs_of(folder), launch.Launch()))
    process.start()
    while process.is_alive() and len(list(folder.rglob("*.png"))) < 3:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return len(list(folder.rglob("*.png")))


def main() -> None:
    whole, cut, split = (ROOT / name for name in ("whole", "cut", "split"))
    out = {"after kill": killed(cut), "deaths": two(decoder, split, True), "after death": len(list(split.rglob("*.png")))}
    out["deaths of the next start"] = two(decoder, split, False)
    for folder in (whole, cut):
        command.decode_share(*jobs_of(folder), launch.Launch())
    out |= {folder.name: stored(folder) for folder in (whole, cut, split)}
    out["trainers"] = two(trainer)
    out["left"] = [len(jobs_of(folder)[1]) for folder in (whole, cut, split)]
    print("RESULT " + json.dumps(out))


if __name__ == "__main__":
    main()
