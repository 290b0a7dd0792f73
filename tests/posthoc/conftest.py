"""Logits that several test files of this folder use."""

import pytest
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Sums this small only lose time to threads that wait for each other."""
    with threadpool_limits(limits=1):
        yield


@pytest.fixture(scope="session")
def random_logits():
    """``random_logits(num_rows, num_classes, seed)`` in float64."""

    def draw(num_rows, num_classes=4, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num_rows, num_classes, dtype=torch.float64, generator=generator) * 2

    return draw


@pytest.fixture(scope="session")
def gaussians():
    """Samples of unit Gaussians, and ``scale`` times their exact log posterior under the prior (up to a constant)."""

    def draw(counts, prior, seed, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        means = torch.randn(len(counts), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(99)) * 1.2
        labels = torch.repeat_interleave(torch.tensor(counts))
        x = means[labels] + torch.randn(len(labels), 5, dtype=torch.float64, generator=generator)
        return scale * (x @ means.T - means.square().sum(dim=1) / 2 + prior.log_probs), labels

    return draw
