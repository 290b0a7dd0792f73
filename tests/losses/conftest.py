"""References and batches that several files of losses use."""

import pytest
import torch


def _make_batch(size=7, num_classes=5, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(num_classes, (size,), generator=generator)


def _make_embeddings(size=14, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.tensor([0, 1, 0, 3, 2, 0, 1, 0, 2, 0, 0, 1, 0, 2])[:size]
    return torch.randn(size, 4, generator=generator, dtype=torch.float64).to(dtype), target


def _loop_margin_loss(logits, y, delta, alpha):
    total = 1.0
    for other in range(len(logits)):
        if other != y:
            total = total + torch.exp(delta[y, other] + logits[other] - logits[y])
    return alpha[y] * torch.log(total)


def _loop_losses(logits, target, delta, alpha):
    rows = zip(logits, target, strict=True)
    return torch.stack([_loop_margin_loss(row, int(y), delta, alpha) for row, y in rows])


def _value_and_gradient(function, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    values = function(*leaves)
    weighting = torch.linspace(1, 2, values.numel(), dtype=values.dtype)
    return values.detach(), torch.autograd.grad((values * weighting).sum(), leaves)


def _assert_same(function, reference, *tensors):
    value, gradients = _value_and_gradient(function, *tensors)
    wanted, wanted_gradients = _value_and_gradient(reference, *tensors)
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    for got, want in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="session")
def make_batch():
    """``make_batch(size, num_classes, seed, scale)`` gives float64 logits and a target."""
    return _make_batch


@pytest.fixture(scope="session")
def make_embeddings():
    """``make_embeddings(size, dtype, seed)`` gives embeddings [N, 4]; class 0 often, class 3 once, class 4 never."""
    return _make_embeddings


@pytest.fixture(scope="session")
def loop_margin_loss():
    """Eq. (11) of the logit adjustment paper, one sample, one addition at a time."""
    return _loop_margin_loss


@pytest.fixture(scope="session")
def loop_losses():
    """``loop_margin_loss`` of every sample."""
    return _loop_losses


@pytest.fixture(scope="session")
def value_and_gradient():
    """What a function returns, and the gradients of a weighted sum of that."""
    return _value_and_gradient


@pytest.fixture(scope="session")
def assert_same():
    """Whether a function and its reference have the same values and gradients, to 1e-10."""
    return _assert_same
