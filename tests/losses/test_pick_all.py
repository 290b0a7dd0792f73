"""The margin loss of multi-label rows, against a loop and against the loss of one label per sample."""

import math

import pytest
import torch

from longtail import ClassPrior, Margins, margins
from longtail.losses import margin_cross_entropy, multilabel_margin_cross_entropy

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes
MARGINS = {
    "none": None,
    "symmetric": margins.logit_adjusted(PRIOR),
    "asymmetric": margins.logit_adjusted_adaptive(PRIOR, scale=0.3) + margins.equalized(PRIOR, tau=0.2),
}
ALPHA = torch.linspace(0.5, 2.0, C, dtype=torch.float64)
SAMPLES = torch.tensor([0, 0, 0, 1, 3, 3, 4, 4, 4, 4, 4])
LABELS = torch.tensor([4, 0, 2, 1, 3, 1, 0, 1, 2, 3, 4])
"""Sample 2 has no label, and sample 4 has all."""
every_margin = pytest.mark.parametrize("name", MARGINS)


def loop(logits, samples, labels, delta, alpha, excludes_other_labels):
    losses, pairs = [], list(zip(samples.tolist(), labels.tolist(), strict=True))
    for sample, y in pairs:
        total = torch.ones((), dtype=logits.dtype)
        for other in range(logits.shape[1]):
            is_left_out = excludes_other_labels and (sample, other) in pairs
            if other != y and not is_left_out:
                total = total + torch.exp(delta[y, other] + logits[sample, other] - logits[sample, y])
        losses.append(alpha[y] * torch.log(total))
    return torch.stack(losses)


@every_margin
@pytest.mark.parametrize("excludes", [False, True])
def test_it_is_the_loop_of_the_formula(name, excludes, make_batch, assert_same):
    chosen = MARGINS[name]
    delta = torch.zeros(C, C, dtype=torch.float64) if chosen is None else chosen.dense()
    assert_same(
        lambda f: multilabel_margin_cross_entropy(f, SAMPLES, LABELS, chosen, ALPHA, excludes_other_labels=excludes),
        lambda f: loop(f, SAMPLES, LABELS, delta, ALPHA, excludes),
        make_batch()[0],
    )


@every_margin
def test_one_label_per_sample_is_the_margin_loss(name, make_batch, assert_same):
    logits, target = make_batch()
    for excludes in (False, True):
        assert_same(
            lambda f, excludes=excludes: multilabel_margin_cross_entropy(
                f, torch.arange(len(f)), target, MARGINS[name], ALPHA, excludes_other_labels=excludes
            ),
            lambda f: margin_cross_entropy(f, target, MARGINS[name], ALPHA),
            logits,
        )


@every_margin
def test_extreme_logits_stay_finite(name):
    logits = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4]], requires_grad=True)
    for excludes in (False, True):
        losses = multilabel_margin_cross_entropy(
            logits, torch.zeros(5, dtype=torch.int64), torch.arange(5), MARGINS[name], excludes_other_labels=excludes
        )
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        assert losses.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("lead", [5.0, 17.0, 60.0])
def test_a_sure_label_keeps_its_digits_under_a_margin(lead):
    """A margin of 15 asks for a lead that leaves float32 no digits of the plain loss."""
    chosen = margins.max_scaled_adaptive(ClassPrior.from_counts([1000, 100, 10]))
    logits, target = torch.tensor([[0.0, -1.0, lead]]), torch.tensor([2])
    got = multilabel_margin_cross_entropy(logits, torch.tensor([0]), target, chosen)
    wanted = margin_cross_entropy(logits.double(), target, chosen)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=0)


def test_half_precision_is_computed_in_float32(make_batch):
    half = make_batch()[0].bfloat16()
    got = multilabel_margin_cross_entropy(half, SAMPLES, LABELS, MARGINS["asymmetric"])
    wanted = multilabel_margin_cross_entropy(half.float(), SAMPLES, LABELS, MARGINS["asymmetric"])
    assert torch.equal(got, wanted.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert multilabel_margin_cross_entropy(half, SAMPLES, LABELS).dtype == torch.float32


def test_no_labels_have_no_losses():
    none = torch.zeros(0, dtype=torch.int64)
    assert multilabel_margin_cross_entropy(torch.zeros(2, C), none, none, MARGINS["asymmetric"]).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(C)}, "logits must be floating-point"),
        ({"samples": torch.tensor([0, 2])}, "samples must be in 0..1. Got 2"),
        ({"labels": torch.tensor([0, C])}, "labels must be in 0..4. Got 5"),
        ({"labels": torch.tensor([-100, 0])}, "labels must be in 0..4. Got -100"),
        ({"labels": torch.tensor([0.0, 1.0])}, r"labels must be \[P\] integers. Got torch.float32"),
        ({"samples": torch.tensor([[0]])}, r"samples must be \[P\] integers"),
        ({"samples": torch.tensor([0])}, "equally many. Got 1 and 2"),
        ({"margins": margins.none(ClassPrior.from_counts([1, 2]))}, "margins are for 2 classes"),
        ({"class_weights": torch.ones(2)}, r"class_weights must be \[5\]"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"logits": torch.zeros(2, C), "samples": torch.tensor([0, 1]), "labels": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match=message):
        multilabel_margin_cross_entropy(**(arguments | change))


def test_a_float64_loss_of_a_sample_with_every_label_is_zero_without_the_others():
    logits = torch.randn(1, 3, dtype=torch.float64)
    every = torch.arange(3)
    losses = multilabel_margin_cross_entropy(logits, every * 0, every, excludes_other_labels=True)
    assert losses.tolist() == [0.0, 0.0, 0.0]
    assert math.isfinite(float(multilabel_margin_cross_entropy(logits, every * 0, every).sum()))


@pytest.mark.parametrize("excludes", [False, True])
def test_a_label_that_is_nobodys_negative_keeps_its_logit(excludes):
    """A negative margin of minus infinity, which is what a label with q = 0 has."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    delta = Margins(
        torch.tensor([0.3, 0.0, 0.2, 0.0]).double(), torch.tensor([0.1, -torch.inf, -0.2, -torch.inf]).double()
    )
    samples, labels = torch.arange(3), torch.tensor([1, 2, 3])
    losses = multilabel_margin_cross_entropy(logits, samples, labels, delta, excludes_other_labels=excludes)
    torch.testing.assert_close(losses, margin_cross_entropy(logits, labels, delta))
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert torch.isfinite(gradient).all()
