"""Negatives by the model: no variance where exact, and clusters that are nearly so."""

import pytest
import torch
from torch.nn import functional as F

from longtail import ClassPrior, losses, margins
from longtail import negatives as ng

COUNTS = [60, 20, 10, 6, 4]
PRIOR = ClassPrior.from_counts(COUNTS)
C = len(COUNTS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_logits(num_samples=1, num_classes=C, seed=3):
    return torch.randn(num_samples, num_classes, generator=seeded(seed), dtype=torch.float64)


def batch_of(target):
    return ng.Batch(target, target)


def test_model_based_negatives_leave_no_variance():
    """Proposition 5, and the equality in Lemma 2 for q proportional to exp(f): any draw gives the full loss."""
    logits, target = 3 * make_logits(6), torch.tensor([0, 1, 2, 3, 4, 0])
    batch = ng.Batch(target, target, logits, lambda: torch.eye(C, dtype=torch.float64))

    def sampled(distribution, weighting, loss):
        draw = distribution.draw(batch, 3, seeded())
        assert not (draw.labels == target[:, None]).any()
        weights = ng.log_weights(weighting, draw, target)
        return loss(logits.gather(1, target[:, None])[:, 0], logits.gather(1, draw.labels), weights)

    softmax = sampled(ng.SoftmaxDistribution(C), ng.importance, ng.sampled_cross_entropy)
    torch.testing.assert_close(softmax, F.cross_entropy(logits, target, reduction="none"), rtol=1e-10, atol=1e-12)
    wanted = margins.logit_adjusted(PRIOR) + margins.adaptive(PRIOR)
    adjusted = sampled(ng.SoftmaxDistribution(C, wanted), ng.targeting(wanted), ng.sampled_cross_entropy)
    exact = losses.margin_cross_entropy(logits, target, wanted)
    torch.testing.assert_close(adjusted, exact, rtol=1e-10, atol=1e-12)
    best = ng.SoftmaxDistribution(C, wanted, log_loss=lambda z: F.softplus(z).log())
    decoupled = sampled(best, ng.targeting(wanted), ng.sampled_logistic)
    torch.testing.assert_close(decoupled, losses.decoupled_logistic(logits, target, wanted), rtol=1e-10, atol=1e-12)


def make_clustered(num_classes=32, dim=6, num_samples=5):
    generator = seeded(7)
    centers = 2 * torch.randn(4, dim, generator=generator, dtype=torch.float64)
    vectors = centers.repeat_interleave(num_classes // 4, 0)
    vectors = vectors + 0.2 * torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    x = torch.randn(num_samples, dim, generator=generator, dtype=torch.float64)
    return x, vectors


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("with_margins", [False, True])
def test_clustered_probabilities_are_exact(per_sample, with_margins, assert_frequencies):
    x, vectors = make_clustered()
    prior = ClassPrior.from_counts(torch.arange(1, 33))
    wanted = margins.logit_adjusted(prior) if with_margins else None
    distribution = ng.ClusteredDistribution(32, 8, margins=wanted, per_sample=per_sample)
    distribution.refresh(vectors, seeded())
    # Asked for every label as the positive, it tells the whole of q.
    everything = torch.arange(32)
    batch = ng.Batch(everything, everything, x[:1].expand(32, -1), lambda: vectors)
    draw = distribution.draw(batch, 4000, seeded(1))
    q = draw.positive_log_probs.exp()
    assert float(q.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(draw.log_probs, q.log()[draw.labels])
    assert_frequencies(draw.labels, q)


@pytest.mark.parametrize("dim", [6, 100])
def test_clusters_are_of_equal_size_and_hold_similar_vectors(dim):
    _, vectors = make_clustered(dim=dim)
    distribution = ng.ClusteredDistribution(32, 4)
    distribution.refresh(vectors, seeded())
    found = distribution._clusters.cluster_of.view(4, 8)
    assert found.flatten().bincount().tolist() == [8, 8, 8, 8]
    assert (found == found[:, :1]).all()
    odd = ng.ClusteredDistribution(7, 4)
    odd.refresh(vectors[:7], seeded())
    assert sorted(odd._clusters.cluster_of.bincount().tolist()) == [1, 2, 2, 2]


def test_clustered_negatives_have_less_variance_than_uniform_ones():
    x, vectors = make_clustered()
    logits = x @ vectors.T
    target = torch.tensor([0, 9, 17, 25, 3])
    exact = F.cross_entropy(logits, target, reduction="none")

    def mean_squared_error(distribution):
        total = 0.0
        for seed in range(60):
            draw = distribution.draw(ng.Batch(target, target, x, lambda: vectors), 8, seeded(seed))
            weights = ng.log_weights(ng.importance, draw, target)
            negative = logits.gather(1, draw.labels.expand(weights.shape))
            sampled = ng.sampled_cross_entropy(logits.gather(1, target[:, None])[:, 0], negative, weights)
            total += float((sampled - exact).square().mean())
        return total / 60

    uniform = mean_squared_error(ng.uniform(32))
    shared = mean_squared_error(ng.ClusteredDistribution(32, 8, even_share=0.05))
    own = mean_squared_error(ng.ClusteredDistribution(32, 8, even_share=0.05, per_sample=True))
    assert own < 0.5 * shared
    assert shared < 0.8 * uniform


def test_clusters_are_refreshed_on_schedule():
    x, vectors = make_clustered()
    calls = []

    def class_vectors():
        calls.append(1)
        return vectors

    distribution = ng.ClusteredDistribution(32, 4, refresh_every=3)
    target = torch.arange(5)
    for _ in range(7):
        distribution.draw(ng.Batch(target, target, x, class_vectors), 2, seeded())
    assert len(calls) == 3


@pytest.mark.parametrize("make", [ng.ClusteredDistribution, ng.SoftmaxDistribution])
def test_samples_whose_negatives_cost_nothing_draw_evenly(make):
    distribution = make(6, log_loss=lambda scores: torch.relu(1 + scores).log())
    target = torch.tensor([0, 1])
    batch = ng.Batch(target, target, torch.full((2, 3), -5.0), lambda: torch.ones(6, 3))
    draw = distribution.draw(batch, 3, torch.Generator().manual_seed(0))
    assert torch.isfinite(draw.log_probs).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ng.SoftmaxDistribution(4, margins.none(PRIOR)), "must be for 4 labels. Got 5"),
        (lambda: ng.SoftmaxDistribution(C).draw(batch_of(torch.tensor([1])), 4), "use it in SampledLinear"),
        (lambda: ng.ClusteredDistribution(10, 3), "power of 2, up to 10. Got 3"),
        (lambda: ng.ClusteredDistribution(10, 16), "Got 16"),
        (lambda: ng.ClusteredDistribution(10, even_share=0.0), r"in \(0, 1\]. Got 0.0"),
        (lambda: ng.ClusteredDistribution(10).refresh(torch.zeros(4, 2)), "vectors of 10 labels. Got 4"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "distribution",
    [ng.ClusteredDistribution(C, 2), ng.ClusteredDistribution(C, 2, per_sample=True), ng.SoftmaxDistribution(C)],
    ids=["clustered", "clustered per sample", "softmax"],
)
def test_an_empty_batch_has_no_loss(distribution):
    logits = torch.zeros(0, C, requires_grad=True)
    loss = ng.NegativeSamplingLoss(distribution, ng.importance, 3)(logits, torch.empty(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    head = ng.SampledLinear(4, C, distribution, ng.importance, 3)
    assert head(torch.zeros(0, 4), torch.empty(0, dtype=torch.int64)).item() == 0
