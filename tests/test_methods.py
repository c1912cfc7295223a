"""The named methods: draft shapes, ω rows, neighbour tables, and the settings that choose them."""

import json
from types import SimpleNamespace

import pytest
import torch
from tables import Toy
from tiny import tiny_pair
from toy import ToyPair

from coolsd import METHODS, Run, Settings, SettingsError, generate, omega, schedules, stream, validate
from coolsd.__main__ import build_parser, main
from coolsd.methods import frontiers, metered, neighbours, shape
from coolsd.models.cache import SLACK
from coolsd.options import chosen_settings
from coolsd.trees import MAX_NODES, NAMED, Dynamic, chain, depth, depths, within
from coolsd.verification import Lantern

OWN = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]


def request(method: str, **values) -> Settings:
    return validate(METHODS, prompt="x", method=method, **values)


def test_each_method_drafts_as_published_and_as_asked():
    assert shape(request("eagle1")) == chain(5) == shape(request("coolsd", tree="chain"))
    assert shape(request("coolsd", draft_length=3)) == chain(3)
    assert shape(request("lantern")) == Dynamic() == shape(request("uniform", tree="dynamic"))
    assert len(shape(request("lantern++"))) == len(shape(request("eagle1", tree="mc_sim_7b_63"))) == 25
    assert len(shape(request("lantern++g", tree="naive_extend_57"))) == 57
    assert shape(request("eagle1", tree=OWN)) == (-1, -1, 0, 0, 2)
    for method in ("block", "coolsd-block", "diverse"):
        assert shape(request(method, tree="naive_extend_57", draft_length=4)) == chain(4)


@pytest.mark.parametrize("tree", [*NAMED, OWN], ids=str)
def test_a_shape_is_pruned_to_the_levels_left(tree):
    whole = shape(request("eagle1", tree=tree))
    for levels in range(1, depth(whole) + 1):
        part = within(whole, levels)
        assert part == whole[: len(part)]
        assert depth(part) == levels
        assert len(part) == sum(level <= levels for level in depths(whole)[1:])
    assert within(Dynamic(), 2) == Dynamic(depth=2)
    assert within(Dynamic(), 9) == Dynamic()


def test_omega_goes_by_depth_and_salvage_never_tightens():
    every = omega(request("coolsd", tree=OWN, siblings="every", delta=1.1))
    assert len(every) == 3
    assert float(every.min()) < 1
    assert omega(request("coolsd", tree=OWN, delta=1.1)).tolist() == every.clamp(min=1).tolist()
    branch = [[0], [0, 0], [0, 0, 0]]
    assert omega(request("coolsd", tree=branch, delta=1.1)).tolist() == every.tolist()
    assert len(omega(request("lantern"))) == len(omega(request("diverse"))) == len(omega(request("ar"))) == 0


def test_a_bias_budget_buys_the_fitted_schedule_between_lossless_and_loose():
    free = [omega(request("coolsd-fitted", bias=bias)) for bias in (0.0, 0.03, 0.06, 0.12, 0.3)]
    assert free[0].tolist() == [1.0] * 5
    assert all(bool((row >= 1).all()) for row in free)
    relaxation = [float(row.log().sum()) for row in free]
    assert relaxation == sorted(relaxation)
    assert relaxation[1] > 0
    assert float(free[2][0]) > float(free[2][-1]), "early positions are relaxed first"
    assert omega(request("coolsd-fitted", draft_length=14))[max(frontiers()) :].tolist() == [1.0] * (14 - max(frontiers()))
    assert [len(omega(request("coolsd-fitted", draft_length=length))) for length in (1, 3, 10)] == [1, 3, 10]


def test_a_meter_says_where_it_bounds_what_is_spent():
    meters = {"coolsd": "", "eagle1": "", "coolsd-fitted": "", "lantern": "at least ", "lantern++": "at least ", "lantern++g": ""}
    for method, words in meters.items():
        assert metered(request(method)) == words
    assert metered(request("coolsd", tree=OWN, siblings="every")) == "at most "
    assert metered(request("coolsd", tree=OWN)) == ""
    assert metered(request("eagle1", tree=OWN, siblings="every")) == ""


def test_every_setting_of_a_schedule_reaches_it():
    for method in ("coolsd", "coolsd-block"):
        values = {"delta": 1.3, "nu": 0.4, "draft_length": 4}
        assert torch.equal(omega(request(method, **values)), schedules.annealed(4, 1.3, 0.4))
        assert torch.equal(omega(request(method, **values, mu=-0.5)), schedules.annealed(4, 1.3, 0.4, -0.5))
        assert torch.equal(omega(request(method, **values, clamp=True)), schedules.annealed(4, 1.3, 0.4, clamp=True))
    assert torch.equal(omega(request("uniform", delta=1.3, draft_length=4)), schedules.uniform(4, 1.3))
    for method in ("eagle1", "block"):
        assert torch.equal(omega(request(method, delta=1.3, draft_length=4)), schedules.lossless(4))


@pytest.mark.parametrize("normalised", [False, True])
def test_neighbours_are_the_nearest_codes(normalised):
    codes = torch.randn(1500, 4, generator=torch.Generator().manual_seed(0))
    table = neighbours(codes, normalised)
    assert table.shape == (1500, 1001)
    assert table is neighbours(codes, normalised)
    vectors = codes.double()
    if normalised:
        vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    for code in (0, 1023, 1024, 1499):
        distance = (vectors - vectors[code]).norm(dim=-1)
        distance[code] = torch.inf
        assert code not in table[code].tolist()
        torch.testing.assert_close(distance[table[code]], distance.sort().values[:1001], rtol=1e-4, atol=1e-5)


def test_a_codes_twin_is_its_neighbour():
    assert neighbours(torch.tensor([[1.0], [1.0], [3.5], [3.0]]))[:, 0].tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    "tree",
    [
        "oak",
        "",
        "[",
        "[" * 9000,
        "[[1]]",
        "[[0], [0]]",
        [[0], [0, 1]],
        [],
        "[]",
        5,
        None,
        [["0"]],
        {"a": 1},
        [[0]] * 2,
        [[i] for i in range(65)],
    ],
    ids=lambda tree: str(tree)[:12],
)
def test_what_is_not_a_tree_is_refused(tree):
    with pytest.raises(SettingsError, match="tree") as refusal:
        request("eagle1", tree=tree)
    assert refusal.value.field == "tree"


def test_the_deepest_and_the_widest_tree_pass():
    assert depth(shape(request("eagle1", tree=[[0] * i for i in range(1, 17)]))) == 16
    with pytest.raises(SettingsError, match="levels"):
        request("eagle1", tree=[[0] * i for i in range(1, 18)])
    assert len(shape(request("eagle1", tree=[[i] for i in range(MAX_NODES)]))) == MAX_NODES
    with pytest.raises(SettingsError, match="nodes"):
        request("eagle1", tree=[[i] for i in range(MAX_NODES + 1)])


@pytest.mark.parametrize(
    ("name", "value"),
    [("siblings", "some"), ("distance", 3), ("weight", 1.1), ("neighbours", 0), ("neighbours", 1001), ("budget", 1.5), ("cap", 1.0)],
)
def test_new_settings_are_checked(name, value):
    with pytest.raises(SettingsError) as refusal:
        request("coolsd", **{name: value})
    assert refusal.value.field == name


def test_settings_survive_json_and_old_runs_load():
    pair = ToyPair(Toy.make(3, seed=5))
    run = generate(pair, "x", "coolsd", tree=OWN, seed=4)
    assert Run.from_json(run.to_json()).settings == run.settings
    assert generate(pair, **run.settings.to_dict()).tokens == run.tokens
    old = json.loads(run.to_json())
    for name in ("tree", "siblings", "weight", "neighbours", "distance", "budget", "cap"):
        del old["settings"][name]
    assert Run.from_json(json.dumps(old)).settings == request("coolsd", seed=4)


def test_the_command_line_takes_them_all():
    line = ["generate", "x", "--method", "lantern++", "--tree", json.dumps(OWN), "--neighbours", "auto", "--distance", "normalised"]
    args = build_parser().parse_args([*line, "--cap", "3", "--budget", "0.2", "--weight", "0.5", "--siblings", "every"])
    settings = validate(METHODS, **chosen_settings(args))
    assert (settings.cap, settings.neighbours, settings.distance, settings.siblings) == (3.0, None, "normalised", "every")
    assert shape(settings) == (-1, -1, 0, 0, 2)


def test_weight_one_and_a_cap_on_nothing_are_lossless():
    """The settings reach the rule: at their lossless ends these methods spend no bias, elsewhere they do."""

    def bias(method: str, **values) -> float:
        return generate(ToyPair(Toy.make(3, seed=5), (8, 8)), "x", method, **values).stats.bias_spent

    assert bias("diverse", weight=1.0) == pytest.approx(0, abs=1e-5)
    assert bias("diverse", weight=0.2) > 1
    assert bias("lantern", budget=0.0) == pytest.approx(0, abs=1e-5)
    assert bias("lantern", budget=0.5) > 1
    assert bias("lantern++", cap=5.0) > bias("lantern++", cap=1.01)
    assert bias("coolsd", tree=OWN, siblings="every") > bias("coolsd", tree=OWN)


@pytest.mark.parametrize(
    "tree", [[[i] for i in range(30)] + [[0, i] for i in range(30)] + [[0, 0, i] for i in range(4)], "naive_extend_57"]
)
def test_the_largest_trees_fit_behind_the_last_cell(tree):
    """Tiny's caches, as every pair's, hold MAX_NODES entries behind the picture: salvage at a high δ draws trees up to its very end."""
    assert SLACK == MAX_NODES
    run = generate(tiny_pair(), "a red rose", "coolsd", tree=tree, delta=20.0, seed=1)
    assert run.complete
    assert max(round.drafted for round in run.rounds) == depth(shape(run.settings))


def test_larger_trees_are_refused_before_any_model_runs(capsys):
    tree = [[i] for i in range(MAX_NODES + 1)]
    for call in (generate, stream):
        with pytest.raises(SettingsError, match=f"{MAX_NODES + 1} nodes.*1 to {MAX_NODES} nodes"):
            call(SimpleNamespace(begin=pytest.fail), "x", "eagle1", tree=tree)
    assert main(["generate", "x", "--method", "eagle1", "--tree", json.dumps(tree)]) == 2
    assert f"Give from 1 to {MAX_NODES} nodes" in capsys.readouterr().err


# ---- what the settings hand to the rules


@pytest.fixture
def built(monkeypatch):
    """Lantern rules that were built, as (table, k, budget, optimal, ranked)."""
    rules = []

    class Spy(Lantern):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            rules.append(self)

    monkeypatch.setattr("coolsd.methods.Lantern", Spy)
    return rules


# Lengths so uneven that raw and normalised distances order the codes differently.
CODES = torch.randn(1200, 4, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.2, 5.0, 1200)[:, None]


@pytest.mark.parametrize("distance", ["raw", "normalised"])
def test_the_rule_is_handed_the_table_of_the_distance(built, distance):
    vectors = CODES.double() / (CODES.double().norm(dim=-1, keepdim=True) if distance == "normalised" else 1.0)
    for method in ("lantern", "lantern++", "lantern++g"):
        METHODS[method].verifier(request(method, distance=distance, neighbours=9), SimpleNamespace(codebook=CODES))
    for code in (0, 17, 600, 1199):
        away = (vectors - vectors[code]).norm(dim=-1)
        away[code] = torch.inf
        nearest = away.topk(10, largest=False).indices.tolist()
        assert [rule.nearest[code].tolist() for rule in built] == [nearest] * 3
    METHODS["lantern"].verifier(request("lantern"), SimpleNamespace(codebook=CODES))
    assert built[-1].nearest[0, :10].tolist() == neighbours(CODES)[0, :10].tolist()  # raw is the default


def test_the_rule_is_handed_its_methods_defaults_and_its_own_settings(built):
    pair = SimpleNamespace(codebook=CODES)
    values = {"budget": 0.2, "cap": 3.0}
    for method in ("lantern", "lantern++", "lantern++g"):
        METHODS[method].verifier(request(method, **values), pair)
        METHODS[method].verifier(request(method, **values, neighbours=7, tree="chain"), pair)
        METHODS[method].verifier(request(method, tree="dynamic"), pair)
    assert [rule.k for rule in built] == [1000, 7, 1000, 10, 7, 10, 10, 7, 10]
    assert [rule.budget for rule in built] == [0.2, 0.2, 0.1, 3.0, 3.0, 2.0, 3.0, 3.0, 2.0]
    assert [rule.ranked for rule in built] == [True, False, True, False, False, True, False, False, True]
    assert [rule.residual_depends_on_token for rule in built] == [True] * 6 + [False] * 3
    METHODS["lantern"].verifier(request("lantern"), SimpleNamespace(codebook=CODES[:20]))
    assert built[-1].k == 19  # no more than there are


@pytest.mark.parametrize("block", [1, 7, 40])
def test_distances_in_blocks_are_those_of_all_at_once(block, monkeypatch):
    codes = CODES[:40].clone()
    whole = neighbours(codes), neighbours(codes, True)
    monkeypatch.setattr("coolsd.methods.BLOCK", block)
    assert torch.equal(neighbours(codes.clone()), whole[0])
    assert torch.equal(neighbours(codes.clone(), True), whole[1])
