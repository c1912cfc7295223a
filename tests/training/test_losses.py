"""What trainings minimise, by value: losses by hand, what a drafter is given, which weights an update touches, which pictures it sees."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import CONFIG, tiny_pair, vqvae

from coolsd.models.llamagen.text_table import TextTable
from coolsd.protocols import TeacherForced
from coolsd.sampling import guided
from coolsd.training import tokenizer
from coolsd.training.drafter import DrafterRecipe, Examples, drafter_loss, train_drafter
from coolsd.training.loop import ALONE, Process
from coolsd.training.muon import Muon, optimizers, orthogonal, prepare
from coolsd.training.target import TargetRecipe, Trainee, train_target
from coolsd.training.tokens import TokenData

QUIET = DrafterRecipe(noise=0.0, scale=3.0)
TOKENS = torch.tensor([3, 1, 30, 7, 7, 0, 5, 2, 9, 9, 1, 31, 4, 8, 6, 11])
WIDTH, CODES, ENTRIES = 6, 5, 7
AT = torch.tensor([3, 4, 5, 6])


def teacher_forced(seed: int = 0) -> TeacherForced:
    """Seven entries of two rows; the last four are looked at. Every number is its own."""
    random = torch.Generator().manual_seed(seed)
    head = torch.randn(CODES, WIDTH, generator=random)
    hidden = torch.randn(2, ENTRIES + 1, WIDTH, generator=random) * 3
    logits = torch.randn(len(AT), CODES, generator=random)
    rope, mask = torch.rand(ENTRIES, 2, 2), torch.ones(2, 1, ENTRIES, ENTRIES, dtype=torch.bool)
    return TeacherForced(hidden, torch.arange(ENTRIES), rope, mask, AT, logits, lambda features: features @ head.T)


class FixedOutput:
    """A drafter that answers with one table, and keeps what it was given."""

    def __init__(self, answer: torch.Tensor):
        self.answer, self.calls = answer, []

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        self.calls.append(batch)
        return self.answer


def by_hand(features: torch.Tensor, one: TeacherForced, recipe: DrafterRecipe) -> float:
    """Smooth L1 of the features and cross-entropy of the guided rows, entry by entry."""
    apart, rows = [], []
    for i, entry in enumerate(one.at.tolist()):
        for row in range(2):
            for a, b in zip(features[row, entry].tolist(), one.hidden[row, entry + 1].tolist(), strict=True):
                apart.append(0.5 * (a - b) ** 2 if abs(a - b) < 1 else abs(a - b) - 0.5)
        p = np.exp(one.logits[i].double().numpy())
        conditional, unconditional = (one.head(features[row, entry]).double().numpy() for row in range(2))
        q = np.exp(unconditional + recipe.scale * (conditional - unconditional))
        rows.append(-float((p / p.sum() * np.log(q / q.sum())).sum()))
    return recipe.feature_weight * sum(apart) / len(apart) + recipe.row_weight * sum(rows) / len(rows)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.0), (0.0, 0.5)])
def test_the_drafters_loss_by_hand(weights):
    one, answer = teacher_forced(), teacher_forced(1).hidden[:, 1:]
    recipe = replace(QUIET, feature_weight=weights[0], row_weight=weights[1])
    for own in (False, True):
        assert drafter_loss(FixedOutput(answer), one, recipe, own).item() == pytest.approx(by_hand(answer, one, recipe), rel=1e-5)


def test_a_drafter_that_foretells_the_next_feature_has_no_feature_loss():
    one = teacher_forced()
    oracle = FixedOutput(one.hidden[:, 1:].clone())
    assert drafter_loss(oracle, one, replace(QUIET, row_weight=0.0), own=True).item() == 0
    shifted = FixedOutput(one.hidden[:, :-1].clone())
    assert drafter_loss(shifted, one, replace(QUIET, row_weight=0.0), own=False).item() > 0.5


@pytest.mark.parametrize("family", ["llamagen", "lumina"])
def test_the_next_feature_through_the_head_gives_the_teacher_forced_rows(family, lumina):
    pair = tiny_pair() if family == "llamagen" else lumina
    with torch.inference_mode():
        one = pair.teacher_forced("a red rose", TOKENS % 30, 3.0)
        torch.testing.assert_close(guided(one.head(one.hidden[:, one.at + 1]), 3.0), one.logits, atol=1e-4, rtol=1e-4)


def test_what_a_drafter_is_given():
    one, answer = teacher_forced(), teacher_forced(1).hidden[:, 1:].requires_grad_()
    inputs, bound = one.hidden[:, :-1], 0.1 * one.hidden[:, :-1].std().item()
    torch.manual_seed(0)
    drafters = [FixedOutput(answer) for _ in range(40)]
    for drafter in drafters:
        drafter_loss(drafter, one, replace(QUIET, noise=0.1, own_share=1.0), own=True)
        for _, ids, rope, mask in drafter.calls:
            assert torch.equal(ids, one.ids[None])
            assert rope is one.rope
            assert mask is one.mask
    noise = torch.stack([drafter.calls[0][0] - inputs for drafter in drafters])
    assert noise.abs().max() <= bound * (1 + 1e-4)  # uniform, on both sides of the feature
    assert noise.min() < -0.98 * bound
    assert noise.max() > 0.98 * bound
    assert abs(noise.mean()) < 5 * bound / 3**0.5 / noise.numel() ** 0.5
    # The second pass is given its own features one entry later, and those of the target, without noise, elsewhere.
    own = drafters[0].calls[1][0]
    assert torch.equal(own[:, AT[1:]], answer[:, AT[:-1]])
    rest = torch.ones(ENTRIES, dtype=torch.bool)
    rest[AT[1:]] = False
    assert torch.equal(own[:, rest], inputs[:, rest])
    assert not own.requires_grad
    some = FixedOutput(answer)
    drafter_loss(some, one, replace(QUIET, own_share=0.0), own=True)
    assert torch.equal(some.calls[1][0], inputs)


def test_the_tokenizers_loss_by_hand():
    random = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2, 3, 16, 16, generator=random) * 2 - 1 for _ in range(2))
    none = tokenizer.TokenizerRecipe(l1=0.0, l2=0.0, pooled=0.0)
    blocks = (a - b).view(2, 3, 2, 8, 2, 8).mean((3, 5)).abs().mean().item()
    logs = sum(math.log10((a[i] - b[i]).square().mean().item() + 1e-6) for i in range(2)) / 2
    for change, expected in (
        ({"l1": 2.0}, 2 * (a - b).abs().mean().item()),
        ({"l2": 3.0}, 3 * (a - b).square().mean().item()),
        ({"pooled": 1.5}, 1.5 * blocks),
        ({"log_error": 0.5}, 0.5 * logs),
        ({"perceptual": 0.25}, 0.25 * 7),
    ):
        assert tokenizer.reconstruction_loss(a, b, replace(none, **change), lambda *_: 7.0) == pytest.approx(expected, rel=1e-5)


def test_the_codebooks_loss_pulls_codes_fully_and_the_encoder_a_quarter():
    torch.manual_seed(0)
    trainee = tokenizer.TokenizerTrainee(vqvae(), 0.9, decoder_only=False)
    _, loss = trainee(torch.rand(2, 3, 16, 16), torch.empty(0))
    vectors = F.normalize(trainee.vqvae.quantize.embedding.weight.detach(), dim=-1)
    apart = (trainee.latest[:, None] - vectors).square().mean(-1).amin(1).mean().item()
    assert loss.item() == pytest.approx(1.25 * apart, rel=1e-4)
    loss.backward()
    pulled = {name.split(".")[0] for name, p in trainee.vqvae.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert pulled == {"encoder", "quant_conv", "quantize"}


def changed(module: torch.nn.Module, update) -> set[str]:
    """Names of the parameters that an update moves."""
    before = {name: p.clone() for name, p in module.named_parameters()}
    update()
    return {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}


class LoggedExamples(Examples):
    """Examples that note which were asked for."""

    def __init__(self) -> None:
        super().__init__(None, [("rose", TOKENS % 7), ("sea", TOKENS)], 1.0, 0)
        self.numbers: list[int] = []

    def __call__(self, k: int):
        self.numbers.append(k)
        return super().__call__(k)


def test_a_drafters_update_moves_all_of_it_and_nothing_of_the_target(tmp_path):
    pair, recipe = tiny_pair(), DrafterRecipe(steps=1, batch=2, warmup=1, decay=0.0)
    drafter = pair.empty_drafter()
    target = {name: p.clone() for name, p in pair.target_model.named_parameters()}
    moved = changed(drafter, lambda: train_drafter(drafter, pair, LoggedExamples(), recipe, tmp_path / "d.pt", ALONE))
    assert moved == {name for name, _ in drafter.named_parameters()}
    assert all(torch.equal(p, target[name]) for name, p in pair.target_model.named_parameters())


def tokens(text: TextTable) -> TokenData:
    photos = SimpleNamespace(
        captions=dict.fromkeys(range(64), ("a red rose",)), variants={i: [(TOKENS.numpy() + i) % 32] for i in range(64)}
    )
    return TokenData(photos, text)


def test_a_targets_update_moves_all_of_it(tmp_path):
    data = tokens(tiny_pair().text)
    torch.manual_seed(0)
    trainee = Trainee(CONFIG, tiny_pair().codebook)
    for p in trainee.parameters():
        p.data += 0.05 * torch.randn_like(p)  # branches that are closed at first pass nothing on
    recipe = TargetRecipe(steps=1, batch=4, warmup=1, decay=0.0, drop_caption=0.5)
    moved = changed(trainee, lambda: train_target(trainee, data, data, recipe, tmp_path / "t.pt", compiled=False))
    assert moved == {name for name, _ in trainee.named_parameters()}


def test_matrices_of_the_blocks_take_muons_step_and_all_else_adams():
    drafter = tiny_pair().empty_drafter()
    (muon, muon_rate), (adam, adam_rate) = optims = optimizers(drafter, (drafter.fc, drafter.layers), 0.02, 2e-3, 0.1)
    names = {id(p): name for name, p in drafter.named_parameters()}
    by_muon, by_adam = ({names[id(p)] for group in optim.param_groups for p in group["params"]} for optim in (muon, adam))
    assert by_muon == {name for name, p in drafter.named_parameters() if p.ndim == 2 and name != "embed_tokens.weight"}
    assert by_muon | by_adam == set(names.values())
    assert not by_muon & by_adam
    prepare(optims, 0.25)
    assert [group["lr"] for optim in (muon, adam) for group in optim.param_groups] == [0.25 * muon_rate, 0.25 * adam_rate]
    weight = torch.nn.Parameter(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    step = Muon([weight], lr=0.1, weight_decay=0.5)
    before, weight.grad = weight.detach().clone(), torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    along = orthogonal(weight.grad)
    step.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.05) - 0.1 * 2 * along.float(), atol=2e-2, rtol=0)  # computed in bfloat16


# ---- several processes


def test_no_two_processes_train_a_drafter_on_the_same_pictures(tmp_path):
    recipe, batches = DrafterRecipe(steps=2, batch=2, warmup=1), []
    for rank in range(3):
        examples, drafter = LoggedExamples(), tiny_pair().empty_drafter()
        train_drafter(drafter, tiny_pair(), examples, recipe, tmp_path / f"{rank}.pt", Process(torch.device("cpu"), rank, 3))
        batches.append(examples.numbers)
    assert batches == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert [path.name for path in tmp_path.iterdir()] == ["0.pt"]  # the first process writes


def test_no_two_processes_train_a_target_or_a_tokenizer_on_the_same_pictures(tmp_path, monkeypatch):
    data, first = tokens(tiny_pair().text), {}
    batches = data.batches

    def noted(size, seed, drop=0.1):
        for batch in batches(size, seed, drop):
            first.setdefault((seed, drop), batch.tokens)
            yield batch

    data.batches = noted
    recipe = TargetRecipe(steps=1, batch=4, warmup=1, drop_caption=0.25)
    for rank in range(2):
        trainee = Trainee(CONFIG, tiny_pair().codebook)
        train_target(trainee, data, data, recipe, tmp_path / f"{rank}.pt", compiled=False, process=Process(torch.device("cpu"), rank, 2))
    one, other = (batch for (_, drop), batch in first.items() if drop == recipe.drop_caption)
    assert not torch.equal(one, other)

    request = []

    def stream(crops, size, start, skipped, workers, rank, ranks):
        request.append((rank, ranks))
        return iter([(torch.rand(2, 3, 16, 16), torch.empty(0))])

    monkeypatch.setattr(tokenizer, "batches", stream)
    monkeypatch.setattr(tokenizer, "Crops", lambda *_: None)
    small = tokenizer.TokenizerRecipe(steps=1, batch=2, warmup=1)
    for rank in range(2):
        data, process = tokenizer.TokenizerData(tmp_path, [], 4), Process(torch.device("cpu"), rank, 2)
        tokenizer.train_tokenizer(vqvae(), data, small, tmp_path / f"v{rank}.pt", process)
    assert request == [(0, 2), (1, 2)]
    assert Counter(path.name for path in tmp_path.glob("v*")) == {"v0.pt": 1}
