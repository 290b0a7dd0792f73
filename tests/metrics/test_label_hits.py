"""Recall and precision per label against loops and napkinXC."""

import warnings

import numpy as np
import pytest
import torch
from scipy import sparse

from longtail import ClassPrior
from longtail.metrics import (
    count_label_hits,
    group_recall,
    group_recall_from_counts,
    macro_precision,
    macro_precision_from_counts,
    macro_recall,
    macro_recall_from_counts,
)

NUM_CLASSES = 12
K = 5


def make_truth(num_samples=60, density=0.2, seed=0):
    """Labels of very unequal frequency; some samples have none."""
    generator = np.random.default_rng(seed)
    rates = np.minimum(1.0, density * NUM_CLASSES * 0.7 ** np.arange(NUM_CLASSES) / 2 + 0.05)
    truth = generator.random((num_samples, NUM_CLASSES)) < rates
    truth[::9] = False
    truth[1, :] = True
    return sparse.csr_array(truth.astype(np.float64))


def make_scores(truth, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(truth.shape, dtype=torch.float64, generator=generator)
    return noise + torch.from_numpy(truth.toarray())


def test_counts_of_labels_are_those_of_loops():
    truth = make_truth()
    scores = make_scores(truth)
    ranked = np.argsort(-scores.numpy(), axis=1, kind="stable")
    ks = (1, 3, NUM_CLASSES)
    counted = count_label_hits(scores, truth, ks)
    for row, k in enumerate(ks):
        hits, predicted = np.zeros(NUM_CLASSES), np.zeros(NUM_CLASSES)
        for sample, labels in enumerate(ranked[:, :k]):
            for label in labels:
                predicted[label] += 1
                hits[label] += truth[sample, label]
        assert counted.hits[row].tolist() == hits.tolist()
        assert counted.predicted[row].tolist() == predicted.tolist()
    assert counted.positives.tolist() == truth.sum(axis=0).tolist()
    assert macro_recall_from_counts(counted)[-1] == 1.0


def test_slices_are_shares_of_pairs():
    truth = make_truth(num_samples=200)
    prior = ClassPrior.from_indicator(truth)
    groups = prior.quantile_groups()
    scores = make_scores(truth)
    counted = count_label_hits(scores, truth, [2])
    best = scores.topk(2).indices.tolist()
    for name, labels in groups.items():
        pairs = [(row, label) for row, label in zip(*truth.nonzero(), strict=True) if label in labels.tolist()]
        expected = np.mean([label in best[row] for row, label in pairs])
        assert group_recall_from_counts(counted, groups)[name].item() == pytest.approx(expected, abs=1e-12)


def test_macro_averages_leave_out_what_has_no_value():
    truth = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    counted = count_label_hits(torch.tensor([[0], [2]]), truth, [1])
    assert macro_recall_from_counts(counted).tolist() == [0.25]  # labels 0 and 1 are true somewhere: 1/2 and 0
    assert macro_precision_from_counts(counted).tolist() == pytest.approx(
        [1 / 3]
    )  # 1, missed, wrong; label 3 has no value


@pytest.fixture(scope="module")
def napkinxc():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("napkinxc.metrics", reason="pip install napkinxc, to compare with it")


def test_macro_averages_are_those_of_napkinxc(napkinxc):
    truth = make_truth(num_samples=200)
    scores = make_scores(truth)
    assert truth.sum(axis=0).min() > 0, "napkinXC counts a label that is never true as 0"
    counted = count_label_hits(scores, truth, range(1, K + 1))
    for function, average in (
        (napkinxc.macro_recall_at_k, macro_recall_from_counts),
        (napkinxc.macro_precision_at_k, macro_precision_from_counts),
    ):
        expected = function(sparse.csr_matrix(truth), scores.numpy(), k=K)
        np.testing.assert_allclose(average(counted).numpy(), expected, rtol=1e-10)


def test_functions_are_those_of_their_counts():
    truth = make_truth()
    scores, ks = make_scores(truth), (1, K)
    counts = count_label_hits(scores, truth, ks)
    groups = {"head": torch.arange(4), "tail": torch.arange(4, NUM_CLASSES)}
    assert torch.equal(macro_recall(scores, truth, ks), macro_recall_from_counts(counts))
    assert torch.equal(macro_precision(scores, truth, ks), macro_precision_from_counts(counts))
    found, expected = group_recall(scores, truth, groups, ks), group_recall_from_counts(counts, groups)
    assert all(torch.equal(found[name], expected[name]) for name in groups)
