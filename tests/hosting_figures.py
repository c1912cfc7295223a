"""Figures of a server that strangers use: `python tests/hosting_figures.py [PIECE …]` (all: about 10 minutes on 2 cores; Linux).

It is the real server, in a process of its own, with meadow. One line of JSON a piece:

    fuzz     odd values for every parameter and every event: calls, tracebacks, answers of 500 and above, the longest message
    bodies   memory before and after 200 refused requests of 1 MB, half of them of no stated length
    deaf     how long 30 runs nobody listens to hold up the next visitor
    runs     memory before and after 100 runs, and the files that are left after the server's end
    stop     seconds from SIGTERM in a run to the end
    offline  the same visit with no network but loopback (wants the right to `unshare`)
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from coolsd.settings import SETTINGS  # noqa: E402
from coolsd.ui.gate import LIMIT, TOO_LARGE  # noqa: E402

KIND = {"content-type": "application/json"}
VALUES = {s.name: s.default for s in SETTINGS.values()} | {"prompt": "a lake"}
ODD = [
    None,
    True,
    -1,
    1.5,
    1e400,
    float("nan"),
    10**30,
    "",
    "x" * 5000,
    "\x00\u200b",
    "\ud800",
    [],
    [[1]],
    [[float("nan")]],
    {},
    {"p": "x"},
]
ODD += [[None] * 50, "[[NaN]]", "[" * 3000, "1e999", "../../etc/passwd", "<script>"]


class Server:
    """The app on a free port, with a temporary folder of its own."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder / "temporary", folder / "log"
        self.folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        environment = {**os.environ, "GRADIO_TEMP_DIR": str(self.folder), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(ROOT / "app.py"), "--port", self.address.rpartition(":")[2]]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.client = httpx.Client(base_url=self.address, timeout=120)
        while not self._answers():
            time.sleep(0.2)
        self.generate()  # the pair is loaded now
        self.config = self.client.get("/config").json()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.client.get("/config").status_code == 200
        except httpx.TransportError:
            return False

    def memory(self) -> float:
        """Resident megabytes."""
        time.sleep(1)
        line = next(line for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def tracebacks(self) -> int:
        return self.log.read_text().count("Traceback")

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        try:
            return self.client.post(f"/gradio_api/{path}", content=json.dumps(body), headers={**KIND, **headers})
        except httpx.TransportError:  # hung up on before it was all sent, as bodies over the limit are
            assert self.process.poll() is None, self.log.read_text()
            assert len(json.dumps(body)) > LIMIT, (path, str(body)[:300], len(json.dumps(body)))
            return httpx.Response(413, json={"detail": TOO_LARGE})

    def generate(self, address: str = "127.0.0.1", **changes: Any) -> str:
        """A call of the endpoint to its last event, as text."""
        values = VALUES | {"max_tokens": 2} | changes
        joined = self.post("call/generate", {"data": list(values.values())}, **{"x-forwarded-for": address})
        if joined.status_code != 200:
            return joined.text
        return self.client.get(f"/gradio_api/call/generate/{joined.json()['event_id']}").text

    def run(self, session: str, address: str = "127.0.0.1") -> None:
        """Ask for a comparison, and do not listen."""
        run = max((d for d in self.config["dependencies"] if d["backend_fn"] and d["types"]["generator"]), key=lambda d: len(d["inputs"]))
        by_id = {component["id"]: component["props"].get("value") for component in self.config["components"]}
        body = {"data": [by_id[i] for i in run["inputs"]], "fn_index": run["id"], "session_hash": session}
        assert self.post("queue/join", body, **{"x-forwarded-for": address}).status_code == 200

    def end(self) -> dict[str, Any]:
        """SIGTERM: seconds until it is gone, and the files that are left."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        seconds = round(time.monotonic() - began, 2)
        return {"seconds_to_end": seconds, "files_left": sum(1 for path in self.folder.rglob("*") if path.is_file())}


@contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        started = Server(Path(folder))
        try:
            yield started
        finally:
            started.process.kill()
            started.process.wait()


def message(answer: str) -> str:
    """What a person would read of an answer."""
    try:
        content = json.loads(answer.rpartition("data: ")[2] if "event: " in answer else answer)
    except ValueError:
        return answer
    words = content.get("error") or content.get("detail") or "" if isinstance(content, dict) else ""
    return words if isinstance(words, str) else json.dumps(words)


def fuzz() -> dict[str, Any]:
    calls, high, longest = 0, 0, ""
    with server() as s:

        def look(status: int, text: str) -> None:
            nonlocal calls, high, longest
            calls, high, longest = calls + 1, high + (status >= 500), max(longest, message(text), key=len)

        for name in SETTINGS:
            for odd in ODD:
                look(200, s.generate(**{name: odd}))
        for d in s.config["dependencies"]:
            if not d["backend_fn"] or (d["queue"] is not False and d["types"]["generator"]):
                continue
            usual = [next(c["props"].get("value") for c in s.config["components"] if c["id"] == i) for i in d["inputs"]]
            bodies = [[odd if at == place else value for at, value in enumerate(usual)] for place in range(len(usual)) for odd in ODD]
            bodies += [[odd] * len(usual) for odd in ODD]
            for number, data in enumerate(bodies):
                body = {"data": data, "fn_index": d["id"], "session_hash": f"fuzz{number}", "event_data": ODD[number % len(ODD)]}
                if d["queue"] is False:
                    answer = s.post("run/predict", body)
                    look(answer.status_code, answer.text)
                else:
                    look(*queued(s, body))
        return {"calls": calls, "tracebacks": s.tracebacks(), "5xx": high, "longest_message": len(longest), "words": longest[:120]}


def queued(s: Server, body: dict[str, Any]) -> tuple[int, str]:
    """A call that goes through gradio's queue: status and last event."""
    joined = s.post("queue/join", body)
    if joined.status_code != 200:
        return joined.status_code, joined.text
    with s.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": body["session_hash"]}) as stream:
        for line in stream.iter_lines():
            if "process_completed" in line:
                return 200, json.dumps({"error": json.loads(line.removeprefix("data:"))["output"].get("error")})
    return stream.status_code, ""


def bodies() -> dict[str, Any]:
    def pieces() -> Iterator[bytes]:
        yield b'{"data":["'
        for _ in range(64):
            yield b"x" * 16384

    with server() as s:
        for _ in range(20):
            s.post("call/generate", {"data": []})
        before, statuses = s.memory(), set()
        for number in range(200):
            content = pieces() if number % 2 else b'{"data":["' + b"x" * 2**20 + b'"]}'
            try:
                statuses.add(s.client.post("/gradio_api/call/generate", content=content, headers=KIND).status_code)
            except httpx.TransportError as error:  # hung up on before it was all sent
                statuses.add(type(error).__name__)
        after = s.memory()
    return {"before_mb": round(before), "growth_mb": round(after - before, 1), "answers": sorted(map(str, statuses))}


def deaf() -> dict[str, Any]:
    with server() as s:
        waits = []
        for crowd in (0, 30):
            for number in range(crowd):
                s.run(f"deaf{number}", f"8.8.8.{number}")
            began = time.monotonic()
            assert "event: complete" in s.generate("9.9.9.9", max_tokens=16)
            waits.append(time.monotonic() - began)
            time.sleep(5)
    return {"alone_s": round(waits[0], 2), "behind_30_s": round(waits[1], 2), "delay_s": round(waits[1] - waits[0], 2)}


def runs() -> dict[str, Any]:
    with server() as s:
        for seed in range(10):
            s.generate(seed=seed, max_tokens=64)
        before = s.memory()
        done = sum("event: complete" in s.generate(seed=seed, max_tokens=64) for seed in range(100, 200))
        growth = s.memory() - before
        return {"runs": done, "before_mb": round(before), "growth_mb": round(growth, 1), **s.end(), "tracebacks": s.tracebacks()}


def stop() -> dict[str, Any]:
    with server() as s:
        values = VALUES | {"method": "ar"}
        event = s.post("call/generate", {"data": list(values.values())}).json()["event_id"]
        with s.client.stream("GET", f"/gradio_api/call/generate/{event}") as stream:
            next(line for line in stream.iter_lines() if '"tokens"' in line and '"tokens": 0' not in line)
            return {**s.end(), "tracebacks": s.tracebacks()}


def alone() -> dict[str, Any]:
    """What `offline` does with no network but loopback."""
    with server() as s:
        answer = s.generate(max_tokens=None)
        files = [f"{s.address}{s.config['root'].replace(s.address, '')}/gradio_api/file={path}" for path in assets()]
        served = all(s.client.get(file).status_code == 200 for file in files)
        return {
            "complete": "event: complete" in answer,
            "files_served": served,
            "tracebacks": s.tracebacks(),
            "log": s.log.read_text()[-200:],
        }


def assets() -> list[str]:
    return [path.as_posix() for path in sorted((ROOT / "coolsd" / "ui" / "assets").glob("*.js"))]


def offline() -> dict[str, Any]:
    command = f"ip link set lo up && exec {sys.executable} {__file__} alone"
    ended = subprocess.run(["unshare", "-rn", "sh", "-c", command], capture_output=True, text=True, check=False)
    return json.loads(ended.stdout)["alone"] if ended.returncode == 0 else {"failed": ended.stderr[-300:]}


PIECES = {piece.__name__: piece for piece in (fuzz, bodies, deaf, runs, stop, offline)}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or PIECES:
        print(json.dumps({chosen: (PIECES | {"alone": alone})[chosen]()}), flush=True)
