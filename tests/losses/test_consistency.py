"""Consistency of views against a loop, and as part of a loss."""

import math

import torch

from longtail.losses import ConsistentViews, MarginCrossEntropy, view_consistency


def test_it_is_the_divergence_of_a_loop():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    for value, f, g in zip(view_consistency(first, second), first.tolist(), second.tolist(), strict=True):
        p, q = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (f, g))
        assert abs(float(value) - sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))) < 1e-10
    assert torch.autograd.gradcheck(lambda other: view_consistency(first, other), second.requires_grad_())


def test_the_first_view_teaches_and_does_not_learn():
    first, second = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    first.retain_grad(), second.retain_grad()
    view_consistency(first, second).sum().backward()
    assert first.grad is None
    assert torch.allclose(second.grad, second.softmax(dim=1) - first.softmax(dim=1), atol=1e-6)


def test_the_loss_is_of_all_views_and_their_pairs():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([0, 0, 1, 1, 2, 2])
    plain = MarginCrossEntropy()
    wanted = plain(logits, target) + 0.7 * view_consistency(logits[::2], logits[1::2]).mean()
    assert torch.allclose(ConsistentViews(plain, 0.7)(logits, target), wanted)
    same = logits[::2].repeat_interleave(2, dim=0)
    assert torch.allclose(ConsistentViews(plain, 5.0)(same, target), plain(same, target))
    assert torch.equal(ConsistentViews(plain)(logits[:5], target[:5]), plain(logits[:5], target[:5]))
    assert torch.equal(ConsistentViews(plain).eval()(logits, target), plain(logits, target))
