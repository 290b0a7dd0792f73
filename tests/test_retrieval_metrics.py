"""Retrieval metrics against loops from their definitions and against napkinXC; in pieces and processes as at once."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from longtail import ClassPrior
from longtail.metrics import (
    NDCG,
    PRECISION,
    PROPENSITY_CONSTANTS,
    RECALL,
    LabelHitsAtK,
    RetrievalMetric,
    count_label_hits,
    group_recall,
    inverse_propensities,
    macro_precision,
    macro_recall,
    ndcg_at_k,
    precision_at_k,
    propensity_scored_ndcg,
    propensity_scored_ndcg_at_k,
    propensity_scored_precision,
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


def measures(inverses):
    return {
        "precision": PRECISION,
        "recall": RECALL,
        "ndcg": NDCG,
        "psprecision": propensity_scored_precision(inverses),
        "psndcg": propensity_scored_ndcg(inverses),
    }


NAMES = list(functions(None))


# Against loops


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


def test_counts_of_labels_are_those_of_loops():
    truth = make_truth()
    scores = make_scores(truth)
    ranked = np.argsort(-scores.numpy(), axis=1, kind="stable")
    at = (1, 3, NUM_CLASSES)
    counted = count_label_hits(scores, truth, at)
    for row, k in enumerate(at):
        hits, predicted = np.zeros(NUM_CLASSES), np.zeros(NUM_CLASSES)
        for sample, labels in enumerate(ranked[:, :k]):
            for label in labels:
                predicted[label] += 1
                hits[label] += truth[sample, label]
        assert counted.hits[row].tolist() == hits.tolist()
        assert counted.predicted[row].tolist() == predicted.tolist()
    assert counted.counts.tolist() == truth.sum(axis=0).tolist()
    assert macro_recall(counted)[-1] == 1.0


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
        assert group_recall(counted, groups)[name].item() == pytest.approx(expected, abs=1e-12)


def test_macro_averages_leave_out_what_has_no_value():
    truth = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    counted = count_label_hits(torch.tensor([[0], [2]]), truth, [1])
    assert macro_recall(counted).tolist() == [0.25]  # labels 0 and 1 are true somewhere: 1/2 and 0
    assert macro_precision(counted).tolist() == pytest.approx([1 / 3])  # 1, missed, wrong; label 3 has no value


# Against napkinXC


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
    padded = torch.tensor([labels + [-1] * (K - len(labels)) for labels in lists])
    found = functions(torch.from_numpy(inverses))[name](padded, truth, K)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_macro_averages_are_those_of_napkinxc(napkinxc):
    truth = make_truth(num_samples=200)
    scores = make_scores(truth)
    assert truth.sum(axis=0).min() > 0, "napkinXC counts a label that is never true as 0"
    counted = count_label_hits(scores, truth, range(1, K + 1))
    for function, average in (
        (napkinxc.macro_recall_at_k, macro_recall),
        (napkinxc.macro_precision_at_k, macro_precision),
    ):
        expected = function(sparse.csr_matrix(truth), scores.numpy(), k=K)
        np.testing.assert_allclose(average(counted).numpy(), expected, rtol=1e-10)


# Forms of input


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
    assert macro_recall(counted).isnan().all()
    assert macro_precision(counted).isnan().all()


def test_constants_of_propensities():
    prior = ClassPrior.from_indicator(make_truth())
    for a, b in PROPENSITY_CONSTANTS.values():
        counts, size = prior.counts.double(), prior.num_samples
        expected = 1 + (math.log(size) - 1) * (b + 1) ** a * (counts + b) ** -a
        torch.testing.assert_close(inverse_propensities(prior, a, b), expected, rtol=1e-12, atol=0)


# Over batches and processes


def updated(metric, rows):
    truth = make_truth()
    scores = make_scores(truth)
    for part in np.array_split(rows, 3):
        metric.update(scores[part], truth[part])
    return metric


@pytest.mark.parametrize("name", NAMES)
def test_batches_add_up(name):
    truth = make_truth()
    inverses = make_inverses(truth)
    metric = updated(RetrievalMetric(measures(inverses)[name], K), np.arange(60))
    torch.testing.assert_close(metric.compute(), functions(inverses)[name](make_scores(truth), truth, K))
    torch.testing.assert_close(pickle.loads(pickle.dumps(metric)).compute(), metric.compute())


def test_label_counts_add_up():
    truth = make_truth()
    metric = updated(LabelHitsAtK(NUM_CLASSES, at=(1, K)), np.arange(60))
    expected = count_label_hits(make_scores(truth), truth, (1, K))
    for part, whole in zip(metric.compute(), expected, strict=True):
        assert torch.equal(part, whole)


def evaluate_in_part(rank):
    rows = np.arange(0, 25) if rank == 0 else np.arange(25, 60)
    inverses = make_inverses(make_truth())
    values = {name: updated(RetrievalMetric(measure, K), rows) for name, measure in measures(inverses).items()}
    labels = updated(LabelHitsAtK(NUM_CLASSES, at=(1, K)), rows).compute()
    return {name: metric.compute().tolist() for name, metric in values.items()}, macro_recall(labels).tolist()


def test_two_processes_give_the_values_of_all_samples(two_processes):
    truth = make_truth()
    scores, inverses = make_scores(truth), make_inverses(truth)
    for values, macro in two_processes(evaluate_in_part):
        for name, function in functions(inverses).items():
            assert values[name] == pytest.approx(function(scores, truth, K).tolist(), abs=1e-12)
        assert macro == pytest.approx(macro_recall(count_label_hits(scores, truth, (1, K))).tolist(), abs=1e-12)


# Bad input


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
        (torch.tensor([[0, 3], [1, 0]]), TRUTH, 2, r"in 0\.\.2, or -1 for none. Got 3"),
        (torch.tensor([[0, -2], [1, 0]]), TRUTH, 2, "Got -2"),
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
        LabelHitsAtK(3, at=[0])
    with pytest.raises(ValueError, match=r"truth must be \[N, 4\]"):
        LabelHitsAtK(4, at=[1]).update(scores, TRUTH)
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
    with pytest.raises(ValueError, match="truth must be a matrix"):
        LabelHitsAtK(3, at=[1]).update(torch.from_numpy(ranked), [[1, 0, 0], [0, 1, 1]])
