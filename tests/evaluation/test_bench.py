"""The bench: what a tree costs beside a chain, and the search for the fastest draft shape, on a pair made of tables."""

import json
from dataclasses import replace
from itertools import combinations
from math import prod

import pytest
from tables import Toy
from toy import ToyPair

from coolsd import METHODS, generate, validate
from coolsd.__main__ import build_parser, main
from coolsd.evaluation.speed import bench, tune
from coolsd.methods import shape
from coolsd.options import chosen_settings
from coolsd.trees import MAX_NODES, children, from_paths

PAIR, SMALL = (ToyPair(Toy.make(3, seed=5), grid) for grid in ((8, 8), (1, 12)))
RATES = {(1, 0): 0.6, (1, 1): 0.3, (1, 2): 0.05, (2, 0): 0.5, (2, 1): 0.2, (3, 0): 0.4}


def test_every_method_is_compared_a_new_one_too(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", replace(METHODS["block"], name="mine", title="Mine"))
    variants = bench.variants_of(METHODS)
    assert {variant.method for variant in variants} == set(METHODS)
    assert bench.Variant("Mine", "mine") in variants
    assert len({variant.label for variant in variants}) == len(variants)
    for variant in variants:
        validate(METHODS, prompt="x", method=variant.method, **dict(variant.settings))


def test_a_sweep_of_windows_takes_each_jacobi_method_once_a_window(capsys):
    variants = bench.variants_of(("ar", "sjd", "coolsd-jacobi"), (4, 8))
    assert [(variant.method, dict(variant.settings)) for variant in variants] == [
        ("ar", {}),
        *(("sjd", {"window": window}) for window in (4, 8)),
        *(("coolsd-jacobi", {"window": window}) for window in (4, 8)),
    ]
    assert main(["bench", "--windows", "4", "1000"]) == 2
    assert "window" in capsys.readouterr().err


def test_the_tree_is_compared_turn_by_turn_with_a_chain_of_as_many_tokens():
    chain, tree = (shape(validate(METHODS, prompt="x", method=variant.method, **dict(variant.settings))) for variant in bench.TREE_COST)
    assert len(chain) == len(tree) == 16
    stats = generate(PAIR, "x", "eagle1").stats
    times = {"target_calls": 10, "draft_seconds": 3.0, "target_seconds": 4.0, "verify_seconds": 0.5, "other_seconds": 0.5}
    first = replace(stats, **times)
    second = replace(first, target_calls=20, draft_seconds=2.0, target_seconds=8.0, verify_seconds=1.0, other_seconds=3.0)
    slow = replace(first, draft_seconds=300.0, target_seconds=400.0)
    result = bench.tree_cost([first, first, slow], [second, second, slow])
    assert result == {"round": pytest.approx(0.7 / 0.8), "without drafting": pytest.approx(0.6 / 0.5)}


# ---- growing trees


def test_acceptance_counts_the_examined_nodes_that_have_such_a_child():
    parents = from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
    event = generate(PAIR, "x", "eagle1", max_tokens=2).rounds[0]
    ranks = [(0, 1), (0,), (1, 0), (1,), (), (0, 0)]
    rounds = [replace(event, drafted=2, ranks=path) for path in ranks] + [replace(event, drafted=1, ranks=(1,))]
    result = tune.acceptance(rounds, parents)
    assert result == {(1, 0): 3 / 6, (1, 1): 2 / 6, (2, 0): 2 / 5, (2, 1): 1 / 3}


def test_acceptance_on_the_toy_is_that_of_its_runs():
    tree = [[0], [1], [0, 0], [1, 0]]
    runs = [generate(PAIR, "x", "eagle1", tree=tree, seed=seed) for seed in range(2)]
    rounds = [event for run in runs for event in run.rounds if event.drafted == 2]
    result = tune.acceptance(rounds, from_paths(tree))
    assert result[1, 0] + result[1, 1] == pytest.approx(sum(bool(event.accepted) for event in rounds) / len(rounds))
    assert result[1, 0] > result[1, 1] > 0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_grown_tree_is_the_best_of_its_size(count):
    def worth(path: tuple[int, ...]) -> float:
        return prod(RATES.get((depth, rank), 0.0) for depth, rank in enumerate(path, 1))

    nodes = [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(2)] + [(a, 0, 0) for a in range(3)]
    best = 0.0
    for chosen in combinations(nodes, count):
        try:
            from_paths([list(path) for path in chosen])
        except ValueError:
            continue
        best = max(best, sum(map(worth, chosen)))
    paths, promise = tune.grow(RATES, count)
    assert len(from_paths(paths)) == count
    assert promise == pytest.approx(best) == pytest.approx(sum(worth(tuple(path)) for path in paths))


def test_growth_ends_where_nothing_is_accepted():
    assert len(tune.grow(RATES, 64)[0]) == 15
    assert tune.grow({}, 8) == ([], 0.0)


def test_the_machine_decides_how_many_nodes_pay():
    flat, steep = ({size: ms(size) for size in tune.SIZES} for ms in (lambda _: 10.0, lambda size: 10.0 * size))
    assert max(map(len, tune.own_shapes(RATES, tune.Costs(flat, 0.0)))) == 15
    assert min(map(len, tune.own_shapes(RATES, tune.Costs(steep, 0.0)))) == 1
    costs = tune.Costs({1: 10.0, 4: 16.0, 16: 40.0}, 2.0)
    assert costs.round(3, 2) == pytest.approx(20.0)
    assert costs.round(4, 1) == pytest.approx(20.0)
    assert costs.round(15, 1) == costs.round(40, 1) == pytest.approx(42.0)


# ---- the search


def test_the_search_times_every_shape_and_names_the_fastest():
    events = list(tune.tune(SMALL, ("eagle1", "coolsd"), ("x",), 1, {}))
    tuned = {label: result for label, result in events if isinstance(result, tune.TuneResult)}
    assert list(tuned) == ["eagle1", "coolsd"]
    for method, result in tuned.items():
        chains = [s["draft_length"] for s in result.settings if s["tree"] == "chain"]
        assert chains == list(range(2, 9))
        assert {"mc_sim_7b_63", "naive_extend_57"} < {s["tree"] for s in result.settings}
        own = [json.loads(s["tree"]) for s in result.settings if s["tree"].startswith("[")]
        assert own
        assert all(1 <= len(from_paths(paths)) <= MAX_NODES for paths in own)
        assert all(len(nodes) <= 3 for paths in own for nodes in children(from_paths(paths)))  # the toy has three codes
        seconds = [row.seconds for row in result.rows]
        assert seconds[result.best()] == min(seconds) == min(seconds[result.best(True)], seconds[result.best(False)])
        assert result.settings[result.best(False)]["tree"] != "chain"
        words = tune.summary(result)
        assert all(row.label in words for row in result.rows)
        assert json.loads(json.dumps(result.to_dict()))["best"]["all"]["label"] == result.rows[result.best()].label
        option = words.rsplit(": ", 1)[1].replace("'", "").split(" ", 1)
        args = build_parser().parse_args(["generate", "x", "--method", method, *option])
        assert shape(validate(METHODS, **chosen_settings(args))) == shape(
            validate(METHODS, prompt="x", method=method, **result.settings[result.best()])
        )


def test_what_drafts_no_trees_is_refused_before_a_pair_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr("coolsd.options.load", lambda *_: pytest.fail("loaded"))
    assert main(["bench", "--tune", "--methods", "block"]) == 2
    assert "eagle1" in capsys.readouterr().err


def test_the_commands_print_and_write_what_was_found(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("coolsd.options.load", lambda *_: SMALL)
    monkeypatch.setattr(tune, "REPEATS", 2)
    common = ["--seeds", "1", "--max-tokens", "12", "--json", str(tmp_path / "out.json")]
    assert main(["bench", "--tree-cost", *common]) == 0
    assert "tree is" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "out.json").read_text())["tree_cost"]) == {"round", "without drafting"}
    assert main(["bench", "--tune", "--methods", "eagle1", *common]) == 0
    assert "Eagle-1, fastest of all" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "out.json").read_text())["tuned"]["eagle1"]["best"]) == {"chain", "tree", "all"}
