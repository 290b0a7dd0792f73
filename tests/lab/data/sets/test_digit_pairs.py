"""Two digits per image: counts, partners and shifts as the paper's appendix has them."""

import os
from pathlib import Path

import pytest
import torch

from longtail.datasets import exponential_counts
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.sets import digit_pairs
from longtail.lab.data.sets.digit_pairs import load_multimnist, pair_up, two_digits


def dots(counts):
    """Images with a single bright pixel, whose brightness is the class and whose place is the middle."""
    labels = torch.repeat_interleave(torch.tensor(counts))
    images = torch.zeros(len(labels), 1, 3, 3, dtype=torch.uint8)
    images[:, 0, 1, 1] = (labels + 1).to(torch.uint8)
    return Split(images, labels)


DOTS = Dataset("dots", dots([40, 40, 40]), dots([5, 6, 7]), ("a", "b", "c"))


def test_every_training_image_has_partners_and_the_profile_comes_before_them():
    data = pair_up(DOTS, "pairs", ratio=4, padding=0, max_shift=0, seed=0, pairs_per_image=2)
    counts = exponential_counts(40, 3, 4)
    assert len(data.train) == 2 * sum(counts)
    num_labels = data.train.labels.sum(1)
    assert set(num_labels.tolist()) == {1, 2}  # one where partners have the same label
    brightest = data.train.inputs[:, 0, 1, 1].long() - 1
    assert torch.equal(brightest, data.train.labels.long().mul(torch.arange(3)).amax(1))


def test_every_test_image_meets_every_other_class_once():
    data = pair_up(DOTS, "pairs", ratio=1, padding=0, max_shift=0, seed=0)
    assert len(data.test) == 2 * 18
    assert data.test.labels.sum(1).eq(2).all()
    # A class is in all pairs of its own images, and in one of each other image.
    assert data.test.labels.sum(0).tolist() == [2 * n + (18 - n) for n in (5, 6, 7)]


def test_shifts_are_uniform_and_padding_keeps_the_object_in_the_image():
    many = Dataset("dots", dots([2000, 2000]), dots([1, 1]), ("a", "b"))
    data = pair_up(many, "pairs", ratio=1, padding=2, max_shift=3, seed=0)
    assert data.input_shape == (1, 7, 7)
    lit = (data.train.inputs[:, 0] > 0).sum(0)
    assert lit.ne(0).all()  # 3 + 3 * 2 = 7: every place can be reached
    assert lit.float().std() / lit.float().mean() < 0.2
    per_image = (data.train.inputs > 0).sum((1, 2, 3))
    assert set(per_image.tolist()) == {1, 2}


def test_the_seed_decides():
    first, again, other = (two_digits(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)


def test_two_digits_are_long_tailed_and_balanced_in_the_test():
    data = two_digits(ratio=20, pairs_per_image=1)
    counts = data.prior.counts.tolist()
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 8 * counts[-1]
    assert data.test.labels.sum(0).unique().numel() == 1


def test_a_class_with_too_few_images_bounds_all():
    few = Dataset("dots", dots([40, 5, 40]), dots([5, 6, 7]), ("a", "b", "c"))
    data = pair_up(few, "pairs", ratio=4, padding=0, max_shift=0, seed=0)
    assert len(data.train) == sum(exponential_counts(10, 3, 4))


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match=r"two digits: max_shift must be at least 0. Got -1"):
        two_digits(max_shift=-1)
    with pytest.raises(ValueError, match=r"pairs_per_image must be at least 1. Got 0"):
        two_digits(pairs_per_image=0)
    with pytest.raises(ValueError, match="ratio must be a finite number of at least 1"):
        two_digits(ratio=0.5)


def test_multimnist_is_made_as_the_paper_says(monkeypatch):
    calls = []
    monkeypatch.setattr(digit_pairs, "load_mnist", lambda root: root)
    monkeypatch.setattr(digit_pairs, "pair_up", lambda data, name, ratio, **rest: calls.append((data, ratio, rest)))
    load_multimnist("folder")
    assert calls == [("folder", 100.0, {"padding": 2, "max_shift": 6, "seed": 0})]


def test_real_multimnist_has_the_published_counts():
    root = os.environ.get("LONGTAIL_DATA")
    if not root or not (Path(root) / "mnist").exists():
        pytest.skip("needs mnist below the folder that the variable LONGTAIL_DATA names")
    data = load_multimnist()
    assert (len(data.train), data.input_shape) == (14_694, (1, 32, 32))
    published = [17840, 19080, 18256, 18080, 17856, 17136, 17664, 18224, 17792, 18072]
    assert data.test.labels.sum(0).tolist() == published
    in_training = torch.tensor([9485, 6167, 3967, 2476, 1508, 875, 538, 331, 164, 105])
    assert ((data.prior.counts - in_training).abs() <= 4 * in_training.double().sqrt()).all()


def test_smaller_images_are_means_of_pixels(monkeypatch):
    images = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    data = Dataset("two", Split(images, labels), Split(images[:4], labels[:4]), ("a", "b"))
    monkeypatch.setattr(digit_pairs, "load_mnist", lambda root: data)
    whole, small = load_multimnist(ratio=1.0), load_multimnist(ratio=1.0, size=16)
    assert small.input_shape == (1, 16, 16)
    wanted = whole.test.inputs.float().view(-1, 1, 16, 2, 16, 2).mean((3, 5)).round()
    assert torch.equal(small.test.inputs.float(), wanted)
    assert torch.equal(small.train.labels, whole.train.labels)
    with pytest.raises(ValueError, match="size must be 8, 16 or 32"):
        load_multimnist(size=15)
