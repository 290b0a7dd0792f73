"""The cosine head against a loop, at its edges, and as a module."""

import math

import pytest
import torch

from longtail.heads import CosineLinear, cosine_logits


def make_pair(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randn(3, 5, generator=generator, dtype=torch.float64).to(dtype)


def test_cosines_as_a_loop_computes_them():
    x, weight = make_pair()
    logits = cosine_logits(x, weight, scale=7.0)
    for i in range(4):
        for c in range(3):
            dot = sum(float(a) * float(b) for a, b in zip(x[i], weight[c], strict=True))
            norms = math.sqrt(sum(float(a) ** 2 for a in x[i]) * sum(float(b) ** 2 for b in weight[c]))
            assert abs(float(logits[i, c]) - 7.0 * dot / norms) < 1e-10


def test_lengths_do_not_matter():
    x, weight = make_pair()
    factors = torch.tensor([1e-3, 1.0, 50.0], dtype=torch.float64)[:, None]
    assert torch.allclose(cosine_logits(1e4 * x, factors * weight), cosine_logits(x, weight), atol=1e-12)


def test_gradients():
    x, weight = make_pair()
    assert torch.autograd.gradcheck(cosine_logits, (x.requires_grad_(), weight.requires_grad_()))


def test_an_embedding_of_zeros_has_finite_logits_and_gradients():
    x = torch.zeros(2, 5, requires_grad=True)
    logits = cosine_logits(x, torch.ones(3, 5))
    logits.sum().backward()
    assert logits.eq(0).all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_type_and_does_not_overflow(dtype):
    x, weight = make_pair(dtype)
    logits = cosine_logits(1000 * x, weight)
    assert logits.dtype == dtype
    assert torch.allclose(logits.double(), cosine_logits(x.double(), weight.double()), atol=0.3)


def test_module_under_autocast_and_its_state():
    x, _ = make_pair(torch.float32)
    torch.manual_seed(0)
    head, other = CosineLinear(5, 3, scale=12.0), CosineLinear(5, 3, scale=12.0)
    assert torch.equal(head(x), cosine_logits(x, head.weight, 12.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(x).dtype == torch.bfloat16
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(x), other(x))
    assert head(x).abs().max() <= 12.0
    assert repr(head) == "CosineLinear(in_features=5, num_classes=3, scale=12)"


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale must be a finite number above 0"):
        CosineLinear(5, 3, scale)


def test_a_bad_size_is_refused():
    with pytest.raises(ValueError, match=r"must be at least 1. Got 5 and 0"):
        CosineLinear(5, 0)
