"""What stands in front of the page: body limits, closed routes, calls that cannot be meant, runs nobody listens to, places in the queue."""

import json
import math
import threading
import time
from contextlib import ExitStack

import gradio as gr
import httpx
import pytest
from pages import served, session, slow_stream, tiny_backend
from tiny import tiny_pair

from coolsd.settings import SETTINGS
from coolsd.ui import controls
from coolsd.ui.gate import LIMIT, Calls, Listeners, RunStop, Until
from coolsd.ui.page import Page
from coolsd.ui.run_queue import BY_ADDRESS, BY_SESSION, Full, RunQueue, Visitor

DEFAULTS = [s.default for s in SETTINGS.values()]
VALUES = [controls.DEFAULTS[name] for name in controls.CONTROLS]


@pytest.fixture(scope="module")
def backend():
    return tiny_backend(slow_stream(0.15))


@pytest.fixture(scope="module")
def demo(backend, tmp_path_factory):
    with served(backend, tmp_path_factory.mktemp("none")) as page:
        yield page


@pytest.fixture(scope="module")
def client(demo):
    with httpx.Client(base_url=demo.local_url, timeout=60) as opened:
        yield opened


def run_index(demo):
    """The function that Generate's run is."""
    return next(i for i, f in demo.fns.items() if getattr(f.fn, "__name__", "") == "run")


# --- bodies and routes


def test_a_large_body_is_refused_before_it_is_read(client):
    refused = client.post("/gradio_api/call/generate", content=b'{"data":["' + b"x" * LIMIT + b'"]}')
    assert refused.status_code == 413
    assert "64 KB" in refused.json()["detail"]

    def pieces():
        yield b'{"data":["'
        for _ in range(20):
            yield b"x" * 4096

    assert client.post("/gradio_api/call/generate", content=pieces()).status_code == 413  # also where no length is stated


def test_the_longest_prompt_fits(client):
    body = json.dumps({"data": ["\N{FULL MOON SYMBOL}" * 1000, *DEFAULTS[1:-1], 2]}).encode()
    assert client.post("/gradio_api/call/generate", content=body, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize(
    "route", ["gradio_api/upload", "gradio_api/deep_link", "gradio_api/dev/reload", "gradio_api/openapi.json", "docs", "openapi.json"]
)
def test_what_the_page_does_not_need_is_closed(client, route):
    ask = client.post if route.endswith("upload") else client.get
    assert ask(f"/{route}").status_code in (404, 405)


def test_the_page_itself_is_served(client):
    assert client.get("/").status_code == client.get("/config").status_code == client.get("/gradio_api/info").status_code == 200


# --- calls


CALLS = Calls({0: 2, 3: 0}, ("generate", 3))
ODD = [b"", b"[1", b"[" * 100_000, b"7", b"{}", b'{"data": {}}', b'{"data": [1, 2], "fn_index": true}', b'{"data": [1], "fn_index": 0}']
ODD += [b'{"data": ["\\ud800", 2], "fn_index": 0}', b'{"data": ["\xed\xa0\x80", 2], "fn_index": 0}']
ODD += [b'{"data": [1000000000000000000000, 2], "fn_index": 0}', b'{"data": [1' + b"0" * 5000 + b', 2], "fn_index": 0}']
ODD += [b'{"data": [1, 2], "fn_index": 9}', b'{"data": [1, 2], "fn_index": 0, "session_hash": 7}', b'{"data": [], "fn_index": "0"}']


@pytest.mark.parametrize("body", ODD)
def test_calls_that_cannot_be_meant_are_refused_in_words(body):
    for path in ("/gradio_api/queue/join", "/gradio_api/run/predict"):
        words = CALLS.refusal(path, body)
        assert 10 < len(words) < 200


def test_calls_that_can_be_meant_pass():
    assert CALLS.refusal("/gradio_api/queue/join", b'{"data": [1, NaN], "fn_index": 0, "session_hash": "abc"}') == ""
    assert CALLS.refusal("/gradio_api/call/generate", b'{"data": ["lake", 1, 2]}') == ""
    assert "takes 3" in CALLS.refusal("/gradio_api/call/generate", b'{"data": []}')
    assert "no endpoint" in CALLS.refusal("/gradio_api/call/false", b'{"data": [1]}')


def test_a_script_reaches_its_component_and_no_other(demo, client):
    """Rival patches of the inspector go this way."""
    component = demo.page.lanes._id
    cells = math.prod(tiny_pair().grid)
    body = {"session_hash": "inspector", "component_id": component, "fn_name": "patches"}
    answer = client.post("/gradio_api/component_server", json={**body, "data": {**PATCHES, "tokens": [0] * cells}})
    assert answer.status_code == 200
    assert set(answer.json()) == {"1", "2"}
    assert all(picture.startswith("data:image/webp") for picture in answer.json().values())
    for odd in FUZZ:
        assert client.post("/gradio_api/component_server", json={**body, "data": strict(odd)}).json() == {}
        for name in ("component_id", "fn_name"):
            assert client.post("/gradio_api/component_server", json={**body, "data": {}, name: strict(odd)}).status_code == 422, (name, odd)
    form = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/gradio_api/component_server", content=b"--x--", headers=form).status_code == 422


PATCHES = {"target": "meadow", "cell": 0, "codes": [1, 2]}
strict = lambda odd: str(odd) if isinstance(odd, float) else odd  # noqa: E731  (httpx writes no NaN)
FUZZ = [None, True, -1, 1e400, float("nan"), 1e30, 10**17, "", "x" * 5000, "\x00\u200b", [], [[1]], {}, {"p": "x"}, [None] * 50, "[[NaN]]"]


def test_odd_values_of_every_private_function_are_refused_without_a_500_or_a_traceback(demo, client, capfd):
    capfd.readouterr()
    bad = []
    for index, function in demo.fns.items():
        if not function.fn or function.queue is not False:
            continue
        usual = [block.value for block in function.inputs]
        odd_ones = [*FUZZ, "\ud800", 10**30]
        calls = [[odd] * len(usual) for odd in odd_ones]
        calls += [[*usual[:at], odd_ones[at % len(odd_ones)], *usual[at + 1 :]] for at in range(len(usual))]
        for data in calls:
            body = json.dumps({"data": data, "fn_index": index, "session_hash": f"fuzz{index}"})
            answer = client.post("/gradio_api/run/predict", content=body, headers={"content-type": "application/json"})
            words = str((answer.json() or {}).get("error") or "")
            if answer.status_code >= 500 or len(words) > 300:
                bad.append((index, data, answer.status_code, answer.text[:100]))
    printed = capfd.readouterr()
    assert not bad, bad[:5]
    assert "Traceback" not in printed.out + printed.err


def test_odd_parameters_of_the_endpoint_are_refused_in_words(client):
    kind = {"content-type": "application/json"}
    for at, name in enumerate(SETTINGS):
        for odd in FUZZ[at % 5 :: 5]:
            data = ["lake", *DEFAULTS[1:]]
            data[at] = odd
            data[-1] = data[-1] if name == "max_tokens" else 2
            joined = client.post("/gradio_api/call/generate", content=json.dumps({"data": data}), headers=kind)
            answer = client.get(f"/gradio_api/call/generate/{joined.json()['event_id']}").text
            if "event: error" in answer:
                words = json.loads(answer.rpartition("data: ")[2])["error"]
                assert words, (name, odd)
                assert len(words) <= 300, (name, odd, words)
            else:
                assert "event: complete" in answer, (name, odd)


# --- who listens


def test_runs_nobody_listens_to_take_no_place(backend, demo, client):
    for i in range(3):
        body = {"data": VALUES, "fn_index": run_index(demo), "session_hash": f"deaf{i}"}
        assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    began, most = time.monotonic(), 0
    while time.monotonic() - began < 1:
        most = max(most, backend.run_queue.length)
        time.sleep(0.02)
    assert most == 0


def test_until():
    here, stop = [True], threading.Event()
    assert Until(stop, lambda: False, grace=9, first=0.0).wait(0.01)
    until = Until(stop, lambda: here[0], grace=0.05)
    time.sleep(0.1)
    assert not until.is_set()
    here[0] = False
    assert until.wait(0.1)
    assert not until.begins()
    here[0] = True
    assert until.begins()
    stop.set()
    assert Until(stop, lambda: True).is_set()


def test_listeners_count_streams_by_name():
    listeners = Listeners()
    assert listeners.here("a")  # nothing counts
    listeners.counting = True
    assert not listeners.here("a")
    with listeners.listening("a"), listeners.listening("a"):
        assert listeners.here("a")
        assert not listeners.here("b")
    assert not listeners.here("a")


def test_a_stopped_prepare_does_not_lock_its_session_out(tmp_path, monkeypatch):
    from coolsd.ui.backend import Loader

    page = Page(tiny_backend(), Loader(tiny_backend().load))
    with gr.Blocks():
        page.draw(tmp_path)
    page.prepare(session("a"), *VALUES)
    with pytest.raises(gr.Error, match="on its way"):
        page.prepare(session("a"), *VALUES)
    page.stop_run(session("a"))  # its run never comes
    page.prepare(session("a"), *VALUES)
    monkeypatch.setattr("coolsd.ui.gate.STALE", 0.0)  # nor this one's
    page.prepare(session("a"), *VALUES)
    page.stops["a"].running = True
    with pytest.raises(gr.Error, match="on its way"):
        page.prepare(session("a"), *VALUES)
    assert RunStop().running is False


# --- places


def test_a_session_and_an_address_have_few_places():
    queue = RunQueue()
    with queue.place(Visitor("a", "x")), queue.place(Visitor("a", "x")):
        with pytest.raises(Full, match=f"{BY_SESSION} runs of this page"), queue.place(Visitor("a", "x")):
            pass
        with queue.place(Visitor("b", "x")), queue.place(Visitor("c", "x")):
            with pytest.raises(Full, match=f"{BY_ADDRESS} runs from your network address"), queue.place(Visitor("d", "x")):
                pass
            with queue.place(Visitor("e", "y")):
                pass
    room = RunQueue(by_address=0)
    with ExitStack() as places:
        for name in "abcdef":
            places.enter_context(room.place(Visitor(name, "x")))


def test_a_visitors_second_run_waits_behind_the_first_of_all_others():
    queue = RunQueue()
    with queue.place(Visitor("a", "x")) as running, queue.place(Visitor("b", "x")) as second, queue.place(Visitor("c", "y")) as other:
        assert running() == 0
        assert (other(), second()) == (1, 2)
    with queue.place(Visitor("d", "z")) as next_one:
        assert next_one() == 0


def test_several_may_run_at_once():
    queue = RunQueue(at_once=2)
    with queue.place() as first, queue.place() as second, queue.place() as third:
        assert (first(), second(), third()) == (0, 0, 1)
