"""Metrics against scikit-learn, torchmetrics and plain loops; in pieces and in two processes as at once."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, recall_score, top_k_accuracy_score
from torchmetrics.classification import MulticlassCalibrationError

from longtail import ClassPrior
from longtail.metrics import (
    BalancedAccuracy,
    BalancedCalibrationError,
    BalancedError,
    CalibrationError,
    GroupAccuracy,
    PerClassAccuracy,
    balanced_accuracy,
    bin_confidences,
    count_hits,
)

NUM_CLASSES = 6
GROUPS = {"head": torch.tensor([0, 1]), "torso": torch.tensor([2]), "tail": torch.tensor([3, 4, 5])}


def make_metrics():
    """Every metric by its name, over NUM_CLASSES classes."""
    return {
        "balanced accuracy": BalancedAccuracy(NUM_CLASSES),
        "balanced top-2 accuracy": BalancedAccuracy(NUM_CLASSES, top_k=2),
        "balanced error": BalancedError(NUM_CLASSES),
        "per-class accuracy": PerClassAccuracy(NUM_CLASSES),
        "group accuracy": GroupAccuracy(GROUPS, NUM_CLASSES),
        "calibration error": CalibrationError(),
        "balanced calibration error": BalancedCalibrationError(NUM_CLASSES),
    }


NAMES = list(make_metrics())


def make_samples(num_samples=400, classes=(0, 1, 2, 3, 5), dtype=torch.float64, seed=0):
    """Skewed targets without class 4, and logits that are right more often than not."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([2.0**-index for index in range(len(classes))])
    target = torch.tensor(classes)[torch.multinomial(shares, num_samples, replacement=True, generator=generator)]
    logits = torch.randn(num_samples, NUM_CLASSES, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), target] += 1.0
    return logits.to(dtype), target


def plain(value):
    """Tensors of any nesting as lists, so that they compare and pickle."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value.tolist()


def assert_close(left, right, tolerance=1e-12):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_close(left[key], right[key], tolerance)
    else:
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance)  # NaN equals NaN


# Against independent references


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_balanced_accuracy_is_scikit_learns():
    logits, target = make_samples()
    expected = balanced_accuracy_score(target, logits.argmax(dim=1))
    assert BalancedAccuracy(NUM_CLASSES)(logits, target).item() == pytest.approx(expected, abs=1e-12)
    assert BalancedError(NUM_CLASSES)(logits, target).item() == pytest.approx(1 - expected, abs=1e-12)
    assert balanced_accuracy(*count_hits(logits, target, NUM_CLASSES)).item() == pytest.approx(expected, abs=1e-12)


def test_per_class_accuracy_is_scikit_learns_recall():
    logits, target = make_samples()
    present = [0, 1, 2, 3, 5]
    expected = recall_score(target.numpy(), logits.argmax(dim=1).numpy(), labels=present, average=None)
    value = PerClassAccuracy(NUM_CLASSES)(logits, target)
    np.testing.assert_allclose(value[present], expected, atol=1e-12)
    assert math.isnan(value[4])


def test_group_accuracy_is_the_mean_recall_of_the_groups_classes():
    logits, target = make_samples()
    true, predicted = target.numpy(), logits.argmax(dim=1).numpy()
    expected = {
        "head": recall_score(true, predicted, labels=[0, 1], average="macro"),
        "torso": recall_score(true, predicted, labels=[2], average="macro"),
        "tail": recall_score(true, predicted, labels=[3, 5], average="macro"),  # class 4 has no samples
    }
    assert_close(plain(GroupAccuracy(GROUPS, NUM_CLASSES)(logits, target)), expected)


@pytest.mark.parametrize("top_k", [1, 2, NUM_CLASSES - 1])
def test_top_k_is_scikit_learns(top_k):
    logits, target = make_samples()
    value = PerClassAccuracy(NUM_CLASSES, top_k=top_k)(logits, target)
    for label in (0, 1, 2, 3, 5):
        rows = target == label
        expected = top_k_accuracy_score(target[rows], logits[rows], k=top_k, labels=range(NUM_CLASSES))
        assert value[label].item() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), top_k=st.integers(1, 4))
def test_equal_logits_rank_by_class_index(seed, top_k):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 3, (20, 4), generator=generator).float()
    target = torch.randint(0, 4, (20,), generator=generator)
    expected = [0] * 4
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        ranking = sorted(range(4), key=lambda index: (-row[index], index))
        expected[label] += label in ranking[:top_k]
    assert count_hits(logits, target, 4, top_k)[0].tolist() == expected


def reliability_by_loops(logits, target, num_bins, weight_of):
    """share, confidence and accuracy of each bin from the definition."""
    mass, confidences, right = [0.0] * num_bins, [0.0] * num_bins, [0.0] * num_bins
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        exponentials = [math.exp(value) for value in row]
        confidence = max(exponentials) / sum(exponentials)
        index = next(b for b in range(num_bins) if b / num_bins < confidence <= (b + 1) / num_bins)
        weight = weight_of[label]
        mass[index] += weight
        confidences[index] += weight * confidence
        right[index] += weight * (row.index(max(row)) == label)
    total = sum(mass)
    ratio = [(c / m, r / m) if m else (math.nan, math.nan) for m, c, r in zip(mass, confidences, right, strict=True)]
    return [m / total for m in mass], [c for c, _ in ratio], [r for _, r in ratio]


@pytest.mark.parametrize("num_bins", [1, 5, 15])
@pytest.mark.parametrize("is_balanced", [False, True])
def test_calibration_is_the_definition(num_bins, is_balanced):
    logits, target = make_samples(num_samples=150)
    counts = torch.bincount(target, minlength=NUM_CLASSES).tolist()
    weight_of = [1 / max(n, 1) if is_balanced else 1.0 for n in counts]
    metric = BalancedCalibrationError(NUM_CLASSES, num_bins) if is_balanced else CalibrationError(num_bins)
    metric.update(logits, target)
    share, confidence, accuracy = reliability_by_loops(logits, target, num_bins, weight_of)
    rows = metric.reliability()
    np.testing.assert_allclose(rows.share, share, atol=1e-12)
    np.testing.assert_allclose(rows.confidence, confidence, atol=1e-12)
    np.testing.assert_allclose(rows.accuracy, accuracy, atol=1e-12)
    expected = sum(s * abs(a - c) for s, c, a in zip(share, confidence, accuracy, strict=True) if s)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)


def test_calibration_error_is_torchmetrics():
    logits, target = make_samples(dtype=torch.float32)
    expected = MulticlassCalibrationError(NUM_CLASSES, n_bins=15)(logits, target).item()
    assert CalibrationError(15)(logits, target).item() == pytest.approx(expected, abs=1e-6)


def test_a_calibrated_model_has_no_error_and_a_certain_wrong_one_has_all():
    probs = torch.tensor([[0.75, 0.25]]).log().expand(4, 2)
    assert CalibrationError()(probs, torch.tensor([0, 0, 0, 1])).item() == pytest.approx(0, abs=1e-7)
    certain = torch.tensor([[1e4, -1e4]]).expand(4, 2)
    assert CalibrationError()(certain, torch.tensor([1, 1, 1, 1])).item() == 1.0


def test_a_bin_holds_its_upper_end():
    logits = torch.tensor([[0.0, 0.0], [0.0, -math.inf]])  # confidences 1/2 and 1
    counts, _, _ = bin_confidences(logits, torch.tensor([0, 0]), num_bins=4)
    assert counts.tolist() == [0, 1, 0, 1]


def test_balanced_calibration_equals_plain_on_balanced_samples():
    logits, _ = make_samples(num_samples=60)
    target = torch.arange(60) % NUM_CLASSES
    plain_error, balanced = CalibrationError(), BalancedCalibrationError(NUM_CLASSES)
    assert balanced(logits, target).item() == pytest.approx(plain_error(logits, target).item(), abs=1e-12)


def test_bins_by_class_add_up_to_bins():
    logits, target = make_samples()
    together = bin_confidences(logits, target, 7)
    by_class = bin_confidences(logits, target, 7, by_class=True)
    for whole, parts in zip(together, by_class, strict=True):
        torch.testing.assert_close(parts.sum(dim=0), whole, rtol=0, atol=1e-12)


# Over batches


@pytest.mark.parametrize("name", NAMES)
def test_batches_in_pieces_equal_all_at_once(name):
    logits, target = make_samples()
    whole, pieces = make_metrics()[name], make_metrics()[name]
    whole.update(logits, target)
    sizes = [1, 0, 149, 250]
    for part, part_target in zip(logits.split(sizes), target.split(sizes), strict=True):
        pieces(part, part_target)  # forward: the batch's value, and the state goes on
    assert_close(plain(pieces.compute()), plain(whole.compute()))


@pytest.mark.parametrize("name", NAMES)
def test_ignored_samples_do_not_count(name):
    logits, target = make_samples()
    ignored = torch.full((3,), -100)
    metric, expected = make_metrics()[name], make_metrics()[name]
    # What an ignored sample's logits hold is nobody's business.
    metric.update(torch.cat([logits, torch.full((3, NUM_CLASSES), torch.nan)]), torch.cat([target, ignored]))
    expected.update(logits, target)
    assert_close(plain(metric.compute()), plain(expected.compute()))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_logits_count_as_their_float32_values(name):
    logits, target = make_samples(dtype=torch.bfloat16)
    half, full = make_metrics()[name], make_metrics()[name]
    assert_close(plain(half(logits, target)), plain(full(logits.float(), target)))


@pytest.mark.parametrize("name", NAMES)
def test_no_samples_give_nan_and_the_next_batch_still_counts(name):
    logits, target = make_samples()
    metric, expected = make_metrics()[name], make_metrics()[name]
    empty = metric(logits[:2], torch.tensor([-100, -100]))
    values = empty.values() if isinstance(empty, dict) else [empty]
    assert all(value.isnan().all() for value in values)
    metric.update(logits, target)
    expected.update(logits, target)
    assert_close(plain(metric.compute()), plain(expected.compute()))


@pytest.mark.parametrize("name", NAMES)
def test_reset_and_pickle(name):
    logits, target = make_samples()
    metric = make_metrics()[name]
    metric.update(logits, target)
    copy = pickle.loads(pickle.dumps(metric))
    assert_close(plain(copy.compute()), plain(metric.compute()), tolerance=0)
    value = plain(metric.compute())
    metric.reset()
    metric.update(logits, target)
    assert_close(plain(metric.compute()), value, tolerance=0)


def test_indices_count_as_the_logits_they_are_the_largest_of():
    logits, target = make_samples()
    for name in ("balanced accuracy", "balanced error", "per-class accuracy", "group accuracy"):
        by_logits, by_index = make_metrics()[name], make_metrics()[name]
        predicted = logits.argmax(dim=1).to(torch.uint8)
        assert_close(plain(by_index(predicted, target.to(torch.int16))), plain(by_logits(logits, target)), 0)


def test_missing_classes_are_named():
    logits, target = make_samples()
    for name in NAMES:
        metric = make_metrics()[name]
        if name == "calibration error":  # it does not know classes
            continue
        assert metric.missing_classes().tolist() == list(range(NUM_CLASSES))
        metric.update(logits, target)
        assert metric.missing_classes().tolist() == [4]


def test_groups_of_a_prior_work_also_when_one_is_empty():
    prior = ClassPrior.from_counts([500, 400, 10, 1])
    metric = GroupAccuracy(prior.groups(), num_classes=4)
    value = metric(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3]))
    assert value["head"] == 1.0
    assert value["torso"].isnan()
    assert value["tail"] == 0.5


def test_the_state_is_linear_in_the_number_of_classes():
    num_classes = 10**6
    metric = BalancedAccuracy(num_classes)
    metric.update(torch.tensor([5, num_classes - 1]), torch.tensor([5, 0]))
    assert metric.compute().item() == 0.5
    assert sum(state.numel() for state in metric.metric_state.values()) == 2 * num_classes


def test_infinite_logits_of_other_classes_are_fine():
    masked = torch.tensor([[0.0, -math.inf], [-math.inf, 1.0]])
    assert BalancedAccuracy(2)(masked, torch.tensor([0, 1])).item() == 1.0
    assert CalibrationError()(masked, torch.tensor([0, 1])).item() == 0.0


# In two processes


def evaluate_in_part(rank):
    """Every metric of this process's share of the samples, and priors merged across processes."""
    logits, target = make_samples()
    part = slice(0, 150) if rank == 0 else slice(150, None)
    values, missing, shares = {}, {}, {}
    for name, metric in make_metrics().items():
        metric.update(logits[part][:100], target[part][:100])
        metric.update(logits[part][100:], target[part][100:])
        values[name] = plain(metric.compute())
        if hasattr(metric, "missing_classes"):
            missing[name] = metric.missing_classes().tolist()
        if hasattr(metric, "reliability"):
            shares[name] = metric.reliability().share.tolist()
    merged = ClassPrior.from_labels(target[part], NUM_CLASSES).all_reduce()
    try:
        ClassPrior.from_counts([1] * (rank + 2)).all_reduce()
        message = ""
    except ValueError as error:
        message = str(error)
    return {
        "values": values,
        "missing": missing,
        "shares": shares,
        "counts": merged.counts.tolist(),
        "num_samples": merged.num_samples,
        "message": message,
    }


@pytest.fixture(scope="module")
def results(two_processes):
    return two_processes(evaluate_in_part)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_give_the_value_of_all_samples(results, name):
    logits, target = make_samples()
    metric = make_metrics()[name]
    metric.update(logits, target)
    for result in results:
        assert_close(result["values"][name], plain(metric.compute()))
        if name in result["missing"]:
            assert result["missing"][name] == [4]
        if name in result["shares"]:
            assert_close(result["shares"][name], metric.reliability().share.tolist())


def test_two_processes_merge_their_priors(results):
    _, target = make_samples()
    whole = ClassPrior.from_labels(target, NUM_CLASSES)
    for result in results:
        assert result["counts"] == whole.counts.tolist()
        assert result["num_samples"] == whole.num_samples


def test_priors_of_unequal_classes_do_not_merge_in_any_process(results):
    for result in results:
        assert "same number of classes. Got 2 to 3" in result["message"]


def fail_in_one_process(rank):
    if rank == 1:
        raise ValueError("rank 1 gives up")
    return rank


def test_a_failing_process_is_reported(two_processes):
    with pytest.raises(RuntimeError, match="rank 1 gives up"):
        two_processes(fail_in_one_process)


# Bad input


LOGITS = torch.zeros(2, 3)
TARGET = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("predictions", "target", "message"),
    [
        (LOGITS, torch.tensor([0, 3]), r"target must be in 0\.\.2 \(or ignore_index\). Got 3"),
        (LOGITS, torch.tensor([0, -1]), r"target must be in 0\.\.2 .* Got -1"),
        (LOGITS, torch.tensor([0.0, 1.0]), r"target must be \[2\] integer class indices. Got torch.float32"),
        (LOGITS, torch.tensor([0, 1, 2]), r"target must be \[2\]"),
        (LOGITS, torch.tensor([[0], [1]]), r"target must be \[2\]"),
        (torch.zeros(2, 4), TARGET, r"logits must be \[N, 3\]. Got shape \(2, 4\)"),
        (torch.zeros(2, 3, 1), TARGET, r"predictions must be floating-point logits"),
        (torch.zeros(2, 3, dtype=torch.int64), TARGET, r"predictions must be floating-point logits"),
        (torch.zeros(2), TARGET, r"predictions must be floating-point logits"),
        (torch.tensor([True, False]), TARGET, r"predictions must be floating-point logits"),
        (torch.tensor([0, 3]), TARGET, r"predictions must be in 0\.\.2. Got 3"),
        (torch.tensor([[0.0, 0.0, torch.nan], [0.0, 0.0, 0.0]]), TARGET, r"logits must not be NaN"),
    ],
)
def test_bad_batches_are_refused_and_leave_the_state_alone(predictions, target, message):
    metric = BalancedAccuracy(3)
    metric.update(LOGITS, TARGET)
    with pytest.raises(ValueError, match=message):
        metric.update(predictions, target)
    assert metric.counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize("metric", [CalibrationError(), BalancedCalibrationError(3)])
@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.tensor([0, 1]), TARGET, r"logits"),
        (LOGITS, torch.tensor([0, 3]), r"target must be in 0\.\.2"),
        (torch.tensor([[math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]]), TARGET, r"must be finite"),
        (torch.full((2, 3), torch.nan), TARGET, r"must not be NaN"),
    ],
)
def test_calibration_refuses_bad_batches(metric, logits, target, message):
    with pytest.raises(ValueError, match=message):
        metric.update(logits, target)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BalancedAccuracy(0), "num_classes must be at least 1. Got 0"),
        (lambda: BalancedAccuracy(3, top_k=4), r"top_k must be in 1\.\.3. Got 4"),
        (lambda: BalancedError(3, top_k=0), r"top_k must be in 1\.\.3. Got 0"),
        (lambda: BalancedAccuracy(3, top_k=2).update(TARGET, TARGET), "top_k=2 needs logits"),
        (lambda: CalibrationError(0), "num_bins must be at least 1. Got 0"),
        (lambda: BalancedCalibrationError(2).update(LOGITS, TARGET), r"logits must be \[N, 2\]"),
        (lambda: GroupAccuracy({}, 3), "at least one group"),
        (lambda: GroupAccuracy({"tail": torch.tensor([3])}, 3), r"group 'tail' must be in 0\.\.2. Got 3"),
        (lambda: GroupAccuracy({"tail": torch.tensor([1, 1])}, 3), "group 'tail' must name every class once"),
        (lambda: GroupAccuracy({"tail": torch.tensor([0.5])}, 3), "group 'tail' must be a vector of class indices"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
