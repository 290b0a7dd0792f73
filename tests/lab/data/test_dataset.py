"""Splits and data sets: batches, targets, long tails, and what is refused."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from longtail import datasets
from longtail.lab.data import dataset
from longtail.lab.data.dataset import Dataset, Split, sparse_indicator


def test_long_tailed_cuts_the_training_split_alone():
    split = Split(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    data = dataset.long_tailed(Dataset("example", split, split, ("a", "b")), ratio=10)
    assert data.prior.counts.tolist() == [20, 2]
    assert len(data.test) == 40
    assert torch.equal(data.train.inputs[:, 0].long() % 2, data.train.labels)


def test_a_batch_is_a_selection_in_the_given_order():
    split = Split(torch.arange(5)[:, None], torch.arange(5))
    assert split.batch(torch.tensor([3, 3, 0])).tolist() == [[3], [3], [0]]
    assert split.take(torch.tensor([4, 1])).labels.tolist() == [4, 1]


def test_dataset_checks_its_parts():
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"must be in 0\.\.0, .* Got 1 in row 1"):
        Dataset("example", split, split, ("only",))
    with pytest.raises(ValueError, match=r"one shape. Got \(3,\) and \(4,\)"):
        Dataset("example", split, Split(torch.zeros(1, 4), torch.tensor([0])), ("a", "b"))
    with pytest.raises(ValueError, match=r"one length. Got 2 and 3"):
        Split(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="labels must be int64"):
        Split(torch.zeros(2, 3), torch.zeros(2))


def test_prior_of_several_labels_a_sample():
    split = Split(torch.zeros(2, 1), torch.tensor([[True, True], [True, False]]))
    assert Dataset("example", split, split, ("a", "b")).prior.counts.tolist() == [2, 1]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_targets_of_several_labels_are_zeros_and_ones(is_sparse):
    matrix = np.random.default_rng(0).random((12, 5)) < 0.3
    matrix[4] = False
    labels = sparse_indicator(csr_array(matrix)) if is_sparse else torch.from_numpy(matrix)
    split = Split(torch.arange(12)[:, None], labels)
    indices = torch.tensor([4, 11, 0, 11])
    wanted = torch.from_numpy(matrix)[indices]
    assert torch.equal(split.targets(indices), wanted.float())
    assert torch.equal(split.take(indices).take(torch.tensor([1, 0])).labels.to_dense(), wanted[[1, 0]])
    data = Dataset("example", split, split, tuple("abcde"))
    assert data.is_multilabel
    assert data.prior.counts.tolist() == matrix.sum(0).tolist()
    assert data.prior.num_samples == 12


def test_labels_that_can_not_be_are_refused():
    one, several = Split(torch.zeros(2, 3), torch.tensor([0, 1])), Split(torch.zeros(2, 3), torch.eye(2).bool())
    with pytest.raises(ValueError, match="must both have one label, or both several"):
        Dataset("example", one, several, ("a", "b"))
    doubled = torch.sparse_coo_tensor([[0, 0], [1, 1]], [True, True], (2, 3), check_invariants=True)
    with pytest.raises(ValueError, match="sparse labels must be coalesced"):
        Split(torch.zeros(2, 3), doubled)
    with pytest.raises(ValueError, match="entries must be 0 or 1"):
        sparse_indicator(csr_array([[0, 2]]))


def test_long_tailed_keeps_what_make_long_tailed_keeps():
    split = Split(torch.arange(60.0)[:, None], torch.arange(60) % 3)
    data = dataset.long_tailed(
        Dataset("example", split, split, ("a", "b", "c")),
        ratio=4,
        profile=datasets.step_counts,
        num_max=8,
        shuffle_classes=True,
        seed=3,
    )
    inputs, labels = datasets.make_long_tailed(
        split.inputs,
        split.labels,
        ratio=4,
        profile=datasets.step_counts,
        num_max=8,
        shuffle_classes=True,
        random_state=3,
    )
    assert torch.equal(data.train.inputs, inputs)
    assert torch.equal(data.train.labels, labels)


def test_long_tailed_needs_one_label_per_sample_and_samples_of_every_class():
    several = Split(torch.zeros(2, 3), torch.eye(2).bool())
    with pytest.raises(ValueError, match=r"needs one label per sample. example has several"):
        dataset.long_tailed(Dataset("example", several, several, ("a", "b")))
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"every class of example must have training samples. 'c' has none"):
        dataset.long_tailed(Dataset("example", split, split, ("a", "b", "c")), ratio=1)
