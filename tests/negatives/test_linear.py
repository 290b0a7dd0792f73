"""The sampled loss of any linear layer: the margin loss where all labels are drawn, and SampledLinear's own loss."""

import pytest
import torch

from longtail import ClassPrior, losses, margins
from longtail import negatives as ng

N, D, C = 6, 5, 12
PRIOR = ClassPrior.from_counts(torch.arange(1, C + 1))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class EveryLabel:
    """All labels as negatives, each once, as if drawn uniformly."""

    num_classes = C

    def draw(self, batch, num_negatives, generator=None):
        log_q = -torch.tensor(float(C), dtype=torch.float64).log()
        return ng.Draw(torch.arange(C), log_q.expand(C), log_q.expand(len(batch.target)), C)


@pytest.fixture
def layer():
    generator = seeded(1)
    x, weight, bias = (torch.randn(*size, generator=generator).double() for size in ((N, D), (C, D), (C,)))
    target = torch.randint(C, (N,), generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target


def gradients(loss, tensors):
    return [part.to_dense() if part.is_sparse else part for part in torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_with_every_label_drawn_it_is_the_margin_loss(layer, has_bias, sparse):
    x, weight, bias, target = layer
    bias = bias if has_bias else None
    wanted = margins.logit_adjusted(PRIOR)
    found = ng.sampled_linear_losses(
        x, weight, target, EveryLabel(), ng.targeting(wanted), C - 1, bias=bias, sparse=sparse
    )
    exact = losses.margin_cross_entropy(torch.nn.functional.linear(x, weight, bias), target, wanted)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=0)
    tensors = [x, weight, *([bias] if has_bias else [])]
    for own, other in zip(gradients(found.sum(), tensors), gradients(exact.sum(), tensors), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", [ng.constant, ng.importance])
@pytest.mark.parametrize("distribution", [ng.uniform(C), ng.prior_power(PRIOR, excludes_positive=True)])
def test_many_draws_come_near_the_loss_with_implied_margins(layer, distribution, weighting):
    """Eq. (11): the sum over m draws tends to its expectation as m grows."""
    x, weight, bias, target = layer
    num_negatives = 200_000
    found = ng.sampled_linear_losses(
        x, weight, target, distribution, weighting, num_negatives, bias=bias, generator=seeded(2)
    )
    implied = ng.implied_margins(distribution, weighting, num_negatives)
    exact = losses.margin_cross_entropy(torch.nn.functional.linear(x, weight, bias), target, implied)
    torch.testing.assert_close(found, exact, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("scale", [None, 7.0])
@pytest.mark.parametrize("excludes_other_labels", [False, True])
def test_it_is_the_loss_of_sampled_linear(layer, scale, excludes_other_labels):
    x, *_ = layer
    options = {"scale": scale, "excludes_other_labels": excludes_other_labels, "loss": ng.LOGISTIC}
    head = ng.SampledLinear(D, C, ng.prior_power(PRIOR), ng.relative, 9, **options).double()
    target = torch.tensor([[0, 3, -100], [11, -100, -100], [1, 2, 3], [4, 9, 10], [-100] * 3, [5, 6, -100]])
    found = ng.sampled_linear_losses(
        x, head.weight, target, head.distribution, head.weighting, 9, generator=seeded(), **options
    )
    assert torch.equal(found, head.losses(x, target, seeded()))


def test_gradients_are_dense_unless_asked_for(layer):
    x, weight, bias, target = layer
    for sparse in (False, True):
        loss = ng.sampled_linear_losses(
            x, weight, target, ng.uniform(C), ng.importance, 4, bias=bias, sparse=sparse, generator=seeded()
        ).sum()
        found = torch.autograd.grad(loss, [weight, bias])
        assert [part.is_sparse for part in found] == [sparse, sparse]


def test_a_model_based_distribution_sees_the_bias():
    """With equal inner products the bias alone decides, and the model's softmax with importance has no variance."""
    x, weight, bias = torch.zeros(1, 2).double(), torch.zeros(4, 2).double(), torch.tensor([0.0, 3.0, 1.0, -2.0])
    target = torch.tensor([0])
    q = ng.SoftmaxDistribution(4)
    found = ng.sampled_linear_losses(x, weight, target, q, ng.importance, 1, bias=bias.double())
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(bias[None].double(), target)[None])


def test_bad_arguments(layer):
    x, weight, _, target = layer
    with pytest.raises(ValueError, match=r"num_negatives must be a whole number of at least 1. Got 0"):
        ng.sampled_linear_losses(x, weight, target, ng.uniform(C), ng.importance, 0)
    with pytest.raises(ValueError, match=r"must be over 12 labels. Got 9"):
        ng.sampled_linear_losses(x, weight, target, ng.uniform(9), ng.importance, 4)
    with pytest.raises(ValueError, match=r"target must be in 0..11, or -100 for none. Got 13"):
        ng.sampled_linear_losses(x, weight, target * 0 + 13, ng.uniform(C), ng.importance, 4)


# Within-batch negatives, whose number is a cap


@pytest.mark.parametrize("distribution", [ng.WithinBatch(PRIOR), ng.StreamingBatch(C)])
def test_within_a_batch_the_number_of_negatives_is_only_a_cap(layer, distribution):
    x, _, _, target = layer
    head = ng.SampledLinear(D, C, distribution, ng.constant, num_negatives=10 * C).double()
    enough = ng.sampled_linear_losses(x, head.weight, target, distribution, ng.constant, N)
    torch.testing.assert_close(head.losses(x, target), enough)


@pytest.mark.parametrize("weighting", [ng.constant, ng.importance, ng.relative, ng.tail(PRIOR)])
@pytest.mark.parametrize("distribution", [ng.WithinBatch(PRIOR), ng.StreamingBatch(C)])
def test_a_batch_of_one_sample_has_no_negatives_and_no_loss(layer, distribution, weighting):
    x, weight, _, target = layer
    loss = ng.sampled_linear_losses(x[:1], weight, target[:1], distribution, weighting, 4)
    assert loss.tolist() == [0.0]
    assert all(part.eq(0).all() for part in torch.autograd.grad(loss.sum(), [x, weight]))
