"""What the tests of negatives share."""

import pytest


@pytest.fixture
def assert_frequencies():
    """``assert_frequencies(labels, probs)``: each label comes as often as it should, within 5 standard deviations."""

    def check(labels, probs):
        expected = probs * labels.numel()
        spread = (expected * (1 - probs)).sqrt().clamp_min(1e-9)
        counts = labels.flatten().bincount(minlength=len(probs)).double()
        assert ((counts - expected).abs() <= 5 * spread).all()

    return check
