"""The drafter against the original code's tensors, and its session against a pass over everything at once."""

from functools import partial

import pytest
import torch
from files import DATA
from safetensors.torch import load_file

from coolsd.models import drafter as drafting
from coolsd.models.cache import CachePosition
from coolsd.models.checkpoints import fill
from coolsd.models.drafter import CellEntries, EagleDrafter, levels
from coolsd.models.eagle import Eagle, EagleConfig
from coolsd.models.llamagen.load import from_lantern, target_config
from coolsd.models.llamagen.network import LlamaGen
from coolsd.models.llamagen.session import LlamaGenTarget
from coolsd.models.llamagen.text_table import Conditioning
from coolsd.sampling import to_probs
from coolsd.trees import Dynamic, chain, children, depths, shape

CONFIG = EagleConfig(dim=64, heads=4, ffn=256, vocab=256, caption_tokens=120, grid=4)
TOLERANCE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module")
def tiny():
    model = Eagle(CONFIG).eval()
    model.load_state_dict(torch.load(DATA / "tiny_lantern_drafter" / "pytorch_model.bin", weights_only=True), strict=True)
    head = torch.nn.Linear(64, 256, bias=False)
    head.weight.data = load_file(DATA / "tiny_lantern_target" / "model.safetensors")["lm_head.weight"]
    with torch.inference_mode():
        yield model, head, torch.load(DATA / "lantern.pt", weights_only=True)


def test_rope_has_one_zero_row_less_than_the_target(tiny):
    model, _, ref = tiny
    table = model.rope()
    assert not table[:119].any()
    assert table[119, 0, 0] == 1
    torch.testing.assert_close(table[: 119 + 16], ref["drafter_freqs"][: 119 + 16], rtol=0, atol=1e-6)


def test_prefix_and_step(tiny):
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 7.5, model.rope()))
    hidden, ids = ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0]
    assert not ids[:-1].any()
    torch.testing.assert_close(model(hidden, ids[None], drafter.entries.rope[:120]), ref["d_prefix_out"], **TOLERANCE)
    drafter.observe(hidden, ids[-1:])
    torch.testing.assert_close(drafter.entries.feature, ref["d_prefix_out"][:, -1:], **TOLERANCE)
    torch.testing.assert_close(drafter.entries.cache.keys[0, :, :, :120], ref["d_prefix_k"], **TOLERANCE)
    torch.testing.assert_close(drafter.entries.cache.values[0, :, :, :120], ref["d_prefix_v"], **TOLERANCE)
    rows = []
    probs = lambda logits: rows.append(logits) or to_probs(logits)  # noqa: E731
    drafter.propose(chain(1), probs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows[0], ref["d_cfg_logits_last"], **TOLERANCE)


def test_the_row_travels_with_the_token_and_drafting_leaves_no_trace(tiny):
    model, head, _ = tiny
    torch.manual_seed(0)
    hidden, tokens = torch.randn(2, 125, 64), torch.randint(256, (6,))
    probs = partial(to_probs, top_k=20)

    def draft(observations):
        drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 3.0, model.rope()))
        drafts = []
        for start, end in observations:
            first = 0 if start == 0 else 119 + start
            drafter.observe(hidden[:, first : 119 + end], tokens[start:end])
            drafts.append(drafter.propose(chain(4), probs, torch.Generator().manual_seed(9)))
        return drafts[-1]

    whole, parts = draft([(0, 6)]), draft([(0, 1), (1, 4), (4, 6)])
    assert whole.tokens.tolist() == parts.tokens.tolist()
    torch.testing.assert_close(whole.q, parts.q, **TOLERANCE)
    assert whole.q.shape == (4, 256)
    assert bool(((whole.q > 0).sum(-1) == 20).all())
    assert bool((whole.q.gather(1, whole.tokens[:, None]) > 0).all())


def test_one_step_and_a_level_of_siblings(tiny):
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 7.5, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    step = model(drafter.entries.feature, torch.tensor([[7]]), drafter.entries.rope[120:121], None, drafter.entries.cache, 120)
    torch.testing.assert_close(step, ref["d_step_out"], **TOLERANCE)
    mask = torch.cat([torch.ones(4, 120, dtype=torch.bool), torch.eye(4, dtype=torch.bool)], dim=1)
    hidden, rope = drafter.entries.feature.expand(-1, 4, -1), drafter.entries.rope[[120] * 4]
    level = model(hidden, torch.tensor([[7, 8, 9, 10]]), rope, mask, drafter.entries.cache, 120)
    torch.testing.assert_close(level, ref["d_tree_out"], **TOLERANCE)


def test_rows_of_a_drafted_tree(tiny, monkeypatch):
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 7.5, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    draws = iter(ref["draft_tokens"].split(ref["draft_levels"].tolist()))
    monkeypatch.setattr(drafting, "pick_distinct", lambda rows, uniform: next(draws)[:, : len(uniform)])  # the draws of the original
    tree = shape("mc_sim_7b_63")
    draft = drafter.propose(tree, partial(to_probs, top_k=100), torch.Generator())
    assert draft.parents == tree
    assert draft.calls == len(ref["draft_levels"])
    expanded = [-1, *(node for node in range(len(tree)) if node in tree)]
    for node, parent in enumerate(tree):
        row = expanded.index(parent)
        torch.testing.assert_close(draft.q[node], ref["draft_full_probs"][row], **TOLERANCE)
        assert draft.tokens[node] == ref["draft_tokens"][row, node - tree.index(parent)]


def test_a_tree_of_one_branch_is_a_chain_and_siblings_differ(tiny):
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 3.0, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    probs = partial(to_probs, top_k=20)
    single = drafter.propose(chain(4), probs, torch.Generator().manual_seed(5))
    plan, uniform = levels(chain(4), torch.device("cpu")), torch.rand(4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    tokens, q = drafter.draw_tree(plan, probs, CachePosition(drafter.entries.cache.committed), drafter.entries.feature, uniform)
    assert single.tokens.tolist() == tokens.tolist()
    torch.testing.assert_close(single.q, q, **TOLERANCE)
    assert drafter.entries.cache.committed == 120
    wide = drafter.propose((-1,) * 8, probs, torch.Generator().manual_seed(5))
    assert len(set(wide.tokens.tolist())) == 8
    assert wide.calls == 1
    assert drafter.propose((), probs, torch.Generator()).calls == 0


def test_rows_below_a_node_do_not_see_its_siblings(tiny):
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 3.0, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    tree = (-1, -1, 0, 1, 2, 3)
    draft = drafter.propose(tree, to_probs, torch.Generator().manual_seed(1))
    for first, second, third in ((0, 2, 4), (1, 3, 5)):
        at = drafter.entries.cache.committed
        feature = drafter.entries.feature
        for depth, node in enumerate((first, second)):
            rope = drafter.entries.rope[at + depth : at + depth + 1]
            feature = model(feature, draft.tokens[node][None, None], rope, None, drafter.entries.cache, at + depth)
        row = to_probs(drafter.entries.logits(feature))[0]
        torch.testing.assert_close(draft.q[third], row, **TOLERANCE)


def test_ranked_trees(tiny):
    """A dynamic tree, and a greedy static one: ranked siblings with one-hot rows, each node below the path it belongs to."""
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 3.0, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    greedy = partial(to_probs, temperature=0)

    def law(path: list[int]) -> torch.Tensor:
        feature, at = drafter.entries.feature, drafter.entries.cache.committed
        for i, token in enumerate(path):
            feature = model(
                feature, torch.tensor([[token]]), drafter.entries.rope[at + i : at + i + 1], None, drafter.entries.cache, at + i
            )
        return drafter.entries.logits(feature)[0].softmax(-1)

    drafts = [drafter.propose(Dynamic(), to_probs, torch.Generator()), drafter.propose(shape("mc_sim_7b_63"), greedy, torch.Generator())]
    assert [len(draft.tokens) for draft in drafts] == [59, 25]
    assert drafts[0].calls == 5 >= max(depths(drafts[0].parents))
    assert drafter.entries.cache.committed == 120
    for draft in drafts:
        assert draft.q.argmax(-1).tolist() == draft.tokens.tolist()
        assert bool(((draft.q == 0) | (draft.q == 1)).all())
        paths: list[list[int]] = [[]]
        for row, nodes in enumerate(children(draft.parents)):
            ranked = law(paths[row]).topk(len(nodes)).indices.tolist() if nodes else []
            assert draft.tokens[nodes].tolist() == ranked
            paths += [[*paths[row], token] for token in ranked]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_dynamic_tree_keeps_the_most_confident_branches(tiny, temperature):
    """Two levels, small enough to list all that could be kept; confidence is that of the rows tokens would be drawn from."""
    model, head, ref = tiny
    drafter = EagleDrafter(CellEntries(model, head, CONFIG.vocab, 3.0, model.rope()))
    drafter.observe(ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0, -1:])
    draft = drafter.propose(Dynamic(depth=2, top_k=3, nodes=6), partial(to_probs, temperature=temperature), torch.Generator())
    first = (drafter.entries.logits(drafter.entries.feature)[0] / temperature).softmax(-1).topk(3)
    mass = {(int(token),): float(value) for token, value in zip(first.indices, first.values, strict=True)}
    for token in first.indices:
        feature = model(drafter.entries.feature, token[None, None], drafter.entries.rope[120:121], None, drafter.entries.cache, 120)
        second = (drafter.entries.logits(feature)[0] / temperature).softmax(-1).topk(3)
        for x, value in zip(second.indices, second.values, strict=True):
            mass[int(token), int(x)] = mass[int(token),] * float(value)
    offered = set()
    for node, token in enumerate(draft.tokens.tolist()):
        parent = draft.parents[node]
        offered.add((token,) if parent < 0 else (int(draft.tokens[parent]), token))
    assert offered == set(sorted(mass, key=mass.__getitem__, reverse=True)[:6])


def test_lanterns_target_features_and_greedy_tokens(tiny):
    _, _, ref = tiny
    folder = DATA / "tiny_lantern_target"
    model = fill(LlamaGen(target_config(folder)), from_lantern(load_file(folder / "model.safetensors")), "target").eval()
    conditioning = Conditioning(ref["cond_combined"][0], ref["attention_mask"][0].bool())
    torch.testing.assert_close(model.cls_embedding.uncond_embedding, ref["cond_combined"][1])
    target = LlamaGenTarget(model, lambda _: conditioning, 7.5, model.rope())
    step = target.prefill("")
    torch.testing.assert_close(step.hidden, ref["prefill_hidden_bf16mask"], **TOLERANCE)
    tokens = [int(step.logits.argmax())]
    for _ in range(15):
        step = target.extend(torch.tensor(tokens[-1:]), (-1,))
        target.keep([0])
        tokens.append(int(step.logits.argmax()))
    assert tokens == ref["ea_tokens_chain"][0].tolist() == ref["ea_tokens_mc_sim_7b_63"][0].tolist()
