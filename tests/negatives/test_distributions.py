"""Where negatives come from: known probabilities, and the batch."""

import math
import time

import pytest
import torch

from longtail import ClassPrior, losses
from longtail import negatives as ng

COUNTS = [60, 20, 10, 6, 4]
PRIOR = ClassPrior.from_counts(COUNTS)
PI = PRIOR.probs
C = len(COUNTS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_logits(num_samples=1, num_classes=C, seed=3):
    return torch.randn(num_samples, num_classes, generator=seeded(seed), dtype=torch.float64)


def batch_of(target):
    return ng.Batch(target, target)


@pytest.mark.parametrize(
    ("distribution", "formula"),
    [
        (ng.uniform(C), lambda k: 1.0),
        (ng.prior_power(PRIOR), lambda k: COUNTS[k]),
        (ng.prior_power(PRIOR, 0.75), lambda k: COUNTS[k] ** 0.75),
        (ng.log_uniform(C), lambda k: math.log((k + 2) / (k + 1))),
    ],
)
def test_probabilities_and_draws(distribution, formula, assert_frequencies):
    weights = torch.tensor([formula(k) for k in range(C)], dtype=torch.float64)
    probs = weights / weights.sum()
    torch.testing.assert_close(distribution.log_probs.exp(), probs)
    draw = distribution.draw(batch_of(torch.tensor([0, 3])), 50_000, seeded())
    assert_frequencies(draw.labels, probs)
    torch.testing.assert_close(draw.log_probs, probs.log()[draw.labels])
    torch.testing.assert_close(draw.positive_log_probs, probs.log()[[0, 3]])
    assert torch.equal(draw.labels, distribution.draw(batch_of(torch.tensor([0])), 50_000, seeded()).labels)


def test_a_positive_excluded_by_domain_is_never_drawn_and_the_others_share_its_probability(assert_frequencies):
    distribution = ng.prior_power(PRIOR, excludes_positive=True)
    target = torch.tensor([0, 4])
    draw = distribution.draw(batch_of(target), 30_000, seeded())
    for row, y in enumerate(target.tolist()):
        rest = PI.clone()
        rest[y] = 0
        assert_frequencies(draw.labels[row], rest / rest.sum())
    torch.testing.assert_close(draw.log_others.exp(), 1 - PI[target])


def test_accidental_hits_have_no_weight_and_duplicates_count_twice():
    target = torch.tensor([2, 0])
    log_q = ng.uniform(C).log_probs
    drawn = torch.tensor([2, 1, 1, 0])
    draw = ng.Draw(drawn, log_q[drawn], log_q[target], 4)
    weights = ng.log_weights(ng.importance, draw, target)
    assert (weights == -math.inf).tolist() == [[True, False, False, False], [False, False, False, True]]
    logits = make_logits(2)
    sampled = ng.sampled_cross_entropy(logits.gather(1, target[:, None])[:, 0], logits[:, drawn], weights)
    w, f = C / 4, logits[0].exp()
    assert float(sampled[0]) == pytest.approx(float(torch.log(1 + w * (2 * f[1] + f[0]) / f[2])))


def test_all_negatives_equal_to_the_positive_give_no_loss():
    target = torch.tensor([1, 1])
    draw = ng.WithinBatch(PRIOR).draw(batch_of(target), 2)
    negative = torch.zeros(2, 2, requires_grad=True)
    values = ng.sampled_cross_entropy(torch.zeros(2), negative, ng.log_weights(ng.constant, draw, target))
    values.sum().backward()
    assert values.tolist() == [0, 0]
    assert negative.grad.tolist() == [[0, 0], [0, 0]]


def test_ten_million_labels():
    counts = torch.ones(10_000_000, dtype=torch.int64)
    counts[-1] = 10_000_000
    distribution = ng.prior_power(ClassPrior.from_counts(counts))
    labels = distribution.draw(batch_of(torch.tensor([0])), 40_000, seeded()).labels
    share = (labels == 9_999_999).double().mean()
    assert float(share) == pytest.approx(0.5, abs=0.015)
    rest = labels[labels != 9_999_999]
    assert len(rest.unique()) > 0.99 * len(rest)
    assert float(rest.double().mean()) == pytest.approx(5e6, rel=0.02)


def test_within_batch_takes_the_other_samples_labels():
    labels = torch.tensor([0, 1, 2, 0])
    draw = ng.WithinBatch(PRIOR).draw(batch_of(labels), num_negatives=100)
    assert draw.labels.tolist() == [0, 1, 2, 0]
    assert draw.num_negatives == 3
    part = [ng.WithinBatch(PRIOR).draw(batch_of(labels), 2, seeded(seed)) for seed in range(2000)]
    assert {p.num_negatives for p in part} == {2 * 3 / 4}
    # Sample 1 meets others' labels as often as that says: its own label occurs once in the batch.
    others = sum(int((p.labels != 1).sum()) for p in part) / len(part)
    assert others == pytest.approx(1.5, abs=0.05)


def test_within_batch_is_the_prior_in_expectation():
    target = torch.multinomial(PI, 150 * 64, replacement=True, generator=seeded()).view(150, 64)
    logits, implied = make_logits()[0], ng.implied_margins(ng.WithinBatch(PRIOR), ng.constant, 63)
    found = []
    for row in target:
        draw = ng.WithinBatch(PRIOR).draw(batch_of(row), 64)
        weights = ng.log_weights(ng.constant, draw, row)
        found.append(ng.sampled_logistic(logits[row], logits[draw.labels].expand(64, 64), weights)[row == 1])
    exact = losses.decoupled_logistic(logits[None], torch.tensor([1]), implied)
    assert float(torch.cat(found).mean()) == pytest.approx(float(exact), rel=0.01)


def test_streaming_counts_approach_the_prior_and_are_saved():
    stream = ng.StreamingBatch(C)
    for seed in range(40):
        labels = torch.multinomial(PI, 256, replacement=True, generator=seeded(seed))
        draw = stream.draw(batch_of(labels), 256)
        assert draw.log_probs.isfinite().all()
    torch.testing.assert_close(stream.log_probs.exp(), PI, rtol=0.1, atol=0)
    other = ng.StreamingBatch(C)
    other.load_state_dict(stream.state_dict())
    assert torch.equal(other.bfloat16().log_probs, stream.log_probs)
    total = int(stream.eval().total)
    stream.draw(batch_of(labels), 256)
    assert int(stream.total) == total == 40 * 256
    with pytest.raises(ValueError, match="must have been seen in training"):
        ng.StreamingBatch(C).eval().draw(batch_of(torch.tensor([0, 1])), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ng.uniform(1), "num_classes must be a whole number of at least 2. Got 1"),
        (lambda: ng.log_uniform(0), "Got 0"),
        (lambda: ng.StreamingBatch(1), "Got 1"),
        (lambda: ng.prior_power(PRIOR, math.nan), "exponent must be a finite number. Got nan"),
        (lambda: ng.prior_power(ClassPrior.from_counts([3, 0])), "class 1 has no samples"),
        (lambda: ng.LabelDistribution(torch.tensor([1.0, -1.0])), "Got -1.0 for 1"),
        (lambda: ng.LabelDistribution(torch.tensor([0.0, 2.0]), excludes_positive=True), "no negative is left"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rest", [1.0, 1e-12, 1e-30])
def test_a_label_with_nearly_all_of_q_can_be_excluded(rest, assert_frequencies):
    """Drawing again until something else comes would take until the end of time."""
    distribution = ng.LabelDistribution(torch.tensor([1e9, rest, 3 * rest]).double(), excludes_positive=True)
    target = torch.tensor([0, 1])
    started = time.monotonic()
    draw = distribution.draw(batch_of(target), 20_000, seeded())
    assert time.monotonic() - started < 5
    assert_frequencies(draw.labels[0], torch.tensor([0.0, 0.25, 0.75]).double())
    assert not (draw.labels[1] == 1).any()
    assert float(draw.log_others[0]) == pytest.approx(math.log(4 * rest) - math.log(1e9 + 4 * rest), rel=1e-9)
    implied = ng.implied_margins(distribution, ng.constant, 8).dense().exp()
    assert implied[0, 1:].tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    "make",
    [ng.WithinBatch, lambda prior: ng.StreamingBatch(prior.num_classes), ng.prior_power],
    ids=["within_batch", "streaming_batch", "prior_power"],
)
def test_an_empty_batch_has_a_draw(make):
    draw = make(PRIOR).draw(batch_of(torch.empty(0, dtype=torch.int64)), 4)
    assert ng.log_weights(ng.importance, draw, torch.empty(0, dtype=torch.int64)).shape[0] == 0
