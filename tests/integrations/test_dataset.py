"""Labels of training sets of any kind, and a loss that is a plain function."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from longtail import ClassPrior, MarginCrossEntropy, margins
from longtail.integrations import SingleLoss, prepare_method, read_labels
from longtail.integrations.dataset import measure_classes


class Mappings(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"pixel_values": torch.zeros(2), "label": torch.tensor([2, 0, 2][index])}


class Columns:
    """As Hugging Face's datasets are: columns by name."""

    column_names = ("text", "label")

    def __getitem__(self, name):
        return {"label": [2, 0, 2]}[name]


@pytest.mark.parametrize(
    "dataset",
    [
        Mappings(),
        Columns(),
        [{"labels": 2}, {"labels": 0}, {"labels": np.int64(2)}],
        TensorDataset(torch.zeros(3, 1), torch.tensor([2, 0, 2])),
        [2, 0, 2],
    ],
)
def test_labels_are_found_wherever_they_are(dataset):
    assert read_labels(dataset).tolist() == [2, 0, 2]


def test_a_dataset_without_labels_says_what_it_has():
    with pytest.raises(ValueError, match=r"must have 'labels' or 'label'\. Got text, class"):
        read_labels([{"text": "a", "class": 1}])
    with pytest.raises(TypeError, match=r"must be class indices\. Got floating-point"):
        read_labels([{"labels": [0.0, 1.0]}])


def test_tokens_count_one_by_one_and_can_not_be_drawn_by_class():
    tokens = [{"labels": [-100, 0, 0]}, {"labels": [1, 0, -100]}]
    assert prepare_method(tokens).prior == ClassPrior.from_counts([3, 1])
    with pytest.raises(ValueError, match="draws samples by their label"):
        prepare_method(tokens, "class_balanced_sampling").sampler(0, 1)


def test_a_class_that_the_model_has_and_the_data_lack_is_an_error():
    with pytest.raises(ValueError, match="class 2 has no samples"):
        prepare_method([0, 1, 1], num_classes=3)


def test_a_loss_of_no_sample_is_0_and_has_a_gradient_of_0():
    logits = torch.randn(2, 3, requires_grad=True)
    SingleLoss(MarginCrossEntropy())(logits, torch.full((2,), -100)).backward()
    assert not logits.grad.any()


def test_the_loss_of_tokens_is_the_mean_over_those_with_a_label():
    prior = ClassPrior.from_counts([6, 3, 1])
    loss = MarginCrossEntropy(margins.logit_adjusted(prior))
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, -100, 2], [2, -100, -100, 0]])
    kept = target != -100
    torch.testing.assert_close(SingleLoss(loss)(logits, target), loss(logits[kept], target[kept]))


def test_what_is_measured_leaves_out_tokens_without_a_label():
    scores = np.eye(3)[[0, 1, 2, 0]].reshape(2, 2, 3)
    found = measure_classes(scores, np.array([[0, 1], [1, -100]]), ClassPrior.from_counts([200, 50, 1]))
    assert found == {"accuracy": pytest.approx(2 / 3), "balanced_accuracy": 0.75, "head": 1.0, "torso": 0.5}


class Stream(IterableDataset):
    def __iter__(self):
        yield from ({"labels": label} for label in (0, 2, 2))


def test_a_stream_of_mappings_is_counted():
    assert read_labels(Stream()).tolist() == [0, 2, 2]


def test_labels_that_are_names_are_called_so(one_line):
    with pytest.raises(
        TypeError, match=r"Got card_lost; encode them first, for example with .*LabelEncoder"
    ) as error:
        prepare_method([{"labels": "card_lost"}, {"labels": "balance"}])
    one_line(error)
    with pytest.raises(TypeError, match="if they are classes, make them whole numbers"):
        prepare_method([{"labels": 0.0}])


def test_a_prior_takes_the_place_of_counting():
    smoothed = ClassPrior.from_labels([0, 2, 2], 4).smoothed(1)  # classes 1 and 3 have no samples
    with pytest.raises(ValueError, match=r"use prior\.smoothed\(1\)"):
        prepare_method([{"labels": 0}, {"labels": 2}], num_classes=4)
    prepared = prepare_method([{"labels": 0}, {"labels": 2}], num_classes=4, prior=smoothed)
    assert prepared.prior == smoothed
    assert prepared.loss(torch.zeros(2, 4), torch.tensor([0, 3])).isfinite()
    assert prepare_method(object(), prior=smoothed).sampler(0, 1) is None  # nothing is read that nothing needs
    drawn = prepare_method([{"labels": 0}, {"labels": 2}], "class_balanced_sampling", prior=smoothed)
    assert sorted(set(drawn.sampler(0, 1))) == [0, 1]
    with pytest.raises(ValueError, match=r"prior must be for 5 classes, as the model is\. Got 4"):
        prepare_method([], num_classes=5, prior=smoothed)
