"""The page itself, sent compressed: gradio compresses its files, but not the document, which has no file name."""

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


def is_document(scope: Scope) -> bool:
    """Whether a request asks for the page itself."""
    return scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")


class CompressedPage:
    """ASGI middleware that compresses the document and nothing else, least of all streams."""

    def __init__(self, app: ASGIApp):
        self.plain, self.compressed = app, GZipMiddleware(app, minimum_size=1000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await (self.compressed if is_document(scope) else self.plain)(scope, receive, send)
