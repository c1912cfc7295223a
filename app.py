"""Builds and launches the demo."""

import argparse
import contextlib
import logging
import os
import shlex
from collections.abc import Iterable

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  (on ZeroGPU it has to come before torch; elsewhere there is none)

import gradio as gr

from coolsd.models.catalog import FORM, read_files
from coolsd.ui.backend import DEFAULT_TARGET, default_backend
from coolsd.ui.page import build, launch_options

VARIABLE = "COOLSD_FILES"  # as on the command line: several with spaces between, quotes around paths that hold some


def page(named: Iterable[str] = ()) -> gr.Blocks:
    """The page, with the local files of COOLSD_FILES and these; ends in one line where they are no such thing."""
    try:
        return build(default_backend(read_files([*shlex.split(os.environ.get(VARIABLE, "")), *named])))
    except ValueError as error:
        raise SystemExit(f"app.py: --files or {VARIABLE}: {error}") from None


def main() -> None:
    """Serve the page, and load the pair behind it."""
    parser = argparse.ArgumentParser(description="Open the COOL-SD demo in a browser.")
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="address to serve on (0.0.0.0: everyone)")
    parser.add_argument("--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860")))
    parser.add_argument("--open", action="store_true", help="open a browser window")
    files = f"local files of a target: {FORM}; parts: target, drafter (or none), vq, text; may be repeated, and stand in {VARIABLE}"
    parser.add_argument("--files", action="append", default=[], metavar="TARGET.PART=PATH", help=files)
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("coolsd").setLevel(logging.INFO)  # memory plans, downloads, licences
    demo = page(arguments.files)
    where = {"server_name": arguments.host, "server_port": arguments.port, "inbrowser": arguments.open}
    try:
        demo.launch(**where, prevent_thread_lock=True, **launch_options())
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise SystemExit(f"app.py: {arguments.host}, port {arguments.port} cannot be served on ({reason}). Give another --port.") from None
    demo.loader.start(DEFAULT_TARGET)
    demo.block_thread()


if __name__ == "__main__":
    main()
else:  # for `gradio app.py`, which serves the page itself
    demo = page()
