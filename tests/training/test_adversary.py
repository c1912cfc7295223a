"""The adversarial terms of a decoder: exact losses, who learns from which, and a resumed run that is the uninterrupted one."""

import pytest
import torch
from torch import nn

from coolsd.training import adversary, tokenizer
from coolsd.training.adversary import PatchDiscriminator, adversarial_losses, decoder_loss, discriminator_loss


def test_hinge_losses_have_their_values():
    real, generated = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.0, 0.5])
    assert discriminator_loss(real, generated).item() == pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1 + 1.5) / 3)
    assert decoder_loss(generated).item() == pytest.approx(2.5 / 3)
    assert discriminator_loss(torch.tensor([1.0]), torch.tensor([-1.0])).item() == 0


def test_scores_are_of_patches_and_every_layer_has_norm_one():
    torch.manual_seed(0)
    judge = PatchDiscriminator()
    pictures = torch.rand(2, 3, 64, 64) * 2 - 1
    for _ in range(50):  # power iterations
        judge(pictures)
    assert judge(pictures).shape == (2, 1, 8, 8)
    convolutions = [m for m in judge.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [*adversary.CHANNELS, 1]
    for layer in convolutions:
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=0.02)
    judge.eval()
    moved = pictures.clone()
    moved[..., 60:, 60:] *= -1
    changes = (judge(moved) - judge(pictures)).abs()[:, 0].amax(0) > 0
    assert changes[7, 7]
    assert not changes[:5].any()  # a patch is 38 pixels wide
    assert not changes[:, :5].any()


def test_each_loss_teaches_one_side():
    torch.manual_seed(0)
    judge, photos = PatchDiscriminator(), torch.rand(2, 3, 32, 32) * 2 - 1
    pictures = (photos * 0.5).requires_grad_()
    deceive, discriminate = adversarial_losses(judge, pictures, photos)
    deceive.backward()
    assert pictures.grad.abs().max() > 0
    assert all(p.grad is None for p in judge.parameters())
    pictures.grad = None
    discriminate.backward()
    assert pictures.grad is None
    assert all(p.grad.abs().max() > 0 for p in judge.parameters() if p.ndim > 1)
    assert all(p.requires_grad for p in judge.parameters())
    assert judge.training


def test_both_are_cut_by_one_window_at_every_phase_of_the_stride():
    photos = torch.arange(32.0 * 32).reshape(1, 1, 32, 32)
    corners = set()
    for seed in range(400):
        pictures, real = adversary.same_crop(-photos, photos, seed)
        assert torch.equal(pictures, -real)
        assert real.shape == (1, 1, 25, 25)
        corners.add(divmod(int(real[0, 0, 0, 0]), 32))
    assert corners == {(down, right) for down in range(8) for right in range(8)}


def test_the_weight_is_ramped_in():
    recipe = tokenizer.TokenizerRecipe(adversarial=0.4, ramp=4)
    assert [tokenizer.adversarial_weight(recipe, step) for step in (0, 1, 4, 9)] == pytest.approx([0, 0.1, 0.4, 0.4])
    assert tokenizer.adversarial_weight(tokenizer.TokenizerRecipe(adversarial=0.4, ramp=0), 0) == 0


def test_a_discriminator_learns_to_tell_noise_from_flat_pictures():
    torch.manual_seed(0)
    judge = PatchDiscriminator()
    optimizer = torch.optim.AdamW(judge.parameters(), 1e-3, betas=tokenizer.ADVERSARIAL_BETAS)
    for _ in range(30):
        flat, noise = torch.rand(4, 3, 1, 1).expand(-1, -1, 32, 32), torch.rand(4, 3, 32, 32)
        optimizer.zero_grad()
        adversarial_losses(judge, noise, flat)[1].backward()
        optimizer.step()
    assert judge(flat).mean() > judge(noise).mean() + 0.1
