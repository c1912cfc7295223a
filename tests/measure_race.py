"""How steady the ratio in seconds is: `python tests/measure_race.py [quiet|steady|random] [PRESSES]`.

Presses Generate so many times with the same settings, beside nothing, two steady busy loops, or eight processes that start and stop at
random, and prints the ratio of every press and how far it lies from their median; beside it, what seconds ÷ seconds would have said.
"""

import json
import subprocess
import sys

import numpy as np

from coolsd.ui import controls
from coolsd.ui.backend import Loader, default_backend
from coolsd.ui.compare import compare

STEADY = "while True: pass"
RANDOM = """
import random, sys, time
chance = random.Random(int(sys.argv[1]))
while True:
    end = time.monotonic() + chance.uniform(0.05, 1.5)
    while time.monotonic() < end:
        pass
    time.sleep(chance.uniform(0.05, 3))
"""
LOADS = {"quiet": [], "steady": [STEADY] * 2, "random": [RANDOM] * 8}


def press(backend, loader) -> dict:
    """The last headline of one comparison with the page's defaults, and its lanes' seconds."""
    request = controls.read(controls.DEFAULTS, backend.methods)
    last = list(compare(backend, loader, request))[-1]
    assert last.tone == "good", last.status
    runs = json.loads(last.export["text"])
    seconds = [runs[name]["stats"]["seconds"] for name in ("reference", "relaxed")]
    numbers = {name: float(last.headline[name].rstrip("×")) for name in ("reference", "ar", "calls")}
    return numbers | {"plainly": seconds[0] / seconds[1], "interval": last.headline["interval"]}


def main(load: str = "quiet", presses: str = "8") -> None:
    """Print a line a press and the spread."""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(i)]) for i, code in enumerate(LOADS[load])]
    try:
        backend = default_backend()
        loader = Loader(backend.load)
        loader.load_now(controls.DEFAULTS["target"])
        rows = [press(backend, loader) for _ in range(int(presses))]
    finally:
        for process in processes:
            process.kill()
    for row in rows:
        ratio = f"{row['reference']:.2f}x [{row['interval']}]"
        print(f"{ratio} against the reference, plainly {row['plainly']:.2f}x; plain AR {row['ar']:.2f}x")
    for name in ("reference", "ar", "plainly"):
        values = np.array([row[name] for row in rows])
        off = 100 * (values / np.median(values) - 1)
        print(f"{name}: median {np.median(values):.3f}, from {off.min():+.1f} % to {off.max():+.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
