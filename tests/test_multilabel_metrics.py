"""Metrics of several labels a sample, against scikit-learn's; thresholds per class, against trying all of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, precision_recall_fscore_support

from longtail import ClassPrior
from longtail._core import label_curves as curves_module
from longtail.masking import count_bins
from longtail.metrics import (
    AveragePrecision,
    BinnedAveragePrecision,
    MultilabelScores,
    average_precision,
    binned_average_precision,
    count_labels,
    exact_matches,
    macro_scores,
    micro_scores,
    per_class_scores,
)
from longtail.posthoc import apply_thresholds, f1_thresholds, precision_thresholds


def random_case(seed, num_samples=60, num_classes=5, decimals=2):
    """Scores with ties, and labels that depend on them; the last class has no positives."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_samples, num_classes, generator=generator, dtype=torch.float64).round(decimals=decimals)
    labels = torch.rand(num_samples, num_classes, generator=generator) < scores * torch.linspace(
        0.9, 0.1, num_classes
    )
    labels[:, -1] = False
    return scores, labels


def sklearn_scores(predicted, truth, **options):
    return precision_recall_fscore_support(truth.numpy(), predicted.numpy(), zero_division=0, **options)[:3]


class TestScores:
    @pytest.mark.parametrize("seed", range(5))
    def test_all_equal_those_of_scikit_learn(self, seed):
        scores, labels = random_case(seed)
        predicted = scores > 0.6
        predicted[:, 1] = False  # a class that is never predicted
        counts = count_labels(predicted, labels)
        present = labels.any(dim=0).numpy()
        per_class = sklearn_scores(predicted, labels, average=None)
        macro = sklearn_scores(predicted, labels, average="macro", labels=np.flatnonzero(present))
        micro = sklearn_scores(predicted, labels, average="micro")
        for index in range(3):
            ours = per_class_scores(counts)[index].numpy()
            np.testing.assert_allclose(ours[present], per_class[index][present], atol=1e-12)
            assert np.isnan(ours[~present]).all()
            assert macro_scores(counts)[index].item() == pytest.approx(macro[index], abs=1e-12)
            assert micro_scores(counts)[index].item() == pytest.approx(micro[index], abs=1e-12)
        assert exact_matches(predicted, labels).item() / len(labels) == pytest.approx(
            accuracy_score(labels.numpy(), predicted.numpy())
        )

    def test_the_metric_adds_up_batches_and_knows_groups(self):
        scores, labels = random_case(0)
        prior = ClassPrior.from_indicator(labels)
        thresholds = torch.tensor([0.5, 0.6, 0.7, 0.2, 0.5])
        metric = MultilabelScores(5, thresholds, groups={"rarest 2": prior.rarest(2), "head": torch.tensor([0])})
        for rows in torch.arange(60).split(17):
            metric.update(scores[rows], labels[rows])
        values = metric.compute()
        predicted = apply_thresholds(scores, thresholds)
        counts = count_labels(predicted, labels)
        assert values["f1"] == macro_scores(counts).f1
        assert values["micro_recall"] == micro_scores(counts).recall
        assert values["rarest 2/recall"] == macro_scores(counts.of(prior.rarest(2))).recall
        assert values["head/precision"] == per_class_scores(counts).precision[0]
        assert values["exact_match"].item() == pytest.approx(accuracy_score(labels.numpy(), predicted.numpy()))
        assert metric.missing_classes().tolist() == [4]
        torch.testing.assert_close(metric.per_class().f1, per_class_scores(counts).f1, equal_nan=True)
        metric.reset()
        metric.update(predicted, labels.long())  # predictions of 0 and 1 are scores, too
        assert metric.compute()["head/f1"] == values["head/f1"]

    def test_an_empty_batch_changes_nothing(self):
        metric = MultilabelScores(2)
        metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]]))
        before = metric.compute()
        metric.update(torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.long))
        assert metric.compute() == before

    def test_indices_are_one_hot_rows(self):
        counts = count_labels(torch.eye(3, dtype=torch.bool), torch.tensor([0, 1, 1]))
        assert counts.hits.tolist() == [1, 1, 0]

    def test_nothing_to_average_is_nan(self):
        nothing = count_labels(torch.ones(2, 2), torch.zeros(2, 2))
        assert math.isnan(macro_scores(nothing).f1)
        assert math.isnan(micro_scores(nothing).precision)

    @pytest.mark.parametrize(
        ("scores", "target", "message"),
        [
            (torch.rand(2, 3), torch.ones(2, 2), r"scores must be \[N, 2\]"),
            (torch.rand(2, 2), torch.ones(2, 3), r"target must be \[2, 2\]"),
            (torch.rand(2, 2), torch.full((2, 2), 2), "must be 0 or 1. Got 2"),
            (torch.tensor([[math.nan, 0.0]]), torch.ones(1, 2), "scores must be finite"),
        ],
    )
    def test_bad_input(self, scores, target, message):
        for metric in (MultilabelScores(2), AveragePrecision(2)):
            with pytest.raises(ValueError, match=message):
                metric.update(scores, target)

    def test_bad_settings(self):
        with pytest.raises(ValueError, match="num_classes"):
            MultilabelScores(0)
        with pytest.raises(ValueError, match="group 'a'"):
            MultilabelScores(2, groups={"a": torch.tensor([5])})
        with pytest.raises(ValueError, match=r"thresholds must be \[2\]"):
            MultilabelScores(2, torch.ones(3)).update(torch.rand(1, 2), torch.ones(1, 2))


class TestAveragePrecision:
    @pytest.mark.parametrize("decimals", [0, 1, 2, 8])
    @pytest.mark.parametrize("seed", range(3))
    def test_it_equals_scikit_learns_with_and_without_ties(self, seed, decimals):
        scores, labels = random_case(seed, decimals=decimals)
        found = average_precision(scores, labels)
        for c in range(4):
            wanted = average_precision_score(labels[:, c].numpy(), scores[:, c].numpy())
            assert found[c].item() == pytest.approx(wanted, abs=1e-12)
        assert math.isnan(found[4])

    def test_parts_of_the_classes_make_no_difference(self, monkeypatch):
        scores, labels = random_case(1)
        whole = average_precision(scores, labels), f1_thresholds(scores, labels).values
        monkeypatch.setattr(curves_module, "CHUNK_ELEMENTS", 100)
        parts = average_precision(scores, labels), f1_thresholds(scores, labels).values
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-15, equal_nan=True)

    def test_bins_are_exact_for_scores_that_are_bins(self):
        scores, labels = random_case(2, decimals=8)
        rounded = (scores * 50).floor() / 50
        binned = binned_average_precision(count_bins(scores, labels, num_bins=50))
        torch.testing.assert_close(binned, average_precision(rounded, labels), rtol=0, atol=1e-12, equal_nan=True)

    def test_metrics_are_the_means_over_classes_with_positives(self):
        scores, labels = random_case(3)
        exact, binned = AveragePrecision(5), BinnedAveragePrecision(5, bins=100_000)
        for rows in torch.arange(60).split(25):
            exact.update(scores[rows], labels[rows])
            binned.update(scores[rows], labels[rows])
        wanted = average_precision(scores, labels)[:4].mean()
        torch.testing.assert_close(exact.compute(), wanted)
        torch.testing.assert_close(binned.compute(), wanted)


def metrics_of_half(rank):
    scores, labels = random_case(4)
    mine = slice(rank, None, 2)
    metrics = MultilabelScores(5), AveragePrecision(5), BinnedAveragePrecision(5)
    for metric in metrics:
        metric.update(scores[mine], labels[mine])
    values = metrics[0].compute()
    return values, metrics[0].missing_classes(), *(metric.compute() for metric in metrics[1:])


def test_processes_together_see_all_samples(two_processes):
    scores, labels = random_case(4)
    alone = MultilabelScores(5)
    alone.update(scores, labels)
    binned = binned_average_precision(count_bins(scores, labels, 1000)).nanmean()
    for values, missing, exact, approximate in two_processes(metrics_of_half):
        assert values == alone.compute()
        assert missing.tolist() == [4]
        torch.testing.assert_close(exact, average_precision(scores, labels).nanmean())
        assert approximate == binned


def all_thresholds(scores):
    """Every score, and a number above all: all that a threshold can do."""
    return [math.inf, *sorted(set(scores.tolist()), reverse=True)]


def f1_at(scores, labels, threshold):
    predicted = scores >= threshold
    return 2 * int((predicted & labels).sum()) / (int(predicted.sum()) + int(labels.sum()))


class TestThresholds:
    @settings(deadline=None, max_examples=40)
    @given(seed=st.integers(0, 10_000), decimals=st.integers(0, 3), num_samples=st.integers(1, 40))
    def test_no_threshold_has_a_larger_f1(self, seed, decimals, num_samples):
        scores, labels = random_case(seed, num_samples, decimals=decimals)
        chosen = f1_thresholds(scores, labels)
        for c in range(5):
            if not labels[:, c].any():
                assert chosen.values[c] == 0.5
                assert math.isnan(chosen.f1[c])
                continue
            best = max(f1_at(scores[:, c], labels[:, c], t) for t in all_thresholds(scores[:, c]))
            assert chosen.f1[c].item() == pytest.approx(best)
            assert f1_at(scores[:, c], labels[:, c], chosen.values[c]) == pytest.approx(best)
        assert chosen.undecided.tolist() == [c for c in range(5) if not labels[:, c].any()]

    @settings(deadline=None, max_examples=40)
    @given(seed=st.integers(0, 10_000), decimals=st.integers(0, 3), floor=st.floats(0.05, 1.0))
    def test_no_lower_threshold_reaches_the_floor(self, seed, decimals, floor):
        scores, labels = random_case(seed, decimals=decimals)
        chosen = precision_thresholds(scores, labels, floor)
        for c in range(4):
            column, truth = scores[:, c], labels[:, c]
            if not truth.any():
                continue
            reaching = [t for t in all_thresholds(column)[1:] if truth[column >= t].double().mean() >= floor]
            predicted = column >= chosen.values[c]
            assert predicted.sum() == (int((column >= min(reaching)).sum()) if reaching else 0)
            assert math.isinf(chosen.values[c]) == (not reaching)

    def test_a_precision_of_exactly_the_floor_will_do(self):
        """14 / 25 is 0.56 as a number, while 0.56 * 25 rounds to more than 14."""
        labels = torch.zeros(60, 1, dtype=torch.long)
        labels[11:25] = 1
        scores = torch.linspace(1, 0, 60, dtype=torch.float64)[:, None]
        chosen = precision_thresholds(scores, labels, floor=0.56).values
        assert int((scores >= chosen).sum()) == 25

    def test_extremes_of_half_precision_have_a_middle(self):
        scores = torch.tensor([[60000.0], [-60000.0]], dtype=torch.float16)
        assert f1_thresholds(scores, torch.tensor([[1], [0]])).values.tolist() == [0.0]

    def test_thresholds_are_not_rounded_to_the_scores(self):
        scores, thresholds = torch.tensor([[0.5, 0.5]], dtype=torch.bfloat16), torch.tensor([0.501, 0.499])
        assert apply_thresholds(scores, thresholds).tolist() == [[False, True]]

    def test_a_threshold_lies_midway_and_keeps_neighbors_apart(self):
        labels = torch.tensor([[1], [0]])
        assert f1_thresholds(torch.tensor([[0.75], [0.25]]), labels).values == 0.5
        next_down = torch.nextafter(torch.tensor(0.3), torch.tensor(0.0)).item()
        close = torch.tensor([[0.3], [next_down]])
        assert apply_thresholds(close, f1_thresholds(close, labels).values).tolist() == [[True], [False]]

    def test_few_positives_and_hopeless_classes(self):
        scores = torch.linspace(1, 0, 50)[:, None].repeat(1, 2)
        labels = torch.zeros(50, 2, dtype=torch.bool)
        labels[45, 0] = labels[0, 1] = True
        assert apply_thresholds(scores, f1_thresholds(scores, labels).values).sum(0).tolist() == [46, 1]
        careful = f1_thresholds(scores, labels, min_f1=0.1)
        assert apply_thresholds(scores, careful.values).sum(0).tolist() == [1, 1]
        assert careful.f1.tolist() == [0, 1]
        fallback = f1_thresholds(scores, labels, default=0.9, min_positives=2)
        assert fallback.values.tolist() == pytest.approx([0.9, 0.9])
        assert fallback.undecided.tolist() == [0, 1]

    def test_arrays_lists_and_logits_will_do(self):
        logits = np.array([[3.0, -1.0], [-2.0, -4.0]])
        chosen = f1_thresholds(logits, [[1, 1], [0, 0]], default=0.0)
        assert chosen.values.tolist() == [0.5, -2.5]

    @pytest.mark.parametrize(
        ("scores", "labels", "options", "message"),
        [
            ([[0.1, 0.2]], [[1, 2]], {}, "must be 0 or 1"),
            ([[0.1, math.nan]], [[1, 0]], {}, "finite"),
            ([[1, 2]], [[1, 0]], {}, "floating-point"),
            ([0.5], [1], {}, r"\[N, C\]"),
            (np.zeros((0, 2)), np.zeros((0, 2)), {}, "with samples"),
            ([[0.1, 0.2]], [[1, 0]], {"min_positives": 0}, "min_positives"),
            ([[0.1, 0.2]], [[1, 0]], {"min_f1": 2.0}, "min_f1"),
        ],
    )
    def test_bad_input(self, scores, labels, options, message):
        with pytest.raises(ValueError, match=message):
            f1_thresholds(scores, labels, **options)

    @pytest.mark.parametrize("floor", [0.0, 1.5, math.nan])
    def test_bad_floor(self, floor):
        with pytest.raises(ValueError, match="floor must be"):
            precision_thresholds([[0.1]], [[1]], floor)
