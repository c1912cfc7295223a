"""The page's JavaScript by itself, in a browser without a server: what it computes is what Python computes, on the same numbers."""

import json

import pytest
from real_rows import real_row
from tiny import tiny_pair
from what_if import predict

import coolsd
from coolsd import theory
from coolsd.rules import Relaxed
from coolsd.settings import Settings
from coolsd.trace import statistics
from coolsd.ui import figures, lanes, templates

ORIGIN = "http://assets.test/"


@pytest.fixture(scope="module")
def js(browser):
    """Calls a function of a module: js("trace", "statistics", ...)."""
    page = browser.new_page()

    def answer(route):
        name = route.request.url.removeprefix(ORIGIN)
        body = (templates.ASSETS / name).read_text(encoding="utf-8") if name else "<!doctype html><title>modules</title>"
        route.fulfill(body=body, content_type="text/javascript" if name else "text/html")

    page.route("**/*", answer)
    page.goto(ORIGIN)

    def call(module, expression, *args):
        script = f"async (args) => {{ const m = await import('{ORIGIN}{module}.js'); return await ({expression}); }}"
        return page.evaluate(script, list(args))

    yield call
    page.close()


@pytest.fixture(scope="module")
def run():
    return coolsd.generate(tiny_pair(), "a lake", "coolsd", draft_length=3, delta=3.0)


PREDICT = f"import('{ORIGIN}trace.js').then((t) => m.predict(t.traceOf(args[0]), args[1]))"
TREE, NODES = {"tree": "mc_sim_7b_63"}, {"tree": "[[0], [1], [0, 0]]"}
SCHEDULES = [
    {},
    {"delta": 3.0, "nu": -0.5},
    {"mu": 0.5},
    {"clamp": True},
    {"method": "uniform"},
    {"omega": "1.4,1.4,0.5", "clamp": True},
    {"omega": "3,0.2", **TREE},
    {"draft_length": 8},
    {"method": "eagle1"},
    TREE,
    {**TREE, "siblings": "every"},
    {**TREE, "method": "uniform", "delta": 0.5},
    {**TREE, "method": "eagle1", "draft_length": 9},
    {**TREE, "method": "block"},
    {"tree": "naive_extend_57", "mu": 0.3},
    {"tree": "dynamic", "siblings": "every"},
    {**NODES, "draft_length": 7},
    {"tree": "[[0], [0, 0]]"},
    {"method": "ar"},
    {"method": "lantern"},
    {"method": "diverse"},
    {"method": "sjd", "window": 9, **TREE},
    {"method": "coolsd-jacobi"},
    {"method": "coolsd-jacobi", "window": 3, "delta": 1.2, "mu": 0.3},
    {"method": "coolsd-fitted"},
    {"method": "coolsd-fitted", "bias": 0.11, "draft_length": 8},
    {"method": "coolsd-fitted", "bias": 0.0, "draft_length": 14},
]


def test_omega_is_the_projects_own(js):
    schedules = [{**Settings(prompt="x").to_dict(), **changes} for changes in SCHEDULES]
    queries = [{**values, "mu_auto": values["mu"] is None} for values in schedules]
    rows = js("schedule", "args[1].map((s) => m.schedule(args[0], s))", figures.shapes(coolsd.METHODS), queries)
    for values, omega in zip(schedules, rows, strict=True):
        assert omega == pytest.approx(coolsd.omega(Settings(**values)).tolist(), rel=1e-6), values


def test_the_equal_tail_of_a_long_row_is_named_once(js):
    rows = [[2.0, 1.0, 1.0], [2.0, 1.5, *[1.0] * 13], [1.0] * 12, [float(i) for i in range(1, 12)], []]
    numbers = js("schedule", "args[0].map(m.inNumbers)", rows)
    assert [row.split() for row in numbers] == [
        ["2.00", "1.00", "1.00"],
        ["2.00", "1.50", "1.00", "…"],
        ["1.00", "…"],
        [*(f"{i}.00" for i in range(1, 10)), "10.0", "11.0"],
        [],
    ]


def test_f_and_the_cost_of_a_step_are_those_of_the_rule(js):
    import torch

    p, q = torch.rand(2, 1, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    for omega in (0.3, 1.0, 1.7, 20.0):
        rule = Relaxed(torch.tensor([omega], dtype=torch.float64))
        f = [js("schedule", "args[0].map((p, i) => m.acceptProb(p, args[1][i], args[2]))", p[0].tolist(), q[0].tolist(), omega)]
        token = torch.arange(12)
        expected = rule.accept_prob(p.expand(12, -1), q.expand(12, -1), torch.zeros(12, dtype=torch.long), token)
        assert f[0] == pytest.approx(expected.tolist(), rel=1e-9)
        cost = js("schedule", "m.stepCost(...args)", p[0].tolist(), q[0].tolist(), omega)
        assert cost == pytest.approx(float(theory.step_cost(p[0], q[0], rule, 0)), rel=1e-9, abs=1e-15)


def test_figures_after_any_round_are_those_of_python(js, run):
    lane = lanes.from_run(run)
    data = lanes.view([lane], "tiny")["lanes"][0]
    script = "((t) => t.states.map((_, k) => m.statistics(t, k)))(m.traceOf({ ...args[0], rounds: args[0].rounds.map(JSON.parse) }))"
    states = js("trace", script, data)
    assert len(states) == len(run.rounds) + 1
    for count in (0, 1, 2, len(run.rounds)):
        stats, state = statistics(run.rounds[:count]), states[count]
        pairs = {
            "tokens": stats.tokens,
            "rounds": stats.target_calls,
            "draftCalls": stats.draft_calls,
            "seconds": stats.seconds,
            "bias": stats.bias_spent,
            "biasPerToken": stats.bias_per_token,
            "acceptLength": stats.accept_length,
            "acceptProb": [v for v in stats.accept_prob if v is not None],
            "acceptedShare": [v for v in stats.accepted_share if v is not None],
        }
        for name, value in pairs.items():
            figure = [v for v in state[name] if v is not None] if isinstance(value, list) else state[name]
            assert figure == pytest.approx(value, rel=1e-5), (count, name)
    words = js("readout", "m.readout(...args)", states[-1], {"total": 16, "bias": data["bias"]})
    assert {name: words[name] for name in templates.READOUT} == lanes.readout(lane, statistics(run.rounds))


def test_what_if_is_predicted_as_in_python(js, run):
    for omega in ([1.0, 1.0, 1.0], [3.0, 1.4, 0.4], [20.0, 1.0], [1.3] * 5):
        expected, forecast = predict(run.rounds, omega), js("what_if", PREDICT, run.to_dict(), omega)
        assert forecast["positions"] == 3
        pairs = {
            "acceptLength": "accept_length",
            "targetCalls": "target_calls",
            "biasPerToken": "bias_per_token",
            "klPerToken": "kl_per_token",
        }
        for name, own in pairs.items():
            assert forecast[name] == pytest.approx(getattr(expected, own), rel=1e-4, abs=1e-7), (omega, name)
        assert [v for v in forecast["acceptProb"] if v is not None] == pytest.approx(
            [v for v in expected.accept_prob if v is not None], rel=1e-4
        )
    bare = {**run.to_dict(), "rounds": [{**event, "drafts": None} for event in run.to_dict()["rounds"]]}
    assert js("what_if", PREDICT, bare, [1.0]) is None


def test_cells_say_how_their_tokens_came(js, run):
    cells = js("trace", "m.traceOf(args[0]).cells", {**run.to_dict(), "rounds": json.loads(json.dumps(run.to_dict()["rounds"]))})
    kinds = [k for r in run.rounds for k in ("relaxed" if only else kind for kind, only in zip(r.kinds, r.relaxed, strict=True))]
    assert [cell["token"] for cell in cells] == run.tokens
    assert [cell["kind"] for cell in cells] == kinds
    assert all(cell["position"] is None for cell in cells if cell["kind"] == "sampled")


def test_lanes_grow_by_what_is_new_and_start_again_with_a_new_run(js, run):
    data = lanes.view([lanes.from_run(run)], "tiny")["lanes"][0]
    script = """(() => {
        const part = (data, count) => ({ ...data, rounds: data.rounds.slice(0, count) });
        let grown = m.grow(null, part(args[0], 2));
        const first = grown.trace;
        grown = m.grow(grown, args[0]);
        const same = grown.trace === first;
        const again = m.grow(grown, { ...part(args[0], 1), run: "other" });
        return [same, grown.trace.rounds.length, again.trace.rounds.length];
    })()"""
    assert js("lanes", script, data) == [True, len(run.rounds), 1]


def test_the_bar_steps_seeks_and_follows_the_end(js):
    script = """(() => {
        const trace = (seconds) => ({ rounds: seconds.slice(1).map((_, i) => i), states: seconds.map((s) => ({ seconds: s })) });
        const traces = [trace([0, 1, 2, 4]), trace([0, 0.5, 0.9])];
        const place = (state) => [m.at(state, traces), ...traces.map((t) => m.rounds(state, t))];
        const seconds = m.setClock(m.START, traces, "seconds");
        const back = m.step(seconds, traces, -1);
        return {
            end: place(m.START), back: place(m.step(m.START, traces, -1)), first: place(m.seek(m.START, traces, 0)),
            clock: place(back), before: place(m.step(back, traces, -1)), past: m.seek(m.START, traces, 99).position,
            switched: place(m.setClock(m.seek(m.START, traces, 1), traces, "seconds")),
            played: m.tick(m.play(m.START, traces), traces, 0.25).position,
            over: m.tick(m.play(m.START, traces), traces, 60),
        };
    })()"""
    result = js("player", script)
    assert result["end"] == [3, 3, 2]
    assert result["back"] == [2, 2, 2]
    assert result["first"] == [0, 0, 0]
    assert result["clock"] == [2, 2, 2]
    assert result["before"] == [1, 1, 2]
    assert result["past"] is None
    assert result["switched"] == [1, 1, 2]
    assert result["played"] == pytest.approx(1.5)
    assert (result["over"]["position"], result["over"]["playing"]) == (None, False)


@pytest.mark.parametrize(("tokens", "points"), [(0, 0), (5, 6), (8, 6), (16, None)])
def test_the_mask_shows_the_cells_that_have_come(js, tokens, points):
    clip = js("token_map", "m.mask({ rows: 4, columns: 4, total: 16 }, args[0])", tokens)
    if points is None:
        assert clip == "none"
        return
    corners = [tuple(float(n.removesuffix("%")) for n in c.split()) for c in clip.removeprefix("polygon(").removesuffix(")").split(", ")]
    area = abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True))) / 2
    assert area == pytest.approx(10_000 * tokens / 16)


def test_a_bar_pulled_to_the_top_gives_the_others_back(js):
    row = [0.1, 0.2, 0.3, 0.4]
    top, back = js("laboratory", "[m.withValue(args[0], 0, 1), m.withValue([1, 0, 0, 0], 0, 0.1, args[0])]", row)
    assert top == [1, 0, 0, 0]
    assert back == pytest.approx(row)


def test_a_cell_is_explained_in_words_and_numbers(js):
    nodes = {
        "tokens": [7, 8, 9],
        "parents": [-1, 0, 1],
        "p": [0.2, 0.1, 0.05],
        "q": [0.4, 0.5, 0.1],
        "f": [1, 0.25, None],
        "u": [0.7, 0.9, None],
        "outcome": ["relaxed", "rejected", "unexamined"],
    }
    seconds = dict.fromkeys(("draft_seconds", "target_seconds", "verify_seconds", "other_seconds"), 0.01)
    more = {"drafts": nodes, "last": {"p": 0.3, "u": 0.5, "law": 0.6}, "accept_prob": [1, 0.25], "cost": [0.1, 0.0], "draft_calls": 3}
    head = {"p": [[3, 0.5], [7, 0.2]], "q": [[7, 0.4], [3, 0.1]]}
    round_ = {"start": 0, "tokens": [7, 3], "kinds": ["accepted", "recovered"], "relaxed": [True, False], "drafted": 3, "top": [head, head]}
    script = """(() => {
        const trace = args[0];
        const [cell, fallen, ghost] = [0, 1, 2].map((i) => m.subjects(trace, i, 1));
        return { stories: [cell[0], ...fallen, ...ghost].map(m.story), verdict: m.verdict(cell[0].node), fell: m.verdict(fallen[1].node),
                 numbers: m.numbers(cell[0]).map(([n, v]) => `${n} ${v}`), where: m.where(trace, 5), rivals: m.rivals(trace, cell[0]),
                 row: m.laboratoryRow(trace, cell[0]), before: m.subjects(trace, 0, 0) };
    })()"""
    trace = js("trace", "m.traceOf({ grid: [4, 4], omega: [3, 1.25, 1], rounds: [args[0]] })", {**round_, **more, **seconds})
    result = js("explain", script, trace)
    assert result["stories"] == [
        "round 1, draft position 1: accepted only because relaxed",
        "round 1, draft position 2: recovered after a rejection",
        "round 1, draft position 2: draft, rejected",
        "round 1, draft position 3: draft, not looked at",
    ]
    assert result["verdict"] == "u = .7 lies below f = 1, but above .5, where lossless cuts: accepted only because relaxed."
    assert result["fell"] == "u = .9 lies above f = .25: rejected."
    assert result["numbers"] == ["p .2", "q .4", "p/q .5", "ω 3", "f 1"]
    assert result["where"] == "token 6, row 2, column 2"
    assert [rival["code"] for rival in result["rivals"]] == [3, 7]
    assert sum(result["row"]["p"]) == pytest.approx(1)
    assert result["row"]["q"] == pytest.approx([0.1, 0.4, 0.5])
    assert result["before"] == []


def test_the_table_of_the_curves_has_accepted_of_drafted_and_the_mean_f_of_examined(js):
    lanes_ = [
        {"title": "A", "acceptProb": [0.65, 0.45, None], "acceptedShare": [2 / 3, 1 / 3, 0]},
        {"title": "B", "acceptProb": [0.7625], "acceptedShare": [0.75]},
    ]
    rows = js("curves", "m.tableOf(...args)", lanes_, [2.0, 1.0], 3)
    assert rows[0] == ["position", "A: f", "A: accepted share", "B: f", "B: accepted share", "ω as set"]
    assert rows[1:] == [
        ["1", "0.65", "0.67", "0.76", "0.75", "2.00"],
        ["2", "0.45", "0.33", "–", "–", "1.00"],
        ["3", "–", "0.00", "–", "–", "–"],
    ]


def test_a_row_for_the_laboratory_is_the_one_that_python_takes_of_the_run(js):
    inspected = coolsd.generate(tiny_pair(), "a lake", "coolsd", draft_length=3, inspect=8)
    cell = next(r.start for r in inspected.rounds if r.drafted)
    expected = real_row(inspected, cell)
    data = json.loads(inspected.to_json())
    trace = js("trace", "m.traceOf(args[0])", data)
    row = js("explain", "m.laboratoryRow(args[0], m.subjects(args[0], args[1], args[0].rounds.length)[0])", trace, cell)
    assert row["names"] == list(expected.names)
    assert row["p"] == pytest.approx(expected.p, abs=1e-5)
    assert row["q"] == pytest.approx(expected.q, abs=1e-5)
    assert row["omega"] == pytest.approx(expected.omega, rel=1e-5)
