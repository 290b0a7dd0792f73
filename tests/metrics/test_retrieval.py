"""Retrieval metrics against loops from their definitions and against napkinXC."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torchmetrics import MetricCollection

from longtail import ClassPrior
from longtail.metrics import (
    PRECISION,
    RECALL,
    LabelHitsAtK,
    RetrievalMetric,
    count_label_hits,
    inverse_propensities,
    macro_precision_from_counts,
    macro_recall_from_counts,
    ndcg_at_k,
    precision_at_k,
    propensity_scored_ndcg_at_k,
    propensity_scored_precision_at_k,
    rank_labels,
    recall_at_k,
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


def make_inverses(truth):
    return inverse_propensities(ClassPrior.from_indicator(truth))


def functions(inverses):
    """Every measure as a function of predictions, truth and k."""
    return {
        "precision": precision_at_k,
        "recall": recall_at_k,
        "ndcg": ndcg_at_k,
        "psprecision": lambda *args: propensity_scored_precision_at_k(*args, inverses),
        "psndcg": lambda *args: propensity_scored_ndcg_at_k(*args, inverses),
    }


NAMES = list(functions(None))


def loop_value(name, ranked, truth, inverses, k):
    """The definition, one sample and one place after the other."""
    above = below = 0.0
    for row, labels in enumerate(ranked):
        true = np.flatnonzero(truth.toarray()[row])
        weights = {label: inverses[label] if name.startswith("ps") else 1.0 for label in range(NUM_CLASSES)}
        best = sorted((weights[label] for label in true), reverse=True)
        gain = best_gain = norm = 0.0
        for place in range(1, k + 1):
            discount = 1 / math.log2(place + 1) if name.endswith("ndcg") else 1.0
            gain += weights[labels[place - 1]] * discount if labels[place - 1] in true else 0.0
            best_gain += best[place - 1] * discount if place <= len(true) else 0.0
            norm += discount if place <= len(true) or not name.endswith("ndcg") else 0.0
        divisor = max(1, len(true)) if name == "recall" else norm
        above += gain / divisor if len(true) else 0.0
        below += (best_gain / divisor if len(true) else 0.0) if name.startswith("ps") else 1.0
    return above / below


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_values_are_those_of_the_definitions(name, seed):
    truth = make_truth(seed=seed)
    scores, inverses = make_scores(truth, seed), make_inverses(truth)
    found = functions(inverses)[name](scores, truth, K)
    ranked = np.argsort(-scores.numpy(), axis=1, kind="stable")
    expected = [loop_value(name, ranked, truth, inverses.tolist(), place) for place in range(1, K + 1)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def napkinxc():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("napkinxc.metrics", reason="pip install napkinxc, to compare with it")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("density", [0.02, 0.2, 0.9])
def test_values_are_those_of_napkinxc(napkinxc, name, density):
    for seed in range(5):
        truth = make_truth(density=density, seed=seed)
        scores = make_scores(truth, seed)
        inverses = napkinxc.Jain_et_al_inverse_propensity(sparse.csr_matrix(truth))
        np.testing.assert_allclose(make_inverses(truth).numpy(), inverses, rtol=1e-12)
        arguments = (inverses,) if name.startswith("ps") else ()
        expected = getattr(napkinxc, f"{name}_at_k")(sparse.csr_matrix(truth), scores.numpy(), *arguments, k=K)
        found = functions(torch.from_numpy(inverses))[name](scores, truth, K)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_short_lists_are_those_of_napkinxc(napkinxc, name):
    truth = make_truth(num_samples=4)
    lists = [[3, 0], [], [1, 2, 0, 5, 4], [7]]
    inverses = make_inverses(make_truth()).numpy()
    arguments = (inverses,) if name.startswith("ps") else ()
    expected = getattr(napkinxc, f"{name}_at_k")(sparse.csr_matrix(truth), lists, *arguments, k=K)
    padded = torch.tensor([labels + [-100] * (K - len(labels)) for labels in lists])
    found = functions(torch.from_numpy(inverses))[name](padded, truth, K)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_all_forms_of_input_give_the_same():
    truth = make_truth()
    scores = make_scores(truth)
    wanted = rank_labels(scores, truth, K)
    ranked = torch.from_numpy(np.argsort(-scores.numpy(), axis=1, kind="stable"))
    forms = [sparse.csr_matrix(truth), truth.tocoo(), truth.tocsc(), truth.astype(bool), truth.toarray()]
    for form in [*forms, torch.from_numpy(truth.toarray()), torch.from_numpy(truth.toarray()).bool()]:
        for predictions in (scores, ranked, ranked.to(torch.int32), ranked[:, :K].to(torch.uint8)):
            found = rank_labels(predictions, form, K)
            assert torch.equal(found.labels, wanted.labels)
            assert torch.equal(found.is_hit, wanted.is_hit)
            assert torch.equal(found.num_true, wanted.num_true)


def test_input_is_left_alone():
    data, indices, indptr = np.array([1.0, 0.0, 1.0]), np.array([2, 1, 0]), np.array([0, 3])
    truth = sparse.csr_array((data, indices, indptr), shape=(1, 3))
    assert rank_labels(torch.tensor([[0, 1, 2]]), truth, 3).is_hit.tolist() == [[True, False, True]]
    assert truth.indices.tolist() == [2, 1, 0]
    assert truth.data.tolist() == [1.0, 0.0, 1.0]


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5),
    k=st.integers(1, 6),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
@settings(deadline=None, max_examples=50)
def test_equal_scores_rank_by_label(rows, k, dtype):
    scores = torch.tensor(rows, dtype=dtype)
    expected = [sorted(range(6), key=lambda label: (-row[label], label))[:k] for row in rows]
    assert rank_labels(scores, torch.zeros(len(rows), 6), k).labels.tolist() == expected


def test_masked_labels_come_last():
    scores = torch.tensor([[0.5, -math.inf, 0.1]])
    assert rank_labels(scores, torch.zeros(1, 3), 3).labels.tolist() == [[0, 2, 1]]


@given(seed=st.integers(0, 1000), k=st.integers(1, NUM_CLASSES))
@settings(deadline=None, max_examples=20)
def test_the_best_list_is_worth_1(seed, k):
    truth = make_truth(num_samples=8, seed=seed)
    truth = truth[truth.sum(axis=1) > 0]
    inverses = make_inverses(make_truth())
    best = torch.from_numpy(truth.toarray()) * inverses
    for name in ("psprecision", "psndcg", "ndcg"):
        torch.testing.assert_close(functions(inverses)[name](best, truth, k), torch.ones(k, dtype=torch.float64))


def test_without_samples_or_labels():
    inverses = torch.ones(3)
    for name, function in functions(inverses).items():
        assert function(torch.zeros(0, 3), sparse.csr_array((0, 3)), 2).isnan().all(), name
    for name, function in functions(inverses).items():
        value = function(torch.zeros(4, 3), sparse.csr_array((4, 3)), 2)
        assert value.isnan().all() if name.startswith("ps") else (value == 0).all(), name
    counted = count_label_hits(torch.zeros(0, 3), sparse.csr_array((0, 3)), [1])
    assert macro_recall_from_counts(counted).isnan().all()
    assert macro_precision_from_counts(counted).isnan().all()


TRUTH = torch.tensor([[1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("predictions", "truth", "k", "message"),
    [
        (torch.zeros(2, 4), TRUTH, 1, r"floating-point \[N, 3\]"),
        (torch.zeros(3, 3), TRUTH, 1, r"scores \[2, 3\] or ranked labels"),
        (torch.zeros(2), TRUTH, 1, r"Got torch.float32 \(2,\)"),
        (torch.zeros(2, 3, dtype=torch.bool), TRUTH, 1, "floating-point"),
        (torch.tensor([[0.0, math.nan, 1.0]] * 2), TRUTH, 1, "must not be NaN"),
        (torch.zeros(2, 3), TRUTH, 0, r"k must be in 1\.\.3"),
        (torch.zeros(2, 3), TRUTH, 4, r"k must be in 1\.\.3.*Got 4"),
        (torch.tensor([[0], [1]]), TRUTH, 2, r"k must be in 1\.\.1"),
        (torch.tensor([[0, 3], [1, 0]]), TRUTH, 2, r"in 0\.\.2, or -100 for none. Got 3"),
        (torch.tensor([[0, -1], [1, 0]]), TRUTH, 2, "or -100 for none. Got -1"),
        (torch.tensor([[0, -200], [1, 0]]), TRUTH, 2, "Got -200"),
        (torch.tensor([[0, 1], [1, 1]]), TRUTH, 2, "twice in row 1"),
        (torch.zeros(2, 3), TRUTH * 2, 1, "no entries but 0 and 1"),
        (torch.zeros(2, 3), TRUTH.double() * math.nan, 1, "no entries but 0 and 1"),
        (torch.zeros(2, 3), TRUTH[0], 1, "matrix"),
        (torch.zeros(2, 3), [[1, 0, 1]], 1, "Got list"),
    ],
)
def test_bad_input_is_named(predictions, truth, k, message):
    with pytest.raises(ValueError, match=message):
        precision_at_k(predictions, truth, k)


def test_other_bad_input_is_named():
    scores = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"of 3 labels\. Got 2"):
        propensity_scored_precision_at_k(scores, TRUTH, 1, torch.ones(2))
    with pytest.raises(ValueError, match="finite numbers"):
        propensity_scored_ndcg_at_k(scores, TRUTH, 1, torch.tensor([1.0, math.inf, 1.0]))
    with pytest.raises(ValueError, match="at least one number of places"):
        count_label_hits(scores, TRUTH, [])
    with pytest.raises(ValueError, match="each at least 1"):
        LabelHitsAtK(3, ks=[0])
    with pytest.raises(ValueError, match=r"target must be \[N, 4\]"):
        LabelHitsAtK(4, ks=[1]).update(scores, TRUTH)
    with pytest.raises(ValueError, match="k must be at least 1"):
        RetrievalMetric(PRECISION, k=0)
    with pytest.raises(ValueError, match="a must be a finite number"):
        inverse_propensities(ClassPrior.from_counts([1, 2]), a=-1)
    with pytest.raises(ValueError, match="b must be above 0"):
        inverse_propensities(ClassPrior.from_counts([1, 0]), b=0)


def test_predictions_may_be_arrays():
    truth = np.array([[1, 0, 0], [0, 1, 1]])
    ranked = np.array([[0, 1], [1, 0]])
    assert torch.equal(precision_at_k(ranked, truth, 2), precision_at_k(torch.from_numpy(ranked), truth, 2))
    with pytest.raises(ValueError, match="target must be a matrix"):
        LabelHitsAtK(3, ks=[1]).update(torch.from_numpy(ranked), [[1, 0, 0], [0, 1, 1]])


def test_a_collection_keeps_measures_apart():
    """With one label per sample P@1 is R@1; torchmetrics would take them for one metric after such a batch."""
    together = MetricCollection(
        {"precision": RetrievalMetric(PRECISION, k=1), "recall": RetrievalMetric(RECALL, k=1)}
    )
    together.update(torch.tensor([[0]]), torch.tensor([[1, 0]]))
    together.update(torch.tensor([[0]]), torch.tensor([[1, 1]]))
    assert {name: value.item() for name, value in together.compute().items()} == {"precision": 1.0, "recall": 0.75}
