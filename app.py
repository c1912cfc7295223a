"""Builds and launches the demo."""

import argparse
import atexit
import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":  # before the imports: they take seconds, and read where files go
    folder = os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="coolsd-", dir=os.environ.get("GRADIO_TEMP_DIR"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def leave(*_: object) -> None:
        """End at once, whatever is being imported or decoded, and let no file stay behind."""
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # not sys.exit, which would wait for the threads that decode

    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, leave)

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  (on ZeroGPU it has to come before torch; elsewhere there is none)

import gradio as gr

from coolsd.models.catalog import FORM, read_files
from coolsd.models.checkpoints import LoadError
from coolsd.models.pair import on_zero_gpu
from coolsd.options import add_threads, use_threads
from coolsd.ui.api import mend_tools
from coolsd.ui.backend import DEFAULT_TARGET, default_backend
from coolsd.ui.evidence_tab import of_file
from coolsd.ui.page import build, launch_options
from coolsd.ui.run_queue import BY_ADDRESS, RunQueue
from coolsd.ui.zerogpu import AT_ONCE

PRIVATE_NETWORKS = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,::1,fc00::/7"
VARIABLE = "COOLSD_FILES"  # as on the command line: several with spaces between, quotes around paths that hold some


def page(named: Iterable[str] = (), evidence: Path | None = None) -> gr.Blocks:
    """The page, with the local files of COOLSD_FILES and these; ends in one line where they are no such thing."""
    try:
        stored = of_file(evidence) if evidence else None
    except ValueError as error:
        raise SystemExit(f"app.py: --evidence: {error}") from None
    try:
        files = read_files([*shlex.split(os.environ.get(VARIABLE, "")), *named])
    except ValueError as error:
        raise SystemExit(f"app.py: --files or {VARIABLE}: {error}") from None
    by_address = int(os.environ.get("COOLSD_BY_ADDRESS", BY_ADDRESS))
    if not on_zero_gpu():
        return build(default_backend(files, run_queue=RunQueue(by_address=by_address)), evidence=stored)
    only = os.environ.get("COOLSD_TARGETS", DEFAULT_TARGET).split()
    demo = build(default_backend(files, only, RunQueue(at_once=AT_ONCE, by_address=by_address)), evidence=stored)
    for name in only:
        demo.loader.load_now(name)
    return demo


def trust_the_platform() -> None:
    """On a Space the visitor's address comes through the platform's own network: trust what its hops say, and nothing before them.

    Uvicorn reads the variable; elsewhere it trusts a proxy on the same computer, or those that the variable names.
    """
    if os.environ.get("SPACE_ID"):
        os.environ.setdefault("FORWARDED_ALLOW_IPS", PRIVATE_NETWORKS)


def main() -> None:
    """Serve the page, and load the pair behind it."""
    parser = argparse.ArgumentParser(description="Open the COOL-SD demo in a browser.")
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="address to serve on (0.0.0.0: everyone)")
    parser.add_argument("--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860")))
    parser.add_argument("--open", action="store_true", help="open a browser window")
    files = f"local files of a target: {FORM}; parts: target, drafter (or none), vq, text; may be repeated, and stand in {VARIABLE}"
    parser.add_argument("--files", action="append", default=[], metavar="TARGET.PART=PATH", help=files)
    instead = "what the tab Evidence shows, in place of what ships (format: coolsd/evaluation/evidence.py)"
    parser.add_argument("--evidence", type=Path, metavar="FILE", help=instead)
    add_threads(parser)
    parser.add_argument("--mcp", action="store_true", help="serve /generate as an MCP tool too (wants gradio[mcp])")
    arguments = parser.parse_args()
    try:
        use_threads(arguments.threads)
    except LoadError as error:
        raise SystemExit(f"app.py: {error}") from None
    if arguments.mcp and not importlib.util.find_spec("mcp"):
        raise SystemExit('app.py: --mcp wants a package that is not installed here: pip install "gradio[mcp]"')
    logging.basicConfig(format="%(message)s")
    logging.getLogger("coolsd").setLevel(logging.INFO)  # memory plans, downloads, licences
    trust_the_platform()
    demo = page(arguments.files, arguments.evidence)
    where = {"server_name": arguments.host, "server_port": arguments.port, "inbrowser": arguments.open}
    try:
        demo.launch(**where, prevent_thread_lock=True, mcp_server=arguments.mcp, **launch_options(demo))
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise SystemExit(f"app.py: {arguments.host}, port {arguments.port} cannot be served on ({reason}). Give another --port.") from None
    mend_tools(demo)
    demo.loader.start(DEFAULT_TARGET)
    demo.block_thread()


if __name__ == "__main__":
    main()
else:  # for `gradio app.py`, which serves the page itself
    demo = page()
