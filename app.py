"""Builds and launches the demo."""

import argparse
import contextlib
import logging
import os

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  (on ZeroGPU it has to come before torch; elsewhere there is none)

from coolsd.ui.engine import DEFAULT_TARGET
from coolsd.ui.page import build, launch_options

demo = build()


def main() -> None:
    """Serve the page, and load the pair behind it."""
    parser = argparse.ArgumentParser(description="Open the COOL-SD demo in a browser.")
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="address to serve on (0.0.0.0: everyone)")
    parser.add_argument("--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860")))
    parser.add_argument("--open", action="store_true", help="open a browser window")
    asked = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("coolsd").setLevel(logging.INFO)  # memory plans, downloads, licences
    demo.launch(server_name=asked.host, server_port=asked.port, inbrowser=asked.open, prevent_thread_lock=True, **launch_options())
    demo.loader.start(DEFAULT_TARGET)
    demo.block_thread()


if __name__ == "__main__":
    main()
