"""ClassPrior: what it counts, from what, and what it refuses."""

import math
import pickle
import time

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from longtail import ClassPrior

LABELS = [0, 0, 2, 1, 0, 2]
COUNTS = [3, 1, 2]


class WithTargets(Dataset):
    def __init__(self, targets):
        self.targets = targets

    def __getitem__(self, index):
        return index, self.targets[index]

    def __len__(self):
        return len(self.targets)


class OnlyItems(Dataset):
    def __getitem__(self, index):
        if index >= len(LABELS):
            raise IndexError
        return torch.zeros(2), torch.tensor(LABELS[index])

    def __len__(self):
        return len(LABELS)


HOLDERS = {
    "list": LABELS,
    "tuple": tuple(LABELS),
    "numpy": np.array(LABELS, dtype=np.uint8),
    "tensor": torch.tensor(LABELS, dtype=torch.int16),
    "pandas": pd.Series(LABELS),
    "list of tensors": [torch.tensor(label) for label in LABELS],
    "dataset with targets": WithTargets(LABELS),
    "tensor dataset": TensorDataset(torch.zeros(6, 2), torch.tensor(LABELS)),
    "subset": Subset(WithTargets([1, 1, *LABELS]), range(2, 8)),
    "concat": ConcatDataset([WithTargets(LABELS[:2]), Subset(WithTargets([9, *LABELS[2:]]), [1, 2, 3, 4])]),
    "items": OnlyItems(),
    "pairs": ((None, label) for label in LABELS),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_counts_what_people_hold(holder):
    assert ClassPrior.from_labels(holder).counts.tolist() == COUNTS


def test_a_dataset_that_ends_by_its_length_alone():
    class Endless(torch.utils.data.Dataset):
        def __len__(self):
            return len(LABELS)

        def __getitem__(self, index):
            return torch.zeros(3), LABELS[index % len(LABELS)]

    assert ClassPrior.from_labels(Endless()).counts.tolist() == ClassPrior.from_labels(LABELS).counts.tolist()


def test_fractional_labels_of_pairs_are_an_error():
    with pytest.raises(TypeError, match="labels must be integers"):
        ClassPrior.from_labels([(0, 1.9), (0, 0.2)])


def test_indicators_in_half_precision_are_counted_exactly():
    assert ClassPrior.from_indicator(torch.ones(5000, 2, dtype=torch.float16)).counts.tolist() == [5000, 5000]


def test_five_million_labels_are_counted_well_under_a_second():
    labels = torch.randint(1000, (5_000_000,), generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    prior = ClassPrior.from_labels(labels)
    assert time.process_time() - start < 1.0
    assert prior.num_samples == 5_000_000


INDICATOR = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    "indicator",
    [
        INDICATOR,
        INDICATOR.tolist(),
        torch.from_numpy(INDICATOR).bool(),
        torch.from_numpy(INDICATOR).to_sparse(),
        torch.from_numpy(INDICATOR).float().to_sparse_csc(),
        scipy.sparse.csr_matrix(INDICATOR),
        scipy.sparse.coo_array(INDICATOR),
    ],
)
def test_indicator_of_any_kind(indicator):
    prior = ClassPrior.from_indicator(indicator)
    assert prior.counts.tolist() == [2, 1, 0]
    assert prior.num_samples == 3
    assert prior.rates.tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert prior.probs.sum() == 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.lists(st.integers(0, 6), min_size=1, max_size=60))
@settings(deadline=None, max_examples=30)
def test_shards_merge_like_their_labels(first, second):
    merged = ClassPrior.from_labels(first, 7) + ClassPrior.from_labels(second, 7)
    assert merged == ClassPrior.from_labels(first + second, 7)
    assert hash(merged) == hash(ClassPrior.from_labels(first + second, 7))


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20), st.floats(0, 10))
@settings(deadline=None, max_examples=30)
def test_probabilities_sum_to_one_and_match_their_logarithms(counts, pseudocount):
    prior = ClassPrior.from_counts(counts).smoothed(pseudocount)
    assert float(prior.probs.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(prior.log_probs.exp(), prior.probs, rtol=1e-12, atol=0)


@given(st.lists(st.integers(0, 300), min_size=3, max_size=40).filter(any))
@settings(deadline=None, max_examples=30)
def test_groups_are_a_partition(counts):
    prior = ClassPrior.from_counts(counts)
    for groups in (prior.groups(), prior.quantile_groups()):
        members = torch.cat(list(groups.values())).sort().values
        assert members.tolist() == list(range(len(counts)))


def test_group_boundaries_follow_the_papers():
    """ELM and the paper on sampling bias: head >= 100, torso [20, 100), tail < 20."""
    groups = ClassPrior.from_counts([101, 100, 99, 21, 20, 19, 0]).groups()
    assert {name: classes.tolist() for name, classes in groups.items()} == {
        "head": [0, 1],
        "torso": [2, 3, 4],
        "tail": [5, 6],
    }


def test_quantile_groups_of_equal_counts_put_all_classes_in_the_tail():
    assert ClassPrior.from_counts([5, 5, 5]).quantile_groups()["tail"].tolist() == [0, 1, 2]


def test_it_cannot_be_changed():
    prior = ClassPrior.from_counts(COUNTS)
    prior.counts[0] = 99
    assert prior.counts.tolist() == COUNTS
    with pytest.raises(AttributeError):
        prior.num_samples = 7
    assert pickle.loads(pickle.dumps(prior)) == prior


def test_counts_given_as_an_array_stay_the_callers():
    counts = np.array(COUNTS)
    ClassPrior.from_counts(counts)
    counts[0] = 7
    assert counts[0] == 7


def test_a_class_without_samples_is_a_decision():
    prior = ClassPrior.from_labels([0, 2], num_classes=4)
    assert prior.probs.tolist() == [0.5, 0, 0.5, 0]
    assert prior.imbalance == math.inf
    with pytest.raises(ValueError, match=r"class 1 \(and 1 more\) has no samples.*smoothed"):
        _ = prior.log_probs
    assert torch.isfinite(prior.smoothed(1).log_probs).all()
    assert prior.smoothed(1).counts.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassPrior.from_labels([]), "at least one labeled sample"),
        (lambda: ClassPrior.from_labels([0, -1]), "at least 0. Got -1"),
        (lambda: ClassPrior.from_labels([0, 5], num_classes=5), r"in 0..4. Got 5"),
        (lambda: ClassPrior.from_labels([0.5, 1.0]), "must be integers. Got float64"),
        (lambda: ClassPrior.from_labels(["a", "b"]), "must be integers.*encode them first"),
        (lambda: ClassPrior.from_labels([0.0, 1.0]), r"Got float64; convert them first, with astype\(int\)"),
        (lambda: ClassPrior.from_labels(pd.DataFrame({"y": [0, 1]})), r"Got shape \(2, 1\); take its only column"),
        (lambda: ClassPrior.from_labels("abc"), "expected integer labels"),
        (lambda: ClassPrior.from_labels(np.zeros((2, 2), int)), "from_indicator"),
        (lambda: ClassPrior.from_labels(3), "Got int"),
        (lambda: ClassPrior.from_labels([(1, 2, 3)]), "pairs"),
        (lambda: ClassPrior.from_counts([1, -2]), "Got -2 for class 1"),
        (lambda: ClassPrior.from_counts([1.5]), "Got 1.5 for class 0"),
        (lambda: ClassPrior.from_counts([float("nan")]), "Got nan"),
        (lambda: ClassPrior.from_counts([[1]]), "vector"),
        (lambda: ClassPrior.from_counts(["1"]), "whole numbers"),
        (lambda: ClassPrior.from_counts([0, 0]), "at least one labeled sample"),
        (lambda: ClassPrior.from_indicator([[2, 0]]), "0 or 1"),
        (lambda: ClassPrior.from_indicator(scipy.sparse.coo_array(([1, 1], ([0, 0], [1, 1])))), "0 or 1"),
        (lambda: ClassPrior.from_indicator([1, 0]), "matrix"),
        (lambda: ClassPrior.from_counts([1]).smoothed(-1), "finite number >= 0"),
        (lambda: ClassPrior.from_counts([1]).groups(head=5, tail=9), "tail must be below head"),
        (lambda: ClassPrior.from_counts([1]).quantile_groups(head=0.1), "tail <= head"),
        (lambda: ClassPrior.from_counts([1]).rarest(2), r"in 1..1. Got 2"),
        (lambda: ClassPrior.from_counts([1]) + ClassPrior.from_counts([1, 2]), "equal classes"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_without_a_process_group_all_reduce_is_the_identity():
    prior = ClassPrior.from_counts(COUNTS)
    assert prior.all_reduce() is prior


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([900, 100], False),
        ([900, 50, 1, 1, 1], False),
        ([900, 50, 1, 1, 1, 1], True),
        ([200] * 10, False),
        ([200] * 11, True),
    ],
)
def test_groups_are_useful_where_classes_are_many_or_differ(counts, expected):
    assert ClassPrior.from_counts(counts).has_useful_groups is expected


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1e30, 1], r"counts given as floats must be at most 2\^53, .* Got 1e\+30 for class 0"),
        (np.array([1, 2**63], dtype=np.uint64), r"counts must add up to less than 2\^63"),
        ([2**62, 2**62], r"counts must add up to less than 2\^63"),
    ],
)
def test_counts_that_int64_cannot_hold_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        ClassPrior.from_counts(counts)


def test_the_largest_counts_are_kept():
    assert ClassPrior.from_counts([2.0**53, 1.0]).counts.tolist() == [2**53, 1]
    assert ClassPrior.from_counts(np.array([2**62, 5], dtype=np.uint64)).num_samples == 2**62 + 5


def test_a_sum_of_priors_does_not_overflow():
    half = ClassPrior.from_counts([2**62, 1])
    with pytest.raises(ValueError, match=r"less than 2\^63"):
        half + half


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_half_precision_tensors_are_counted(dtype):
    """NumPy has no bfloat16."""
    indicator = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).to(dtype)
    expected = ClassPrior.from_indicator([[1, 1, 0], [1, 0, 0]])
    assert ClassPrior.from_indicator(indicator) == expected
    assert ClassPrior.from_counts(torch.tensor([2.0, 1.0]).to(dtype)).counts.tolist() == [2, 1]
    if dtype != torch.float8_e4m3fn:
        assert ClassPrior.from_indicator(indicator.to_sparse()) == expected


def test_counts_by_name_must_be_in_the_order_of_the_classes():
    """``value_counts`` sorts by frequency, which is not the order of the logits."""
    counts = pd.Series(["b", "b", "a"]).value_counts()
    with pytest.raises(ValueError, match=r"index is not sorted; use counts.sort_index\(\)"):
        ClassPrior.from_counts(counts)
    assert ClassPrior.from_counts(counts.sort_index()).counts.tolist() == [1, 2]
    with pytest.raises(TypeError, match="Got a dict"):
        ClassPrior.from_counts({"a": 1, "b": 2})
