"""What a shared link shows in a chat or a post: title, description and picture, in the document as it is served.

Gradio's document says "Gradio" there, and puts what `head` holds in only once its script runs, which no reader of links waits for.
"""

import re
from html import escape
from urllib.parse import quote

from gradio.route_utils import get_root_url
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..exports import PAGE_PICTURE
from .compression import is_document
from .text import DESCRIPTION, NAME

OTHERS = re.compile(rb'<meta\s+(?:property="og:|name="(?:twitter:|description"))[^>]*>\s*')
HEAD = b"<head>"


def tags(address: str) -> str:
    """The page's description for readers of links (Open Graph); address: of the page, without a slash at its end."""
    picture = f"{address}/gradio_api/file={quote(PAGE_PICTURE.as_posix())}"
    title = f"{NAME}: relaxed speculative decoding, seen"
    graph = {"type": "website", "title": title, "description": DESCRIPTION, "url": f"{address}/", "image": picture}
    metas = [("property", f"og:{name}", words) for name, words in graph.items()]
    metas += [("name", "twitter:card", "summary_large_image"), ("name", "description", DESCRIPTION)]
    return "".join(f'<meta {kind}="{name}" content="{escape(words)}">' for kind, name, words in metas)


class SharedLink:
    """ASGI middleware that puts `tags` into the document, in place of gradio's own; everything else passes."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if not is_document(scope):
            await self.app(scope, receive, send)
            return
        began: list[Message] = []
        body = bytearray()

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                began.append(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            content = bytes(body)
            if HEAD in content:
                root = get_root_url(Request(scope), "/", scope.get("root_path"))
                content = OTHERS.sub(b"", content).replace(HEAD, HEAD + tags(root).encode(), 1)
            headers = [(name, value) for name, value in began[0]["headers"] if name != b"content-length"]
            length = len(content) if content else int(dict(began[0]["headers"]).get(b"content-length", 0))
            await send({**began[0], "headers": [*headers, (b"content-length", str(length).encode())]})
            await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, changed)
