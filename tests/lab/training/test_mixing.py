"""Mixing: inputs and labels together, against loops; and the prior of mixed labels, by simulation."""

import pytest
import torch

from longtail import ClassPrior
from longtail.lab.training import loop
from longtail.lab.training.batches import Mixer
from longtail.lab.training.mixing import MIXINGS, mix, seen_prior
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe
from longtail.margins import logit_adjusted

NAMES = [name for name in MIXINGS if name != "none"]
COUNTS = torch.tensor([6000, 1800, 600, 0, 90, 10])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mixed_batch(name, labels, size=8, alpha=1.0, seed=0):
    """Images that are one-hot vectors of their class in every pixel, mixed by a recipe's mixer; and their labels."""
    images = torch.nn.functional.one_hot(labels, len(COUNTS)).float()[:, :, None, None].expand(-1, -1, size, size)
    mixer = Mixer(labels, len(COUNTS))
    recipe = TrainRecipe(mixing=name, mixing_alpha=alpha)
    chosen = torch.randperm(len(labels), generator=seeded(seed + 50))
    batch = mixer.mix(images[chosen], chosen, lambda others: images[others], recipe, seeded(seed))
    return batch.inputs, batch.target, labels[chosen]


@pytest.mark.parametrize("name", NAMES)
def test_mixing_follows_its_generator_and_targets_are_probabilities(name):
    labels = torch.repeat_interleave(torch.arange(6), COUNTS // 10)
    first, again, other = (mixed_batch(name, labels, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])
    assert torch.allclose(first[1].sum(dim=1), torch.ones(len(labels)))
    assert (first[1].count_nonzero(dim=1) <= 2).all()
    assert (first[1] >= 0).all()


@pytest.mark.parametrize("name", ["mixup", "cutmix", "balanced_mixup", "cmo"])
def test_the_label_has_the_share_that_the_input_has(name):
    labels = torch.repeat_interleave(torch.arange(6), COUNTS // 10)
    inputs, target, _ = mixed_batch(name, labels)
    assert torch.allclose(inputs.mean(dim=(2, 3)), target, atol=1e-5)


@pytest.mark.parametrize("name", ["cutmix", "cmo"])
def test_what_is_pasted_is_one_window(name):
    labels = torch.repeat_interleave(torch.arange(6), COUNTS // 100)
    inputs, target, own = mixed_batch(name, labels, size=7)
    for image, label, row in zip(inputs, own, target, strict=True):
        is_other = image[label] == 0
        assert set(image.unique().tolist()) <= {0.0, 1.0}
        rows, columns = is_other.any(dim=1).nonzero(), is_other.any(dim=0).nonzero()
        if len(rows):
            window = is_other[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            assert window.all()
            assert len(rows) == len(columns)
            assert float(row[label]) == pytest.approx(1 - window.numel() / 49, abs=1e-6)


def test_remix_labels_are_those_of_the_papers_rule():
    counts = [300, 100, 99, 10]
    prior = ClassPrior.from_counts(counts)
    labels = torch.cartesian_prod(torch.arange(4), torch.arange(4)).repeat(40, 1)
    own, other = labels.unbind(dim=1)
    inputs = torch.stack([torch.ones(len(own)), torch.zeros(len(own))], dim=1)
    partners = inputs.flip(1)
    mixed, target = mix(MIXINGS["remix"], inputs, own, partners, other, prior, 1.0, seeded())
    for row, (i, j), share in zip(target, labels.tolist(), mixed[:, 0].tolist(), strict=True):
        kept = share
        if counts[i] / counts[j] >= 3 and share < 0.5:
            kept = 0.0
        elif counts[i] / counts[j] <= 1 / 3 and 1 - share < 0.5:
            kept = 1.0
        expected = torch.zeros(4)
        expected[i] += kept
        expected[j] += 1 - kept
        assert torch.allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_seen_prior_is_the_mean_of_mixed_labels(name, alpha):
    labels = torch.repeat_interleave(torch.arange(6), COUNTS)
    prior = ClassPrior.from_counts(COUNTS)
    size = 32 if name in ("cutmix", "cmo") else 1
    labels = labels if size == 1 else labels[::4]
    drawn = torch.stack([mixed_batch(name, labels, size, alpha, seed)[1].mean(dim=0) for seed in range(4)]).mean(
        dim=0
    )
    seen = seen_prior(prior, name, alpha).probs
    # Standard errors are below 0.002 here; a prior that ignores mixing is off by 0.02 to 0.35.
    assert (drawn.double() - seen).abs().max() < 0.008
    if name in ("remix", "balanced_mixup", "cmo"):
        assert (drawn.double() - prior.probs).abs().max() > 0.016
    else:
        assert seen_prior(prior, name, alpha) is prior


def test_the_prior_of_remix_is_the_sum_over_pairs():
    counts = [300, 100, 99, 33, 10, 1]
    prior = ClassPrior.from_counts([1000 * count for count in counts])
    probs = prior.probs.tolist()
    shares = torch.distributions.Beta(0.4, 0.4).sample((400_000,)).double()
    large = float((shares * (shares >= 0.5)).mean())
    expected = [0.0] * 6
    for i, n in enumerate(counts):
        for j, m in enumerate(counts):
            own = large if n / m >= 3 else 1 - large if n / m <= 1 / 3 else 0.5
            expected[i] += probs[i] * probs[j] * own
            expected[j] += probs[i] * probs[j] * (1 - own)
    assert torch.allclose(seen_prior(prior, "remix", 0.4).probs, torch.tensor(expected).double(), atol=2e-3)


def test_every_margin_of_a_recipe_is_made_of_the_seen_prior(tmp_path, monkeypatch):
    plans = []

    class PlannedError(Exception):
        pass

    def stop(recipe, data, plan):
        plans.append((data.prior, plan))
        raise PlannedError

    monkeypatch.setattr(loop, "check_data", stop)
    for mixing in ("none", "balanced_mixup"):
        settings = TrainRecipe(mixing=mixing, mixing_alpha=0.5)
        recipe = Recipe("a", DataRecipe("digits", "exponential", 20.0), ModelRecipe("mlp"), settings)
        with pytest.raises(PlannedError):
            loop.train(recipe.with_method("logit_adjusted"), tmp_path / mixing, show_progress=False)
    for (prior, plan), mixing in zip(plans, ("none", "balanced_mixup"), strict=True):
        expected = logit_adjusted(seen_prior(prior, mixing, 0.5))
        assert torch.equal(plan.margins.negative, expected.negative)
    assert plans[0][1].margins.negative.max() - plans[0][1].margins.negative.min() > 2
    assert plans[1][1].margins.negative.max() - plans[1][1].margins.negative.min() < 1.8


def test_bad_input():
    labels = torch.tensor([0, 1])
    prior = ClassPrior.from_counts([1, 1])
    images = torch.zeros(2, 1, 4, 4)
    with pytest.raises(TypeError, match="normalize images first"):
        mix(MIXINGS["mixup"], images.byte(), labels, images.byte(), labels, prior)
    with pytest.raises(ValueError, match="alpha must be a finite number above 0"):
        mix(MIXINGS["mixup"], images, labels, images, labels, prior, alpha=0.0)
    with pytest.raises(ValueError, match="cutmix needs images"):
        mix(MIXINGS["cutmix"], images[:, 0, 0], labels, images[:, 0, 0], labels, prior)
