"""ZeroGPU switched on for real (the `spaces` package, its scheduler's client, its forked processes and pipes) on a computer without a GPU.

Run as a program it goes through what can happen to a comparison there and prints what came of it, as JSON. Replaced are a few CUDA symbols
that a CPU build of torch lacks, the device's scheduler (a server on 127.0.0.1 with scripted answers), and the copy to the GPU, which here
gives every tensor a place of its own on the CPU, as the real one does on a GPU.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

QUOTA, RUNS, ILLEGAL = ({"left": 12, "wait": wait} for wait in (3600, 0, -1))
ANSWERS = {"quota": (429, QUOTA), "runs": (429, RUNS), "illegal": (429, ILLEGAL), "none": (503, {}), "expired": (401, {})}


class Scheduler:
    """Grants a GPU, or answers as told. released: times at which one was given back."""

    def __init__(self):
        self.answer, self.idle, self.released, self.queries = "ok", False, [], []
        scheduler = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                path, query = urlparse(self.path).path, urlparse(self.path).query
                code, body = 200, {}
                if path == "/schedule":
                    scheduler.queries.append(query)
                    grant = {"idle": scheduler.idle, "nvidiaIndex": 0, "nvidiaUUID": "none", "allowToken": "token"}
                    code, body = ANSWERS.get(scheduler.answer, (200, grant))
                elif path == "/release":
                    scheduler.released.append(time.monotonic())
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"


def switch_on() -> Scheduler:
    """Make this process a ZeroGPU Space; before torch or coolsd is imported."""
    scheduler, home = Scheduler(), Path(tempfile.mkdtemp(prefix="zero"))
    (home / "cgroup").write_text("0::/none\n")
    os.environ |= {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": scheduler.url,
        "ZEROGPU_PROC_SELF_CGROUP_PATH": str(home / "cgroup"),
        "ZEROGPU_OFFLOAD_DIR": str(home / "tensors"),
    }
    import torch

    torch.version.cuda = "12.8"
    if not hasattr(torch._C, "_cuda_init"):
        torch._C._cuda_init = lambda: None
    torch.cuda._is_in_bad_fork = bool  # a CPU build has a lambda there, which cannot be pickled
    import spaces  # noqa: F401
    import spaces.zero.torch as bridge

    bridge.init = lambda uuid: None
    bridge.move = to_cpu
    return scheduler


def to_cpu(callback=None) -> None:
    """What stands for the GPU's memory: each tensor anew, one that shares its memory once."""
    import torch
    from spaces.zero.torch import patching
    from spaces.zero.torch.types import AliasId

    anew = {}
    for original in patching.cuda_aliases.values():
        if original is not None:
            anew.setdefault(AliasId.from_tensor(original), original.detach().clone())
    for fake, original in list(patching.cuda_aliases.items()):
        if original is not None:
            fake.data = anew[AliasId.from_tensor(original)]
    for pack in patching.tensor_packs:
        content, at = Path(pack.path()).read_bytes(), 0
        for tensor, size, aligned in [*(entry for batch in pack.batches for entry in batch), *pack.big_tensors]:
            flat = torch.frombuffer(bytearray(content[at : at + size]), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
            data = torch.tensor([], dtype=tensor.dtype).set_(flat.untyped_storage(), 0, tensor.shape, tensor.stride())
            for fake in pack.fakes[tensor]:
                fake.data = data
            at += aligned


def relaxed(view) -> dict:
    """The relaxed lane of a view."""
    return next((lane for lane in (view.lanes or {"lanes": []})["lanes"] if lane["key"] == "relaxed"), {"state": ""})


class Trials:
    """One trial a method; each returns what the tests look at."""

    def __init__(self, scheduler: Scheduler, folder: Path):
        import coolsd
        from coolsd.ui.backend import Loader, default_backend
        from coolsd.ui.zerogpu import Door

        self.scheduler, self.trouble, self.coolsd = scheduler, "", coolsd
        backend = default_backend({"meadow": {"folder": str(folder)}}, only=["meadow"])
        self.backend = type(backend)(backend.load, self.stream, backend.methods, backend.target_statuses, backend.run_queue)
        self.loader = Loader(self.backend.load)
        loading = self.loader.load_now("meadow")
        assert not loading.error, loading.error
        self.door = Door(self.backend, self.loader)
        import spaces.zero.torch as bridge

        bridge.pack()  # as the first launch does

    def stream(self, pair, **settings):
        """The engine, with what goes wrong in the process that has the GPU. The slow part leaves time to stop."""
        prompt = settings["prompt"]
        for event in self.coolsd.stream(pair, **settings):
            if settings["max_tokens"] is None:
                time.sleep(0.03 if "slow" in prompt else 0)
                if "killed" in prompt and event.index == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                if "raise" in prompt and event.index == 4:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
            yield event

    def request(self, prompt, **changes):
        from coolsd.ui import controls

        return controls.read({**controls.DEFAULTS, "top_k": 0, "prompt": prompt, **changes}, self.backend.methods)

    def compare(self, prompt, stop=None, **changes):
        from coolsd.ui.compare import compare

        return compare(self.backend, self.loader, self.request(prompt, **changes), stop, self.door)

    def last(self, prompt, **changes):
        view = list(self.compare(prompt, **changes))[-1]
        return {"status": view.status, "tone": view.tone, "export": json.loads(view.export["text"]) if view.export else None}

    def tokens(self):
        last = self.last("a red rose", seed=4)
        runs = {name: last["export"][name] for name in ("reference", "relaxed", "plain")}
        tokens = {name: [t for r in run["rounds"] for t in r["tokens"]] for name, run in runs.items()}
        device = last["export"]["relaxed"]["environment"]["device"]
        return {
            "tokens": tokens,
            "settings": {name: run["settings"] for name, run in runs.items()},
            "device": device,
            "status": last["status"],
        }

    def asleep(self):
        """The main process has put nothing on a GPU and joined no weights; the process with the GPU has."""
        from coolsd.models.packed import Fused

        pair = self.loader.pair("meadow")
        joined = [module.joined is not None for module in pair.target_model.modules() if isinstance(module, Fused)]
        return {"asleep": pair.asleep, "joined": sum(joined), "of": len(joined)}

    def process(self):
        """A process that the scheduler calls idle is used again."""
        self.last("a red rose")
        self.scheduler.idle = True
        began = time.monotonic()
        events = self.door("meadow", [settings.to_dict() for settings in self.request("a red rose").lanes])
        next(events)
        first = time.monotonic() - began
        events.close()
        self.scheduler.idle = False
        return {"first_event": first}

    def stop(self):
        stop, views = threading.Event(), []
        for view in self.compare("slow rose", stop):
            views.append(view)
            if relaxed(view)["state"] == "running" and not stop.is_set():
                stop.set()
                at, before = time.monotonic(), len(relaxed(view)["rounds"])
        bundle = json.loads(views[-1].export["text"])
        released = self.scheduler.released[-1] - at
        return {"status": views[-1].status, "rounds": len(bundle["relaxed"]["rounds"]) - before, "released": released}

    def departure(self):
        views = self.compare("slow rose")
        next(view for view in views if relaxed(view)["state"] == "running")
        count, at = len(self.scheduler.released), time.monotonic()
        views.close()
        return {
            "released": time.monotonic() - at,
            "count": len(self.scheduler.released) - count,
            "waits": self.backend.run_queue.length,
        }

    def killed(self):
        return {"first": self.last("killed rose")["status"], "then": self.last("a red rose")["status"]}

    def raised(self):
        return self.last("raise rose")["status"]

    def refused(self):
        words = {}
        for answer in ANSWERS:
            self.scheduler.answer = answer
            words[answer] = self.last("a red rose")["status"]
        self.scheduler.answer = "ok"
        return words

    def big(self):
        """Events of a megabyte come whole."""
        import spaces

        from coolsd.ui.comparison import End

        def events():
            yield from (End(i, os.urandom(2**20)) for i in range(4))

        copies = list(spaces.GPU(events)())
        return {"sizes": [len(event.picture) for event in copies], "lanes": [event.lane for event in copies]}

    def duration(self):
        self.scheduler.queries.clear()
        plain = self.door.estimate("meadow", [settings.to_dict() for settings in self.request("a red rose").lanes])
        self.last("a red rose")  # which corrects the next estimate
        query = dict(part.split("=") for part in self.scheduler.queries[0].split("&"))
        return {"asked": int(query["durationSeconds"]), "estimate": plain, "endless": self.door.estimate("lumina-768", [{}] * 3)}

    def endpoint(self):
        from coolsd.ui.api import endpoint

        *_, (picture, _, run) = endpoint(self.backend, self.loader, self.door)("a red rose", seed=4)
        rounds = json.loads(Path(run["path"]).read_text(encoding="utf-8"))["rounds"]
        return {"tokens": [t for r in rounds for t in r["tokens"]], "image": Path(picture["path"]).read_bytes()[:4].decode("latin-1")}


def main(folder: str) -> None:
    scheduler = switch_on()
    import torch

    torch.set_num_threads(1)
    trials = Trials(scheduler, Path(folder))
    names = ("asleep", "tokens", "endpoint", "duration", "process", "stop", "departure", "killed", "raised", "refused", "big")
    print("\n" + json.dumps({name: getattr(trials, name)() for name in names}), flush=True)
    for process in multiprocessing.active_children():  # they wait for more work
        process.kill()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
