"""How runs become a comparison, and which do not."""

import dataclasses

import numpy as np
import pytest

from longtail.lab.report.kinds import compare
from longtail.lab.runs.statistics import estimate


def test_best_is_held_against_cross_entropy_seed_by_seed(comparison):
    assert (comparison.best.label, comparison.reference.label) == ("logit_adjusted", "cross_entropy")
    pairs = zip(comparison.best.runs, comparison.reference.runs, strict=True)
    expected = estimate(one.metrics["tail"] - two.metrics["tail"] for one, two in pairs)
    assert comparison.difference("tail") == expected


def test_methods_are_in_the_order_of_their_table(comparison):
    assert [method.label for method in comparison.methods] == [
        "cross_entropy",
        "logit_adjusted",
        "class_balanced",
        "posthoc_adjusted",
    ]


def test_recipes_of_one_method_are_told_apart(tmp_path, make_predictions, make_run, counts):
    predictions = make_predictions(counts)
    runs = [
        make_run(tmp_path / "a", "logit_adjusted", 0, predictions, settings=["[method.options]", "tau = 1.5"]),
        make_run(tmp_path / "b", "logit_adjusted", 0, predictions, settings=["[method.options]", "tau = 2.0"]),
        make_run(tmp_path / "c", "cross_entropy", 0, predictions),
    ]
    labels = {method.label for method in compare(runs).methods}
    assert labels == {"cross_entropy", "logit_adjusted (tau=1.5)", "logit_adjusted (tau=2.0)"}


def test_runs_of_different_data(tmp_path, make_predictions, make_run, counts):
    first = make_run(tmp_path / "a", "cross_entropy", 0, make_predictions(counts))
    others = {
        "names": make_predictions(counts, names=[f"kind {index}" for index in range(10)]),
        "counts": make_predictions(counts + 1),
        "number": make_predictions(counts[:5]),
        "tests": make_predictions(counts, num_samples=399),
    }
    for name, predictions in others.items():
        other = make_run(tmp_path / name, "logit_adjusted", 0, predictions)
        with pytest.raises(ValueError, match="must be of the same data") as caught:
            compare([first, other])
        assert "\n" not in str(caught.value)


def test_one_run_twice(tmp_path, make_predictions, make_run, counts):
    runs = [make_run(tmp_path / name, "cross_entropy", 0, make_predictions(counts)) for name in "ab"]
    with pytest.raises(ValueError, match="both cross_entropy with seed 0"):
        compare(runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros((400, 9), np.float32)}, r"scores must be numbers of shape \(400, 10\)"),
        ({"logits": np.full((400, 10), np.nan, np.float32)}, "logits must be finite"),
        ({"labels": np.full(400, 10)}, r"labels must be in 0\.\.9"),
        ({"labels": np.full(400, 0.5)}, "labels must be whole numbers"),
        ({"train_counts": np.ones(9, np.int64)}, "train_counts must have one number per class"),
        ({"weight_norms": np.ones(11, np.float32)}, "weight_norms must have one number per class"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, change, message, make_predictions, make_run, counts):
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(counts))
    broken = dataclasses.replace(run, results=dataclasses.replace(run.predictions, **change))
    with pytest.raises(ValueError, match=message) as caught:
        compare([broken])
    assert str(run.path) in str(caught.value)
