"""Long-tailed data from balanced data: profiles against known counts, and samples that follow them."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from longtail import datasets
from longtail.lab.data.registry import PROFILES


@pytest.mark.parametrize(
    ("num_max", "num_classes", "ratio", "total", "smallest"),
    [(5000, 10, 100, 12406, 50), (500, 100, 100, 10847, 5), (5000, 10, 10, 20431, 500), (500, 100, 10, 19573, 50)],
)
def test_exponential_counts_are_the_published_ones(num_max, num_classes, ratio, total, smallest):
    counts = datasets.exponential_counts(num_max, num_classes, ratio)
    assert sum(counts) == total
    assert (counts[0], counts[-1]) == (num_max, smallest)


def test_counts_of_multi_label_sets_are_the_published_ones_and_can_be_stretched():
    assert datasets.coco_mlt_counts(1128, 80, 188) == list(datasets.COCO_MLT)
    assert datasets.voc_mlt_counts(775, 20, 775 / 4) == list(datasets.VOC_MLT)
    assert (len(datasets.COCO_MLT), sum(datasets.COCO_MLT), len(datasets.VOC_MLT), sum(datasets.VOC_MLT)) == (
        80,
        8316,
        20,
        2346,
    )
    stretched = datasets.coco_mlt_counts(5000, 10, 100)
    assert (stretched[0], stretched[-1]) == (5000, 50)
    assert stretched == sorted(stretched, reverse=True)


@settings(deadline=None, max_examples=50)
@given(
    profile=st.sampled_from(list(PROFILES.values())),
    num_max=st.integers(1, 5000),
    num_classes=st.integers(1, 60),
    ratio=st.floats(1, 300),
)
def test_profiles_fall_from_the_largest_to_the_smallest_count(profile, num_max, num_classes, ratio):
    if ratio > num_max:
        num_max = int(ratio) + 1
    counts = profile(num_max, num_classes, ratio)
    assert len(counts) == num_classes
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == num_max
    if num_classes > 1:
        assert abs(counts[-1] - num_max / ratio) <= 1


def test_step_counts_of_an_odd_number_of_classes():
    assert datasets.step_counts(100, 5, 10) == [100, 100, 100, 10, 10]


def test_pareto_counts_resemble_imagenet_lt():
    counts = np.array(datasets.pareto_counts(1280, 1000, 256))
    # Published: 115,846 images; 385 classes with more than 100, 136 with fewer than 20.
    assert abs(counts.sum() / 115_846 - 1) < 0.04
    assert abs((counts > 100).sum() - 385) < 20
    assert abs((counts < 20).sum() - 136) < 20


def test_pareto_counts_follow_the_formula():
    draws = [((c + 0.7) / 5.4) ** (-1 / 2) - 1 for c in range(5)]
    wanted = [10 + 90 * (x - draws[4]) / (draws[0] - draws[4]) for x in draws]
    assert datasets.pareto_counts(100, 5, 10, power=2.0) == [round(n) for n in wanted]


def test_a_ratio_that_empties_a_class_is_refused(one_line):
    with pytest.raises(ValueError, match="ratio must be at most num_max = 50") as error:
        datasets.exponential_counts(50, 10, 100)
    assert one_line(error)


@pytest.mark.parametrize("ratio", [0.5, float("nan"), float("inf")])
def test_profiles_refuse_a_bad_ratio(ratio):
    for profile in (datasets.exponential_counts, datasets.step_counts, datasets.pareto_counts):
        with pytest.raises(ValueError, match="ratio must be a finite number of at least 1"):
            profile(100, 10, ratio)


def test_subsample_keeps_the_counts_and_is_a_function_of_the_seed():
    labels = torch.arange(100) % 4
    first = datasets.subsample(labels, [25, 10, 3, 1], seed=5)
    assert torch.equal(first, datasets.subsample(labels, [25, 10, 3, 1], seed=5))
    assert not torch.equal(first, datasets.subsample(labels, [25, 10, 3, 1], seed=6))
    assert labels[first].bincount().tolist() == [25, 10, 3, 1]
    assert torch.equal(first, first.unique())


def test_smaller_counts_keep_part_of_what_larger_ones_keep():
    labels = torch.arange(90) % 3
    small = datasets.subsample(labels, [9, 4, 2], seed=1)
    large = datasets.subsample(labels, [20, 10, 5], seed=1)
    assert set(small.tolist()) <= set(large.tolist())


def test_subsample_refuses_more_than_there_is():
    with pytest.raises(ValueError, match=r"class 1 has 2 samples. Got a count of 3"):
        datasets.subsample([0, 1, 1], [1, 3], seed=0)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1. Got 4"):
        datasets.subsample([0, 1, 4], [1, 1], seed=0)


def test_shuffled_counts_differ_in_order_alone():
    counts = datasets.exponential_counts(100, 20, 10)
    assert sorted(datasets.shuffle_counts(counts, seed=3), reverse=True) == counts
    assert datasets.shuffle_counts(counts, seed=3) != counts
    assert datasets.shuffle_counts(counts, seed=3) == datasets.shuffle_counts(counts, seed=3)


def test_stratified_holdout_splits_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    kept, held = datasets.stratified_holdout(labels, 0.2, seed=0)
    assert labels[held].bincount(minlength=4).tolist() == [10, 2, 1, 0]
    assert sorted(torch.cat([kept, held]).tolist()) == list(range(63))


LABELS = torch.arange(90) % 3
WANTED = [30, 9, 3]


def wanted_rows():
    return datasets.long_tailed_indices(LABELS, ratio=10)


def test_rows_are_kept_in_their_order_and_by_the_profile():
    rows = wanted_rows()
    assert LABELS[rows].bincount().tolist() == WANTED
    assert torch.equal(rows, rows.sort().values)
    assert torch.equal(rows, datasets.subsample(LABELS, WANTED, seed=0))


@pytest.mark.parametrize(
    "hold",
    [
        lambda values: values.numpy(),
        lambda values: values,
        lambda values: values.to_sparse_coo(),
        lambda values: values.tolist(),
        lambda values: scipy.sparse.csr_array(values.numpy()),
        lambda values: scipy.sparse.coo_matrix(values.numpy()),
        lambda values: pd.DataFrame(values.numpy(), index=range(7, 97)),
    ],
    ids=["array", "tensor", "sparse tensor", "list", "csr", "coo", "frame"],
)
def test_inputs_may_be_held_in_many_ways(hold):
    inputs = torch.arange(180).reshape(90, 2) + 1
    held = hold(inputs)
    found, labels = datasets.make_long_tailed(held, LABELS, ratio=10)
    assert isinstance(found, list if isinstance(held, list) else type(held) if not hasattr(held, "tocsr") else object)
    if isinstance(found, torch.Tensor):
        found = found.to_dense().numpy()
    found = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
    assert np.array_equal(found, inputs[wanted_rows()].numpy())
    assert torch.equal(labels, LABELS[wanted_rows()])


@pytest.mark.parametrize("hold", [torch.Tensor.tolist, torch.Tensor.numpy, lambda labels: pd.Series(labels.numpy())])
def test_labels_stay_what_they_were(hold):
    held = hold(LABELS)
    _, labels = datasets.make_long_tailed(np.zeros(90), held, ratio=10)
    assert type(labels) is type(held)
    assert list(labels) == LABELS[wanted_rows()].tolist()


def test_a_frame_keeps_its_index_and_its_columns():
    frame = pd.DataFrame({"text": [f"row {i}" for i in range(90)], "label": LABELS.numpy()})
    found, labels = datasets.make_long_tailed(frame, frame["label"], ratio=10)
    assert found.index.tolist() == labels.index.tolist() == wanted_rows().tolist()
    assert (found["text"] == [f"row {i}" for i in found.index]).all()


def test_indices_are_for_subsets_of_a_dataset():
    data = TensorDataset(torch.arange(90), LABELS)
    subset = Subset(data, datasets.long_tailed_indices(data, ratio=10))
    assert torch.tensor([int(label) for _, label in subset]).bincount().tolist() == WANTED


def test_options_of_long_tails():
    counts = LABELS[
        datasets.long_tailed_indices(LABELS, ratio=5, profile=datasets.step_counts, num_max=10)
    ].bincount()
    assert counts.tolist() == [10, 10, 2]
    mixed = LABELS[datasets.long_tailed_indices(LABELS, ratio=10, shuffle_classes=True, random_state=1)].bincount()
    assert mixed.tolist() == datasets.shuffle_counts(WANTED, seed=1)
    other = datasets.long_tailed_indices(LABELS, ratio=10, random_state=1)
    assert not torch.equal(other, wanted_rows())


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([], {}, "labels must be class indices .* Got no samples"),
        ([0, -1], {}, "labels must be class indices .* Got -1"),
        ([0, 2, 2], {}, r"every class 0 \.\. 2 must have samples. Class 1 has none"),
        ([0.5, 1.0], {}, "labels must be integers"),
        (np.array(["a", 1], dtype=object), {}, "labels must be integers"),
        ([0, 1], {"ratio": 3}, "ratio must be at most num_max = 1"),
        ([0, 1], {"ratio": 0.5}, "ratio must be a finite number of at least 1"),
        ([0, 1], {"ratio": 1, "num_max": 0}, "num_max must be a whole number of at least 1"),
        ([0, 1], {"ratio": 1, "num_max": 2}, "class 0 has 1 samples. Got a count of 2"),
        ([[0], [1]], {}, "expected|vector"),
    ],
)
def test_labels_that_can_not_become_long_tailed_are_refused(labels, options, message, one_line):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        datasets.make_long_tailed(np.zeros(len(labels)), labels, **options)
    assert one_line(caught)


def test_inputs_and_labels_must_have_one_length():
    with pytest.raises(ValueError, match=r"X and y must have one length. Got 3 and 2"):
        datasets.make_long_tailed(scipy.sparse.csr_array((3, 4)), [0, 1])


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda names: np.array(names, dtype=object)])
def test_names_of_classes_count_in_sorted_order(kind):
    names = kind(["b"] * 10 + ["a"] * 10)
    _, kept = datasets.make_long_tailed(np.zeros(20), names, ratio=5)
    assert (list(kept).count("a"), list(kept).count("b")) == (10, 2)


def test_a_profile_may_be_named():
    y = np.repeat(np.arange(4), 10)
    named = datasets.long_tailed_indices(y, ratio=5, profile="step")
    assert named.equal(datasets.long_tailed_indices(y, ratio=5, profile=datasets.step_counts))
    with pytest.raises(ValueError, match="profile: there is no 'steps'; did you mean 'step'"):
        datasets.long_tailed_indices(y, profile="steps")
