"""The losses of ExtremeClassifier that score each label by itself: the formula, and what is learned with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from longtail import ClassPrior, margins, metrics, negatives
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme.data import LabelBatch
from longtail.estimators.extreme.losses import DrawnNegatives, FullDecoupled
from longtail.estimators.extreme.network import Network
from longtail.estimators.extreme.objective import initial_bias, make_criterion
from longtail.estimators.extreme.settings import VERY_MANY_SAMPLES, DataShape, choose_loss

PHI = {
    "LOGISTIC": (lambda z: math.log1p(math.exp(-z)), lambda z: math.log1p(math.exp(z))),
    "HINGE": (lambda z: max(0.0, 1 - z), lambda z: max(0.0, 1 + z)),
    "CONTRASTIVE": (lambda z: (1 - z) ** 2, lambda z: max(0.0, z) ** 2),
}
"""Losses of a true label's logit and of another's, eq. (5) and section 5.1 of the paper."""
PAIRS = [(0, 0), (0, 3), (2, 1)]


def make_network(scale: float | None, generator: torch.Generator) -> Any:
    network = Network(6, 4, 5, "relu", skip_connection=False, scale=scale)
    network.reset_parameters(torch.zeros(4), 1.0, generator)
    network.weight.data.normal_(generator=generator)
    return network.double()


@pytest.mark.parametrize("name", PHI)
@pytest.mark.parametrize("builder", [margins.none, margins.logit_adjusted, margins.propensity_adjusted])
@pytest.mark.parametrize("excludes_other_labels", [False, True])
def test_full_decoupled_losses_are_the_sum_over_labels(name: str, builder: Any, excludes_other_labels: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    prior = ClassPrior.from_counts([50, 20, 5, 1])
    network = make_network(1.0 if name == "CONTRASTIVE" else None, generator)
    rows = torch.randn(3, 6, generator=generator).double()
    samples, labels = (torch.tensor(part) for part in zip(*PAIRS, strict=True))
    batch = LabelBatch(rows, samples, labels, torch.tensor([1.0, 1.0, 3.0]).double())
    alpha = torch.tensor([0.5, 1.0, 2.0, 4.0]).double()
    loss = getattr(negatives, name)
    criterion = FullDecoupled(loss, builder(prior), alpha, excludes_other_labels)
    found = float(criterion(network, network.embed(rows), batch, generator).detach())
    logits, delta = network.logits(rows, network.embed(rows)).tolist(), builder(prior).dense().tolist()
    own, other = PHI[name]
    total = 0.0
    for sample, y in PAIRS:
        left_out = [z for s, z in PAIRS if s == sample] if excludes_other_labels else [y]
        pushed = sum(math.exp(delta[y][z]) * other(logits[sample][z]) for z in range(4) if z not in left_out)
        total += [1.0, 1.0, 3.0][sample] * float(alpha[y]) * (own(logits[sample][y]) + pushed)
    assert found == pytest.approx(total / len(PAIRS), abs=1e-10)


@pytest.mark.parametrize("name", [*PHI, "CROSS_ENTROPY"])
@pytest.mark.parametrize("is_sampled", [False, True])
def test_learns_with_every_loss_sampled_and_full(name: str, is_sampled: bool) -> None:
    X = np.eye(6, dtype=np.float32).repeat(8, axis=0)
    y = np.arange(6).repeat(8)
    drawn = (
        {"distribution": lambda prior: negatives.uniform(prior.num_classes), "num_negatives": 5} if is_sampled else {}
    )
    model = ExtremeClassifier(
        loss=getattr(negatives, name),
        scale=1.0 if name == "CONTRASTIVE" else None,
        hidden_size=16,
        dropout=0.0,
        epochs=25,
        batch_size=16,
        learning_rate=0.02,
        random_state=0,
        **drawn,
    ).fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    if name == "CONTRASTIVE":
        assert np.abs(model.decision_function(X)).max() <= 1 + 1e-5


def test_sampled_decoupled_losses_estimate_the_full_one() -> None:
    """With importance weights, in expectation, at any number of negatives."""
    generator = torch.Generator().manual_seed(0)
    network = make_network(None, generator)
    rows = torch.randn(3, 6, generator=generator).double()
    samples, labels = (torch.tensor(part) for part in zip(*PAIRS, strict=True))
    batch = LabelBatch(rows, samples, labels)
    prior = ClassPrior.from_counts([5, 5, 5, 5])
    full = FullDecoupled(negatives.HINGE, margins.none(prior), None, True)
    head = negatives.SampledLinear(6, 4, negatives.uniform(4), negatives.importance, 3, loss=negatives.HINGE)
    head.num_negatives = 20_000
    sampled = DrawnNegatives(head, None)
    sampled.share(network)
    values = [float(loss(network, network.embed(rows), batch, generator).detach()) for loss in (full, sampled)]
    assert values[1] == pytest.approx(values[0], rel=0.02)


def test_the_contrastive_loss_asks_for_cosines() -> None:
    with pytest.raises(ValueError, match=r"CONTRASTIVE is a loss of cosines; scale must be 1\. Got None"):
        ExtremeClassifier(loss=negatives.CONTRASTIVE).fit(np.eye(2), np.array([0, 1]))


def test_propensities_as_a_margin_and_as_weights_rank_alike_and_above_cross_entropy() -> None:
    """Two labels that nothing tells apart: the margin asks for P(y) / p[y], and so do the weights."""
    X, y = csr_array(np.ones((1000, 1), dtype=np.float32)), np.array([0] * 700 + [1] * 300)
    prior = ClassPrior.from_labels(y)
    inverse = metrics.inverse_propensities(prior, 2.0, 500.0)
    wanted = float((torch.tensor([0.7, 0.3]).double() * inverse).log().diff())
    shared = {"hidden_size": 2, "dropout": 0.0, "epochs": 30, "random_state": 0, "uses_bfloat16": False}
    by_margin = ExtremeClassifier(margins=lambda p: margins.propensity_adjusted(p, 1.0, 2.0, 500.0), **shared)
    by_weight = ExtremeClassifier(
        emphasis=0, class_weights=lambda p: metrics.inverse_propensities(p, 2.0, 500.0), **shared
    )
    for model in (by_margin, by_weight):
        logits = model.fit(X, y).decision_function(X[:1])[0]
        assert float(logits[1] - logits[0]) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("num_samples", "labels_each", "settings", "expected"),
    [
        (VERY_MANY_SAMPLES, 5, {}, negatives.LOGISTIC),
        (VERY_MANY_SAMPLES, 5, {"emphasis": "precision"}, negatives.LOGISTIC),
        (VERY_MANY_SAMPLES - 1, 5, {}, negatives.CROSS_ENTROPY),
        (VERY_MANY_SAMPLES, 1, {}, negatives.CROSS_ENTROPY),
        (VERY_MANY_SAMPLES, 5, {"margins": margins.propensity_adjusted}, negatives.CROSS_ENTROPY),
        (VERY_MANY_SAMPLES, 5, {"distribution": negatives.WithinBatch}, negatives.CROSS_ENTROPY),
        (VERY_MANY_SAMPLES, 5, {"scale": 8.0}, negatives.CROSS_ENTROPY),
        (100, 1, {"loss": negatives.HINGE}, negatives.HINGE),
    ],
)
def test_the_loss_follows_the_data_unless_it_is_given(
    num_samples: int, labels_each: int, settings: dict[str, Any], expected: negatives.SampledLoss
) -> None:
    shape = DataShape(num_samples, labels_each * num_samples, 30, 10, is_sparse=True)
    assert choose_loss(ExtremeClassifier(**settings), shape) is expected


@pytest.mark.parametrize("builder", [margins.none, margins.logit_adjusted, margins.propensity_adjusted])
@pytest.mark.parametrize("is_sampled", [False, True])
def test_the_logistic_loss_starts_where_features_that_say_nothing_leave_it(builder: Any, is_sampled: bool) -> None:
    """The gradient of the expected loss is 0 there, for every label."""
    prior = ClassPrior.from_counts([50, 20, 5, 1])
    drawn = {"distribution": lambda p: negatives.uniform(p.num_classes), "num_negatives": 3} if is_sampled else {}
    model = ExtremeClassifier(margins=builder, **drawn)
    criterion = make_criterion(model, negatives.LOGISTIC, prior, np.arange(4))
    start = initial_bias(prior, criterion).double().requires_grad_()
    implied = criterion.implied_margins(prior).dense()
    # As at the start, where nothing tells labels apart, a sample's own label counts as a negative too.
    positive = (prior.probs * torch.nn.functional.softplus(-start)).sum()
    negative = (prior.probs @ implied.exp() * torch.nn.functional.softplus(start)).sum()
    (positive + negative).backward()
    assert start.grad is not None
    assert float(start.grad.abs().max()) < 1e-6


def test_sets_from_losses_of_each_label_have_the_sizes_of_true_ones() -> None:
    """A logit is what its label has to be judged by: a softmax tells which of the labels, and not how many."""
    rng = np.random.default_rng(0)
    X = (rng.random((1500, 30)) < 0.1).astype(np.float32)
    y = X > 0
    model = ExtremeClassifier(loss=negatives.LOGISTIC, epochs=20, dropout=0.0, random_state=0).fit(X[:1000], y[:1000])
    predicted, truth = model.predict(X[1000:]).toarray() > 0, y[1000:]
    assert (predicted == truth).mean() > 0.99
    assert np.abs(model.predict_proba(X[1000:]).sum(axis=1) - truth.sum(axis=1)).mean() < 0.1
