"""The margin loss of a linear head, whole and in chunks."""

import math

import pytest
import torch
import torch.nn.functional as F

import longtail
from longtail import ClassPrior, losses, margins
from longtail.losses import _kernels, linear

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes
ASYMMETRIC = margins.logit_adjusted_adaptive(PRIOR, scale=0.3) + margins.equalized(PRIOR, tau=0.2)
ALPHA = torch.linspace(0.5, 2.0, C, dtype=torch.float64)
BAD_TARGETS = torch.tensor([0, C])


def use_small_chunks(monkeypatch):
    """Send even a tiny linear problem through the chunked routes, two rows at a time."""
    monkeypatch.setattr(linear, "LINEAR_WHOLE_ELEMENTS", C)
    monkeypatch.setattr(linear, "LINEAR_CHUNK_ELEMENTS", 2 * C)
    monkeypatch.setattr(_kernels, "LINEAR_CHUNK_ELEMENTS", 2 * C)


def test_linear_loss_is_the_margin_loss_of_the_logits(assert_same):
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((6, 3), (C, 3), (C,)))
    target = torch.tensor([0, 4, 2, 1, 3, 4])
    for chosen in (None, ASYMMETRIC, margins.logit_adjusted(PRIOR)):
        assert_same(
            lambda x, w, b, chosen=chosen: longtail.linear_margin_cross_entropy(x, w, target, chosen, b, ALPHA),
            lambda x, w, b, chosen=chosen: longtail.margin_cross_entropy(F.linear(x, w, b), target, chosen, ALPHA),
            x,
            weight,
            bias,
        )


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("chosen", [None, ASYMMETRIC], ids=["no margin", "asymmetric"])
def test_chunked_linear_losses_equal_the_plain_way(assert_same, monkeypatch, with_bias, chosen):
    use_small_chunks(monkeypatch)
    generator = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((7, 3), (C, 3), (C,)))
    target = torch.tensor([0, 4, -100, 2, 1, 3, 4])
    tensors = (x, weight, bias) if with_bias else (x, weight)

    def arguments(x, w, b=None):
        return x, w, target, chosen, b, ALPHA

    def plain(x, w, b=None):
        return longtail.margin_cross_entropy(F.linear(x, w, b), target, chosen, ALPHA)

    assert_same(lambda *t: longtail.linear_margin_cross_entropy(*arguments(*t)), plain, *tensors)
    assert_same(
        lambda *t: losses.mean_linear_margin_cross_entropy(*arguments(*t)),
        lambda *t: plain(*t).sum() / 6,
        *tensors,
    )


def test_the_mean_linear_loss_says_that_it_backs_up_once(monkeypatch):
    use_small_chunks(monkeypatch)
    x, weight = torch.randn(7, 3, requires_grad=True), torch.randn(C, 3)
    loss = losses.mean_linear_margin_cross_entropy(x, weight, torch.zeros(7, dtype=torch.long))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="called twice"):
        loss.backward()


def test_mean_linear_loss_without_gradients(monkeypatch):
    use_small_chunks(monkeypatch)
    x, weight, target = torch.randn(7, 3), torch.randn(C, 3), torch.arange(7) % C
    got = losses.mean_linear_margin_cross_entropy(x, weight, target, ASYMMETRIC)
    torch.testing.assert_close(got, longtail.margin_cross_entropy(x @ weight.T, target, ASYMMETRIC).mean())


def test_ignored_rows_do_not_care_for_an_impossible_class(monkeypatch):
    use_small_chunks(monkeypatch)
    x, weight = torch.randn(7, 3), torch.randn(C, 3)
    bias, target = torch.zeros(C), torch.tensor([1, 2, -100, 3, 4, 1, 2])
    bias[0] = -math.inf
    assert torch.isfinite(losses.mean_linear_margin_cross_entropy(x, weight, target, bias=bias))


def test_linear_losses_under_autocast(monkeypatch):
    use_small_chunks(monkeypatch)
    x, weight = torch.randn(7, 3, requires_grad=True), torch.randn(C, 3, requires_grad=True)
    target = torch.arange(7) % C
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = losses.mean_linear_margin_cross_entropy(x, weight, target, ASYMMETRIC)
    loss.backward()
    assert loss.dtype == torch.float32
    assert weight.grad.dtype == torch.float32
    exact = longtail.margin_cross_entropy(x @ weight.T, target, ASYMMETRIC).mean()
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


def test_a_target_out_of_range_is_named_on_the_chunked_routes(monkeypatch):
    use_small_chunks(monkeypatch)
    x, weight = torch.zeros(2, 3), torch.zeros(C, 3)
    with pytest.raises(ValueError, match="Got 5"):
        losses.mean_linear_margin_cross_entropy(x, weight, BAD_TARGETS)
    with pytest.raises(ValueError, match="Got 5"):
        longtail.linear_margin_cross_entropy(x, weight, BAD_TARGETS)
