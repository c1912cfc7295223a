"""What a host needs: a link that shows itself, addresses behind proxies, tools for other programs, a quiet end."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from pages import served, tiny_backend
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from coolsd.settings import SETTINGS
from coolsd.ui.api import documentation, mend_tools
from coolsd.ui.text import DESCRIPTION

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with served(tiny_backend(), tmp_path_factory.mktemp("none"), mcp_server=find_spec("mcp") is not None) as page:
        mend_tools(page)
        yield page


# --- a shared link


def metas(html: str) -> dict[str, list[str]]:
    """Contents of the document's meta tags by name."""
    out: dict[str, list[str]] = {}
    for name, content in re.findall(r'<meta\s+(?:property|name)="([^"]+)"\s+content="([^"]*)"', html.partition("</head>")[0]):
        out.setdefault(name, []).append(unescape(content))
    return out


def test_a_shared_link_has_title_description_and_picture_before_any_script_runs(demo):
    headers = {"x-forwarded-host": "you-coolsd.hf.space", "x-forwarded-proto": "https"}
    here, there = (metas(httpx.get(demo.local_url, headers=more).text) for more in ({}, headers))
    for tags in (here, there):
        assert all(len(contents) == 1 for contents in tags.values()), tags  # gradio's own are gone
        assert tags["og:description"] == tags["description"] == [DESCRIPTION]
        assert tags["og:title"][0].startswith("COOL-SD")
    assert here["og:image"][0].startswith(demo.local_url)
    assert there["og:image"][0].startswith("https://you-coolsd.hf.space/gradio_api/file=/")
    picture = httpx.get(here["og:image"][0])
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")


def test_a_hosts_name_cannot_write_into_the_document(demo):
    headers = {"x-forwarded-host": 'x"><script>alert(1)</script>'}
    assert "<script>alert(1)" not in httpx.get(demo.local_url, headers=headers).text


def test_the_document_is_whole(demo):
    answer = httpx.get(demo.local_url)
    assert int(answer.headers.get("content-length", 0)) or answer.headers["content-encoding"] == "gzip"
    assert answer.text.rstrip().endswith("</html>")
    assert httpx.head(demo.local_url).status_code == 200


# --- addresses


def address_seen(trusted: str, peer: str, *forwarded: str) -> str:
    """Whom the server takes the visitor for."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"][0])

    headers = [(b"x-forwarded-for", ", ".join(forwarded).encode())]
    scope = {"type": "http", "client": (peer, 1), "headers": headers, "scheme": "http"}
    asyncio.run(ProxyHeadersMiddleware(app, trusted)(scope, None, None))
    return seen[0]


def test_on_a_space_a_visitor_has_the_address_that_the_platform_saw(monkeypatch):
    import app

    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    monkeypatch.delenv("SPACE_ID", raising=False)
    app.trust_the_platform()
    assert "FORWARDED_ALLOW_IPS" not in os.environ
    monkeypatch.setenv("SPACE_ID", "you/coolsd")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.9.9.9")
    app.trust_the_platform()
    assert os.environ["FORWARDED_ALLOW_IPS"] == "10.9.9.9"
    monkeypatch.delenv("FORWARDED_ALLOW_IPS")
    app.trust_the_platform()
    trusted = os.environ["FORWARDED_ALLOW_IPS"]
    assert address_seen(trusted, "10.16.1.2", "8.8.4.4", "10.1.1.1") == "8.8.4.4"
    assert address_seen(trusted, "10.16.1.2", "1.2.3.4", "8.8.4.4", "10.1.1.1") == "8.8.4.4"  # the first one is the visitor's own invention
    assert address_seen(trusted, "8.8.4.4", "1.2.3.4") == "8.8.4.4"  # comes by itself, not through the platform


# --- tools


def test_without_the_package_the_option_says_what_to_install(monkeypatch):
    import app

    monkeypatch.setattr(sys, "argv", ["app.py", "--mcp"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r'^app\.py: --mcp wants [^\n]+: pip install "gradio\[mcp\]"$'):
        app.main()


def test_the_tool_is_described_and_answers_with_an_image(demo):
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def talk():
        address = f"{demo.local_url}gradio_api/mcp/"
        async with streamablehttp_client(address) as (reading, writing, _), ClientSession(reading, writing) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            good = await session.call_tool(tools[0].name, {"prompt": "a lake", "seed": 4})
            bad = await session.call_tool(tools[0].name, {"prompt": "a lake", "delta": 99})
            return tools, good, bad

    tools, good, bad = asyncio.run(talk())
    assert len(tools) == 1
    schema = tools[0].inputSchema["properties"]
    for name, setting in SETTINGS.items():
        assert documentation(setting) in schema[name]["description"], name
    assert not good.isError
    assert [(part.type, part.mimeType) for part in good.content if part.type == "image"] == [("image", "image/png")]
    assert all(len(part.text) < 5000 for part in good.content if part.type == "text")  # the rounds are a file
    assert bad.isError
    assert "out of range" in bad.content[0].text


# --- the end


@pytest.mark.parametrize("command", [["app.py"], ["-m", "coolsd", "targets"]])
def test_ctrl_c_while_importing_leaves_no_traceback_and_no_file(command, tmp_path):
    (tmp_path / "torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "GRADIO_TEMP_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "importing\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=30)[1]
    assert {path.name for path in tmp_path.iterdir()} <= {"torch.py", "__pycache__"}
