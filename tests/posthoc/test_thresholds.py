"""Thresholds per class, against trying all of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_a_threshold_of_nan_is_refused():
    """No score is at least NaN: its class would never be predicted, without a word."""
    with pytest.raises(ValueError, match=r"thresholds must be numbers\. Got NaN for class 1"):
        apply_thresholds(torch.zeros(2, 3), torch.tensor([0.5, math.nan, 0.5]))
    assert not apply_thresholds(torch.zeros(2, 1), math.inf).any()


def test_labels_may_be_sparse():
    import scipy.sparse

    scores, target = torch.tensor([[0.9], [0.4], [0.1]]), np.array([[1], [1], [0]])
    assert f1_thresholds(scores, scipy.sparse.csr_array(target)).values.equal(f1_thresholds(scores, target).values)
