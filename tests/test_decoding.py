"""The engine on table pairs: exact laws, determinism, edges, cancelling."""

import gc
import json
import time
import weakref
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tables import Toy, chi_square
from tiny import tiny_pair
from toy import ToyDrafter, ToyPair, ToyTarget

from coolsd import METHODS, SettingsError, generate, stream, validate
from coolsd.decoding import Broken, MemoryFull
from coolsd.methods import shape
from coolsd.protocols import Step
from coolsd.sampling import to_probs
from coolsd.trees import depths, within

V = 3
TOY = Toy.make(V, seed=5)
RUNS = 3000
DRAFTING = [name for name, method in METHODS.items() if method.schedule is not None]
TREES = ["mc_sim_7b_63", "dynamic", [[0], [1], [0, 0], [0, 1]], [[0], [1], [2], [1, 0], [1, 0, 0]], [[0], [0, 0], [0, 1], [0, 2]]]
ANY_TREE = [(name, tree) for name in DRAFTING if "tree" in METHODS[name].uses for tree in ("chain", *TREES)]


def exact_law(n: int) -> torch.Tensor:
    """Joint law of the first n tokens of plain AR, flattened."""
    out = []
    for path in product(range(V), repeat=n):
        context, mass = [0, 0], 1.0
        for x in path:
            mass *= float(TOY.p[context[-2], context[-1], x])
            context.append(x)
        out.append(mass)
    return torch.tensor(out, dtype=torch.float64)


def observed(pair: ToyPair, method: str, n: int, runs: int = RUNS, **settings) -> torch.Tensor:
    counts = torch.zeros(V**n, dtype=torch.float64)
    for seed in range(runs):
        tokens = [t for r in stream(pair, "x", method, seed=seed, max_tokens=n + 1, **settings) for t in r.tokens][:n]
        counts[sum(t * V ** (n - 1 - i) for i, t in enumerate(tokens))] += 1
    return counts


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.lossless and name != "traversal"])  # it has its own tests
def test_lossless_methods_emit_the_target_law_across_rounds(method):
    """Four tokens with drafts of two: within a round, after acceptances, and after rejections in the round before."""
    assert chi_square(observed(ToyPair(TOY), method, 4, draft_length=2)[None], exact_law(4)[None]) > 1e-6


def test_a_drafter_that_reports_other_rows_is_caught():
    assert chi_square(observed(ToyPair(TOY, lie=True), "eagle1", 4, draft_length=2)[None], exact_law(4)[None]) < 1e-9


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_emit_the_target_law_across_rounds(tree):
    """Four tokens, often of several rounds: each must know where the accepted path of the one before led."""
    assert chi_square(observed(ToyPair(TOY), "eagle1", 4, 1000, tree=tree)[None], exact_law(4)[None]) > 1e-6


@pytest.mark.parametrize("tree", [TREES[1], TREES[2]], ids=str)
def test_a_tree_with_other_rows_is_caught(tree):
    assert chi_square(observed(ToyPair(TOY, lie=True), "eagle1", 3, 700, tree=tree)[None], exact_law(3)[None]) < 1e-9


@pytest.mark.parametrize("settings", [{"siblings": "salvage"}, {"siblings": "every"}], ids=str)
def test_relaxation_in_a_tree_leaves_the_target_law(settings):
    law = observed(ToyPair(TOY), "uniform", 3, 700, tree=TREES[2], delta=4.0, **settings)
    assert chi_square(law[None], exact_law(3)[None]) < 1e-9


def test_relaxation_leaves_the_target_law():
    """Negative control of the test above: the same counts with δ = 4 must be refused."""
    assert chi_square(observed(ToyPair(TOY), "coolsd", 4, draft_length=2, delta=4.0)[None], exact_law(4)[None]) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_temperature_zero_equals_plain_ar(method):
    if METHODS[method].lossless:
        greedy = generate(ToyPair(TOY, (4, 5)), "x", "ar", temperature=0).tokens
        assert generate(ToyPair(TOY, (4, 5)), "x", method, temperature=0).tokens == greedy


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_temperature_zero_in_a_tree_equals_plain_ar(tree):
    greedy = generate(ToyPair(TOY, (4, 5)), "x", "ar", temperature=0).tokens
    assert generate(ToyPair(TOY, (4, 5)), "x", "eagle1", temperature=0, tree=tree).tokens == greedy


@pytest.mark.parametrize("method", METHODS)
def test_a_run_fills_the_grid_and_never_more(method):
    check_fills(method, "auto", 20)


@pytest.mark.parametrize(("method", "tree"), ANY_TREE, ids=str)
def test_a_tree_fills_the_grid_and_never_more(method, tree):
    check_fills(method, tree, 3)


def check_fills(method: str, tree, seeds: int) -> None:
    for seed in range(seeds):
        pair = ToyPair(TOY, (3, 4))
        run = generate(pair, "x", method, seed=seed, draft_length=5, tree=tree)
        assert run.complete
        assert [r.start for r in run.rounds] == [sum(len(q.tokens) for q in run.rounds[:i]) for i in range(len(run.rounds))]
        assert run.stats.target_calls == pair.target.passes
        assert all(len(r.kinds) == len(r.tokens) == len(r.relaxed) for r in run.rounds)
        assert all(r.accepted <= len(r.accept_prob) == len(r.cost) <= r.drafted < 13 - r.start for r in run.rounds)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_tokens_whatever_else_runs(method):
    first = generate(ToyPair(TOY), "x", method, seed=7).tokens
    other = stream(ToyPair(TOY), "y", method, seed=8)
    tokens = []
    for r in stream(ToyPair(TOY), "x", method, seed=7):
        tokens += r.tokens
        next(other, None)
        torch.rand(3)
    assert tokens == first


@pytest.mark.parametrize("method", ["ar", "eagle1", "block"])
def test_time_is_booked_where_it_was_spent(monkeypatch, method):
    """A slow drafter, target and draw: each second counts in its own part, so that no part can hold another's."""

    def slow(seconds, call):
        return lambda *args, **more: time.sleep(seconds) or call(*args, **more)

    pair, begin = ToyPair(TOY), ToyPair.begin
    spent = {"target": 0.008, "draft": 0.004}

    def begun(pair, cfg_scale):
        target, drafter = begin(pair, cfg_scale)
        target.prefill, target.extend = (slow(spent["target"], call) for call in (target.prefill, target.extend))
        drafter.propose = slow(spent["draft"], drafter.propose)
        return target, drafter

    monkeypatch.setattr(ToyPair, "begin", begun)
    for event in stream(pair, "x", method):
        assert event.target_seconds >= spent["target"]
        assert event.draft_seconds >= spent["draft"] * (event.draft_calls > 0)
        assert (event.draft_seconds > 0) == (event.draft_calls > 0)
        assert event.seconds == sum((event.draft_seconds, event.target_seconds, event.verify_seconds, event.other_seconds))


def test_seeds_differ_and_zero_is_a_seed():
    assert len({tuple(generate(ToyPair(TOY), "x", "coolsd", seed=s).tokens) for s in range(8)}) >= 4
    assert generate(ToyPair(TOY), "x", "coolsd", seed=0).tokens == generate(ToyPair(TOY), "x", "coolsd", seed=0).tokens


def test_lossless_costs_nothing_and_relaxed_does():
    assert generate(ToyPair(TOY, (8, 8)), "x", "eagle1").stats.bias_spent == pytest.approx(0, abs=1e-6)
    assert generate(ToyPair(TOY, (8, 8)), "x", "coolsd", delta=3.0).stats.bias_spent > 0.1


@pytest.mark.parametrize("method", [name for name in DRAFTING if not METHODS[name].jacobi])
def test_without_a_drafter_a_drafting_method_says_what_to_do(method):
    with pytest.raises(SettingsError, match="plain AR"):
        next(stream(ToyPair(TOY, drafts=False), "x", method))
    assert generate(ToyPair(TOY, drafts=False), "x", "ar").complete


def test_close_between_rounds_frees_the_sessions():
    pair = ToyPair(TOY)
    rounds = stream(pair, "x", "coolsd")
    next(rounds), next(rounds)
    target = weakref.ref(pair.target)
    pair.target = None
    rounds.close()
    gc.collect()
    assert target() is None


def test_a_full_memory_is_a_readable_error_and_frees_the_sessions(monkeypatch):
    pair, frees = ToyPair(TOY), []
    monkeypatch.setattr(pair, "free", lambda: frees.append(target()))
    rounds = stream(pair, "x", "coolsd")
    next(rounds)
    target = weakref.ref(pair.target)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    pair.target.extend, pair.target = full, None
    with pytest.raises(
        MemoryFull, match=r"toy ran out of memory while decoding; what the picture took was freed.*or choose a smaller tree or target\.$"
    ):
        next(rounds)
    assert frees == [None]


OTHERS = [("coolsd", TREES[3]), ("lantern", TREES[2])]


def poisoned(model: str, since: int, bad: float) -> ToyPair:
    """A pair one of whose models gives a logit that is not finite from its pass number `since` on."""
    pair, calls = ToyPair(TOY, environment={"dtype": "float16"}), []

    def spoilt(logits: torch.Tensor) -> torch.Tensor:
        calls.append(logits)
        return logits.index_fill(-1, torch.tensor(1), bad) if len(calls) > since else logits

    begin = pair.begin

    def begun(cfg_scale: float):
        target, drafter = begin(cfg_scale)
        if model == "target":
            step = target.answer
            target.answer = lambda contexts: replace(result := step(contexts), logits=spoilt(result.logits))
        else:
            propose = drafter.propose
            drafter.propose = lambda shape, to_probs, generator: propose(shape, lambda logits: to_probs(spoilt(logits)), generator)
        return target, drafter

    pair.begin = begun
    return pair


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("case", [("ar", "chain"), ("coolsd", "chain"), ("block", "chain"), *OTHERS], ids=str)
def test_what_is_not_finite_ends_the_run_and_names_the_model(case, bad, temperature):
    method, tree = case
    for model in ("target", "drafter")[: 1 + (method != "ar")]:
        rounds = stream(poisoned(model, 2, bad), "x", method, tree=tree, temperature=temperature)
        with pytest.raises(Broken, match=f"The {model} of toy gives NaN or infinity in float16. Try float32, or choose another {model}."):
            list(rounds)


def test_a_float32_pair_that_is_not_finite_has_damaged_weights_and_no_run_holds_nan():
    pair = poisoned("target", 0, float("nan"))
    pair.environment = {"dtype": "float32"}
    with pytest.raises(Broken, match="Its weights are damaged"):
        generate(pair, "x", "ar")
    run = generate(ToyPair(TOY), "x", "ar")
    broken = replace(run, rounds=[replace(run.rounds[0], target_seconds=float("nan"))])
    assert json.loads(broken.to_json(), parse_constant=pytest.fail)["rounds"][0]["target_seconds"] is None


def test_bad_settings_are_refused_before_anything_runs():
    pair = ToyPair(TOY)
    for bad in ({"delta": float("nan")}, {"draft_length": 2.5}, {"temperature": None}, {"seed": True}, {"method": "magic"}, {"colour": 1}):
        with pytest.raises(SettingsError):
            stream(pair, "x", **bad)
    with pytest.raises(SettingsError, match="empty"):
        stream(pair, "   ")
    with pytest.raises(SettingsError, match="of type list"):
        stream(pair, ["a rose"])
    for inspect in ("3", -1):
        with pytest.raises(SettingsError, match="0 or more"):
            stream(pair, "x", inspect=inspect)
    with pytest.raises(TypeError, match="loaded pair, not 'meadow'"):
        stream("meadow", "x")
    assert pair.target is None


def test_numbers_of_other_libraries_are_numbers():
    settings = validate(METHODS, prompt="x", delta=np.float32(1.5), seed=np.int64(3))
    assert json.dumps([settings.delta, settings.seed]) == "[1.5, 3]"


def test_the_inspector_keeps_the_heads_of_the_rows():
    for method, tree in (("coolsd", "chain"), ("block", "chain"), ("coolsd", TREES[3])):
        for r in stream(ToyPair(TOY, (2, 6)), "x", method, inspect=2, tree=tree):
            assert len(r.top) == max(len(r.tokens), len(r.accept_prob))
            assert ["q" in position for position in r.top] == [level < len(r.accept_prob) for level in range(len(r.top))]
            assert all(2 <= len(row) <= 3 for position in r.top for row in position.values())
            for position in r.top:
                assert all(row == sorted(row, key=lambda entry: -entry[1]) for row in position.values())
                assert len({frozenset(code for code, _ in row) for row in position.values()}) == 1


def test_what_the_inspector_keeps_is_not_timed(monkeypatch):
    monkeypatch.setattr("coolsd.decoding.heads_of", lambda *_: time.sleep(0.3))
    assert min(r.seconds for r in stream(ToyPair(TOY, (2, 3)), "x", "coolsd", inspect=2)) < 0.25


def test_the_inspector_follows_the_accepted_path():
    """In a tree too, the rows shown at a level are those after the tokens accepted before it."""
    tokens = [0, 0]
    for r in stream(ToyPair(TOY, (4, 6)), "x", "eagle1", inspect=V, tree=TREES[0]):
        for level, position in enumerate(r.top):
            context = [*tokens, *r.tokens[:level]][-2:]
            assert dict(position["p"]) == pytest.approx(dict(enumerate(TOY.p[context[0], context[1]].tolist())), abs=1e-6)
            if "q" in position:
                assert dict(position["q"]) == pytest.approx(dict(enumerate(TOY.q[context[0], context[1]].tolist())), abs=1e-6)
        tokens += r.tokens


# ---- what target and drafter are given


class Scribe(ToyPair):
    """Features that spell the tokens up to there, and a record of all that the sessions are given."""

    def begin(self, cfg_scale: float):
        target, drafter = super().begin(cfg_scale)
        self.calls, self.scale = [], cfg_scale
        spelled = lambda path: sum((t + 1) * (V + 1) ** i for i, t in enumerate(path))  # noqa: E731

        def step(contexts):
            paths = torch.tensor([[[float(spelled(path))] for path in contexts]], dtype=torch.float64)
            return Step(ToyTarget.answer(target, contexts).logits, paths)

        def extend(tokens, parents):
            self.calls.append(("extend", tokens.tolist(), tuple(parents)))
            return ToyTarget.extend(target, tokens, parents)

        def observe(hidden, tokens):
            self.calls.append(("observe", hidden.flatten().tolist(), tokens.tolist()))
            ToyDrafter.observe(drafter, hidden, tokens)

        def propose(shape, to_probs, generator):
            draft = ToyDrafter.propose(drafter, shape, to_probs, generator)
            self.calls.append(("propose", shape, to_probs, draft))
            return draft

        def prefill(prompt):
            self.prompt = prompt
            return ToyTarget.prefill(target, prompt)

        target.answer, target.extend, drafter.observe, drafter.propose = step, extend, observe, propose
        target.prefill = prefill
        return target, drafter


@pytest.mark.parametrize("tree", ["chain", *TREES], ids=str)
def test_sessions_are_given_what_was_committed(tree):
    """A lossless law does not see a drafter that is given the wrong features or tokens; only its speed would."""
    spelled = lambda path: float(sum((t + 1) * (V + 1) ** i for i, t in enumerate(path)))  # noqa: E731
    deepest = 0
    for seed in range(4):
        pair = Scribe(TOY, (3, 4))
        run = generate(pair, "a rose", "coolsd", tree=tree, seed=seed, draft_length=4, cfg_scale=3.5, top_k=2, temperature=0.7)
        tokens, rounds = run.tokens, iter(run.rounds[1:])
        assert (pair.prompt, pair.scale) == ("a rose", 3.5)
        assert run.rounds[0].kinds == ("sampled",)
        observed = 0
        for before, call in zip([None, *pair.calls], pair.calls, strict=False):
            if call[0] == "observe":
                upto = observed + len(call[2])
                assert call[2] == tokens[observed:upto]
                assert call[1] == [spelled(tokens[:i]) for i in range(observed, upto)]
                observed = upto
            elif call[0] == "propose":
                rest = len(tokens) - observed - 1
                whole = shape(run.settings)
                assert call[1] == within(whole, rest)
                assert before[0] == "observe"
                logits = torch.randn(2, V)
                assert torch.equal(call[2](logits), to_probs(logits, 0.7, 2))
            else:
                r = next(rounds)
                draft = before[3] if before and before[0] == "propose" else None
                drafted, parents = ([], ()) if draft is None else (draft.tokens.tolist(), draft.parents)
                assert call[1:] == ([tokens[r.start - 1], *drafted], (-1, *(parent + 1 for parent in parents)))
                assert r.drafted == (0 if draft is None else max(depths(parents)))
                assert r.draft_calls == (0 if draft is None else draft.calls)
                deepest = max(deepest, r.accepted)
    assert deepest >= 1


def test_rows_are_filtered_once_for_drafting_and_for_verifying():
    """With top-k 1 a drafter and a target that agree on the likeliest token accept everything, and any other filter would not."""
    toy = Toy(TOY.p, TOY.p)
    run = generate(ToyPair(toy, (4, 5)), "x", "eagle1", top_k=1, draft_length=3)
    assert run.tokens == generate(ToyPair(toy, (4, 5)), "x", "ar", temperature=0).tokens
    assert all(r.accepted == r.drafted for r in run.rounds)
    assert all(f == 1.0 for r in run.rounds for f in r.accept_prob)


@pytest.mark.parametrize("tree", ["chain", "dynamic", [[0], [1], [0, 0]]], ids=str)
@pytest.mark.parametrize("model", ["target", "drafter"])
def test_a_broken_weight_of_a_pair_is_named(model, tree):
    pair = tiny_pair.__wrapped__()
    broken = pair.target_model.norm if model == "target" else pair.drafter_model.fc
    broken.weight.data.view(-1)[0] = float("nan")
    for temperature in (0.0, 1.0):
        with pytest.raises(Broken, match=f"The {model} of tiny gives NaN or infinity"):
            generate(pair, "a rose", "eagle1", tree=tree, temperature=temperature)
