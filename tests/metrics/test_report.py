"""The classification report against scikit-learn, and how it reads."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, precision_recall_fscore_support

from longtail import ClassPrior
from longtail.metrics import classification_report


def make_case(num_classes, num_samples=600, seed=0):
    """Long-tailed targets, where the last class has no samples, and logits that favor frequent classes."""
    prior = ClassPrior.from_counts([2000 // (index + 1) ** 2 + 1 for index in range(num_classes)])
    generator = torch.Generator().manual_seed(seed)
    target = torch.multinomial(prior.probs[:-1], num_samples, replacement=True, generator=generator)
    logits = torch.randn(num_samples, num_classes, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), target] += 2.0
    return logits + prior.log_probs / 4, target, prior


@pytest.mark.parametrize("as_indices", [False, True])
@pytest.mark.parametrize("num_classes", [5, 30])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_numbers_are_scikit_learns(num_classes, as_indices):
    logits, target, prior = make_case(num_classes)
    predicted = logits.argmax(dim=1)
    report = classification_report(predicted if as_indices else logits, target, prior)
    precision, recall, f1, support = precision_recall_fscore_support(
        target.numpy(), predicted.numpy(), labels=range(num_classes), zero_division=0
    )
    seen = support > 0
    for name, expected in (("precision", precision), ("recall", recall), ("f1", f1)):
        np.testing.assert_allclose(report.values[name].numpy()[seen], expected[seen], atol=1e-12)
        assert report.values[name].numpy()[~seen].tolist() == pytest.approx([math.nan] * (~seen).sum(), nan_ok=True)
    assert report.values["support"].tolist() == support.tolist()
    assert report.values["train"].tolist() == prior.counts.tolist()
    assert report.accuracy == pytest.approx(accuracy_score(target, predicted), abs=1e-12)
    assert report.balanced_accuracy == pytest.approx(balanced_accuracy_score(target, predicted), abs=1e-12)

    rows = report.as_dict()
    for name, classes in prior.groups().items():
        members = [c for c in classes.tolist() if seen[c]]
        assert rows["groups"][name]["support"] == support[members].sum()
        for key, values in (("precision", precision), ("recall", recall), ("f1", f1)):
            expected = values[members].mean() if members else math.nan
            assert rows["groups"][name][key] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert rows["classes"]["1"]["f1"] == pytest.approx(f1[1], abs=1e-12)
    assert rows["all classes"]["recall"] == pytest.approx(report.balanced_accuracy, abs=1e-12)


def test_confidence_is_the_mean_probability_of_the_prediction():
    logits, target, prior = make_case(5)
    report = classification_report(logits, target, prior)
    confidence = logits.softmax(dim=1).amax(dim=1)
    for label in range(4):
        expected = confidence[target == label].mean().item()
        assert report.values["confidence"][label].item() == pytest.approx(expected, abs=1e-12)
    assert classification_report(logits.argmax(dim=1), target, prior).values["confidence"].isnan().all()


def test_few_classes_are_all_listed_by_name():
    logits, target, prior = make_case(4)
    text = str(classification_report(logits, target, prior, ["cat", "dog", "a|b", "n" * 50]))
    assert [line.split()[0] for line in text.splitlines()[-4:]] == ["cat", "dog", "a|b", "n" * 23 + "..."]
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].split()[1:] == ["126", "0", "-", "-", "-", "-"]


def test_of_many_classes_the_worst_are_listed():
    logits, target, prior = make_case(40)
    report = classification_report(logits, target, prior, num_worst=3)
    assert "worst 3 of 40" in str(report)
    f1 = report.values["f1"]
    rest = [c for c in range(40) if c not in report.listed.tolist() and report.values["support"][c] > 0]
    assert f1[report.listed].max() <= f1[rest].min()
    assert len(classification_report(logits, target, prior, max_classes=40).listed) == 40
    assert max(map(len, str(report).splitlines())) <= 80


def test_it_says_in_words_what_happens_to_the_tail():
    prior = ClassPrior.from_counts([1000, 50, 2])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0]])
    text = str(classification_report(logits, torch.tensor([0, 1, 2]), prior))
    assert "Accuracy 66.7 %, balanced accuracy 66.7 %, of 3 samples of 3 classes." in text
    assert "Recall is 100.0 % for head, 100.0 % for torso and 0.0 % for tail." in text
    assert "On tail classes the model is 100.0 % sure and 0.0 % right." in text
    assert "1 class is never predicted right." in text


def test_markdown_is_a_table_whatever_names_hold():
    logits, target, prior = make_case(3)
    text = classification_report(logits, target, prior, ["a|b", "c\nd", "e"]).to_markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4 + 3
    assert "| a\\|b |" in text
    assert "| c d |" in text


def test_ignored_samples_own_groups_and_nothing_at_all():
    logits, target, prior = make_case(5)
    ignored = torch.where(target == 0, -100, target)
    groups = {"first": torch.tensor([0]), "rest": torch.tensor([1, 2, 3, 4])}
    report = classification_report(logits, ignored, prior, groups=groups)
    assert report.values["support"][0] == 0
    assert report.as_dict()["groups"]["rest"]["support"] == int((target != 0).sum())
    empty = classification_report(logits[:0], target[:0], prior)
    assert math.isnan(empty.accuracy)
    assert "Accuracy unknown" in str(empty)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": ["a"]}, "class_names must be 3 names, one per class of the prior. Got 1"),
        ({"groups": {"x": torch.tensor([3])}}, r"group 'x' must be in 0\.\.2"),
        ({"predictions": torch.full((2, 3), math.nan)}, "must not be NaN"),
        ({"predictions": torch.zeros(2, 4)}, r"logits must be \[N, 3\]"),
    ],
)
def test_bad_input_is_named(options, message):
    arguments = {
        "predictions": torch.zeros(2, 3),
        "target": torch.tensor([0, 1]),
        "prior": ClassPrior.from_counts([3, 2, 1]),
    }
    with pytest.raises(ValueError, match=message):
        classification_report(**arguments | options)
