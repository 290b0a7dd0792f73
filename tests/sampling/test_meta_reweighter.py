"""Learned class weights, against the gradient through a step."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longtail.sampling import (
    MetaReweighter,
    network_hyper_gradients,
)


def reweighting_reference(weights, x, losses_of, meta_loss_of, head, rate):
    leaf = weights.clone().requires_grad_()
    theta = head.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses_of(x @ theta.T, leaf).mean(), theta, create_graph=True)
    return torch.autograd.grad(meta_loss_of(theta - rate * gradient), leaf)[0]


def test_the_reweighter_descends_along_the_gradient_through_the_step():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(3, (12,), generator=generator)
    head = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    reweighter = MetaReweighter(3, learning_rate=0.5)
    reweighter.update(torch.tensor([0.4, -0.2, 0.1]), torch.tensor([0, 1, 2]))  # away from equal weights
    weights = reweighter.weights

    def meta_loss_of(theta):
        return F.cross_entropy(x @ theta.T, (target + 1) % 3)

    def weighted(logits, leaf):
        return leaf[target] * F.cross_entropy(logits, target, reduction="none")

    expected = reweighting_reference(weights, x, weighted, meta_loss_of, head, 0.2)

    theta = head.clone().requires_grad_()
    losses = F.cross_entropy(x @ theta.T, target, reduction="none")
    (step,) = torch.autograd.grad(reweighter(losses, target).mean(), theta)
    after = (head - 0.2 * step).requires_grad_()
    (meta_gradient,) = torch.autograd.grad(meta_loss_of(after), after)
    slopes = network_hyper_gradients(
        lambda p: F.cross_entropy(x @ p["head"].T, target, reduction="none"),
        {"head": head},
        {"head": meta_gradient},
        0.2,
    )
    by_class = torch.zeros(3, dtype=torch.float64).index_add_(0, target, slopes)
    torch.testing.assert_close(by_class, expected, rtol=1e-9, atol=1e-14)
    seen = []
    reweighter._rates.descend = lambda gradient: seen.append(gradient) or True
    assert reweighter.update(slopes, target)
    torch.testing.assert_close(seen[0], 2 * expected)


def test_the_reweighter_takes_several_labels_a_sample():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (6, 3), generator=generator).double()
    head = torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def losses_of(logits):
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def meta_loss_of(theta):
        return F.binary_cross_entropy_with_logits(x @ theta.T, 1 - labels)

    expected = reweighting_reference(
        torch.ones(3, dtype=torch.float64),
        x,
        lambda logits, leaf: (leaf * losses_of(logits)).sum(1),
        meta_loss_of,
        head,
        0.2,
    )
    theta = head.clone().requires_grad_()
    (step,) = torch.autograd.grad(losses_of(x @ theta.T).sum(1).mean(), theta)
    after = (head - 0.2 * step).requires_grad_()
    (meta_gradient,) = torch.autograd.grad(meta_loss_of(after), after)
    slopes = network_hyper_gradients(
        lambda p: losses_of(x @ p["head"].T), {"head": head}, {"head": meta_gradient}, 0.2
    )
    assert slopes.shape == (6, 3)
    torch.testing.assert_close(slopes.sum(0), expected, rtol=1e-9, atol=1e-14)
    reweighter = MetaReweighter(3)
    torch.testing.assert_close(reweighter(losses_of(x @ head.T)), losses_of(x @ head.T))
    assert reweighter.update(slopes)
    torch.testing.assert_close((reweighter.weights - 1).sign(), -expected.sign())


def test_the_reweighter_is_resumable_and_counts_what_it_skips():
    reweighter = MetaReweighter(2)
    reweighter.update(torch.tensor([0.3, -0.1]), torch.tensor([0, 1]))
    with pytest.warns(UserWarning, match="not finite"):
        assert not reweighter.update(torch.tensor([np.inf, 0.0]), torch.tensor([0, 1]))
    again = MetaReweighter(2)
    again.load_state_dict(reweighter.state_dict())
    assert again.num_skipped == 1
    for each in (reweighter, again):
        each.update(torch.tensor([0.2, 0.2]), torch.tensor([1, 1]))
    assert torch.equal(again.weights, reweighter.weights)


@pytest.mark.parametrize("wrong", [-1, -100, 2])
def test_a_class_that_is_none_is_refused(wrong):
    reweighter = MetaReweighter(2)
    target = torch.tensor([0, wrong])
    for call in (reweighter, reweighter.update):
        with pytest.raises(ValueError, match=rf"target must be classes 0\.\.1; .* Got {wrong}"):
            call(torch.ones(2), target)
    assert reweighter.weights.tolist() == [1.0, 1.0]
    assert reweighter(torch.ones(0), torch.ones(0, dtype=torch.int64)).shape == (0,)
