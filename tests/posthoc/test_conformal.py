"""Conformal sets: thresholds against plain loops and against TorchCP, and the coverage that they promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail import ClassPrior
from longtail.posthoc import (
    adaptive_set_scores,
    class_coverage,
    class_thresholds,
    clustered_thresholds,
    group_coverage,
    marginal_thresholds,
    prevalence_scores,
    probability_scores,
)

PRIOR = torch.tensor([0.7, 0.25, 0.05], dtype=torch.float64)


def draw(num_samples, seed, probs=(1 / 3, 1 / 3, 1 / 3)):
    """Probabilities of a model that has learned PRIOR, and labels by ``probs``."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(probs), num_samples, replacement=True, generator=generator)
    x = 1.5 * torch.eye(3, dtype=torch.float64)[y] + torch.randn(num_samples, 3, generator=generator)
    return (1.5 * x + PRIOR.log()).softmax(dim=1), y


class TestScores:
    def test_are_what_they_say(self):
        values = torch.tensor([[0.2, 0.5, 0.3]])
        assert probability_scores(values).tolist()[0] == pytest.approx([0.8, 0.5, 0.7])
        assert adaptive_set_scores(values).tolist()[0] == pytest.approx([1.0, 0.5, 0.8])
        assert prevalence_scores(values, PRIOR).tolist()[0] == pytest.approx([-0.2 / 0.7, -2.0, -6.0])

    @pytest.mark.parametrize("score", [probability_scores, adaptive_set_scores, prevalence_scores])
    @pytest.mark.parametrize("values", [[[0.5, 0.6, 0.1]], [[1.2, -0.1, -0.1]], [0.2, 0.3, 0.5]])
    def test_need_probabilities(self, score, values):
        with pytest.raises(ValueError, match="rows that sum to 1"):
            score(torch.tensor(values), PRIOR)

    def test_a_class_without_samples_has_no_prevalence(self):
        with pytest.raises(ValueError, match="prior must be above 0"):
            prevalence_scores(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 0.0]))


class TestThresholds:
    @given(
        values=st.lists(st.floats(0, 1), min_size=1, max_size=40), alpha=st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9])
    )
    def test_are_the_smallest_that_cover(self, values, alpha):
        """At least (n + 1)(1 - alpha) of the n scores are below, and no smaller score would do."""
        scores = torch.tensor(values, dtype=torch.float64)[:, None]
        found = float(marginal_thresholds(scores, torch.zeros(len(values), dtype=torch.long), alpha)[0])
        needed = (len(values) + 1) * (1 - alpha) - 1e-9
        below = sum(value <= found for value in values)
        assert below >= needed or found == math.inf
        assert all(sum(other <= value for other in values) < needed for value in values if value < found)

    def test_classes_are_on_their_own(self):
        scores, target = draw(300, 0)[0], draw(300, 0)[1]
        found = class_thresholds(probability_scores(scores), target, 0.2)
        for label in range(3):
            own = probability_scores(scores)[target == label][:, label : label + 1]
            alone = marginal_thresholds(own, torch.zeros(len(own), dtype=torch.long), 0.2)
            assert found[label] == alone[0]

    def test_a_class_with_too_few_samples_is_in_every_set(self):
        scores, target = torch.rand(30, 2), torch.tensor([0] * 25 + [1] * 5)
        assert class_thresholds(scores, target, 0.1).isinf().tolist() == [False, True]

    def test_one_cluster_is_one_threshold(self):
        probabilities, target = draw(600, 0)
        assert len(set(clustered_thresholds(probability_scores(probabilities), target, 0.1, 1).tolist())) == 1

    def test_clusters_bring_classes_together_that_are_alike(self):
        """Two kinds of classes: thresholds of one kind are the same, and differ between the kinds."""
        generator = torch.Generator().manual_seed(0)
        target = torch.arange(2000) % 20
        own = torch.rand(2000, generator=generator) * torch.where(target < 10, 0.2, 1.0)
        scores = torch.ones(2000, 20).scatter_(1, target[:, None], own[:, None])
        found = clustered_thresholds(scores, target, 0.1, num_clusters=2)
        assert len(set(found[:10].tolist())) == len(set(found[10:].tolist())) == 1
        assert float(found[0]) == pytest.approx(0.18, abs=0.02)
        assert float(found[10]) == pytest.approx(0.9, abs=0.06)

    def test_rare_classes_get_the_threshold_of_all(self):
        scores, target = draw(600, 0)
        wide = torch.cat([probability_scores(scores), torch.ones(600, 1)], dim=1)
        target[:3] = 3
        found = clustered_thresholds(wide, target, 0.1, num_clusters=2)
        assert found.isfinite().all()

    @pytest.mark.parametrize("choose", [marginal_thresholds, class_thresholds, clustered_thresholds])
    def test_bad_input(self, choose):
        scores, target = torch.rand(30, 3), torch.arange(30) % 3
        with pytest.raises(ValueError, match="alpha must be between 0 and 1"):
            choose(scores, target, 1.0)
        with pytest.raises(ValueError, match="without NaN"):
            choose(scores * math.nan, target, 0.1)
        with pytest.raises(ValueError, match=r"target must be in 0..2. Got 3"):
            choose(scores, target + 1, 0.1)


class TestCoverage:
    def test_is_kept_in_every_class_and_missed_by_one_threshold_in_the_tail(self):
        promised, found = 0.9, {"class": [], "marginal": [], "prevalence": []}
        for seed in range(20):
            probabilities, target = draw(600, 2 * seed)
            new, truth = draw(3000, 2 * seed + 1)
            for name, score, choose in (
                ("class", probability_scores, class_thresholds),
                ("marginal", probability_scores, marginal_thresholds),
                ("prevalence", prevalence_scores, marginal_thresholds),
            ):
                thresholds = choose(score(probabilities, PRIOR), target, 1 - promised)
                found[name].append(class_coverage(score(new, PRIOR) <= thresholds, truth))
        means = {name: torch.stack(values).mean(dim=0) for name, values in found.items()}
        assert means["class"].tolist() == pytest.approx([promised] * 3, abs=0.015)
        assert float(means["marginal"][2]) < promised - 0.05
        assert float(means["prevalence"][2]) > float(means["marginal"][2]) + 0.05

    def test_holds_whatever_the_class_frequencies_are(self):
        probabilities, target = draw(3000, 0, (0.8, 0.1, 0.1))
        new, truth = draw(20_000, 1, (0.1, 0.1, 0.8))
        sets = probability_scores(new) <= class_thresholds(probability_scores(probabilities), target, 0.1)
        assert class_coverage(sets, truth).tolist() == pytest.approx([0.9] * 3, abs=0.04)

    def test_by_group(self):
        sets = torch.tensor([[True, False, True], [True, True, False], [True, False, False]])
        target = torch.tensor([0, 1, 2])
        groups = {"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}
        assert group_coverage(sets, target, groups) == {"head": 1.0, "tail": 0.5}
        assert group_coverage(sets, target, ClassPrior.from_counts([500, 50, 5]).groups())["torso"] == 1.0

    def test_bad_sets(self):
        with pytest.raises(ValueError, match=r"sets must be \[N, C\] of bool"):
            class_coverage(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_thresholds_are_those_of_torchcp():
    predictors = pytest.importorskip("torchcp.classification.predictor")
    scores = pytest.importorskip("torchcp.classification.score")
    probabilities, target = draw(500, 0)
    for ours, name in ((marginal_thresholds, "SplitPredictor"), (class_thresholds, "ClassConditionalPredictor")):
        theirs = getattr(predictors, name)(scores.LAC(), alpha=0.1)
        theirs.calculate_threshold(probabilities.log(), target, 0.1)
        found = ours(probability_scores(probabilities), target, 0.1)
        np.testing.assert_allclose(found.numpy(), np.broadcast_to(theirs.q_hat.numpy(), 3), atol=1e-6)
