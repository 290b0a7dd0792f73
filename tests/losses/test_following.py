"""Losses that follow training, against loops and over steps."""

import math

import pytest
import torch

from longtail.losses import EqualizationV2, SeesawLoss, equalization_v2, seesaw


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 3, 0, 2, 0])


def test_seesaw_as_loops_compute_it():
    logits, target = make_inputs()
    counts = [90, 0, 7, 2]
    values = seesaw(logits, target, torch.tensor(counts), 0.6, 1.5)
    for value, row, y in zip(values, logits.tolist(), target.tolist(), strict=True):
        total = 1.0
        for j in range(4):
            if j != y:
                mine, other = max(counts[y], 1), max(counts[j], 1)
                mitigation = (other / mine) ** 0.6 if mine > other else 1.0
                ratio = math.exp(row[j] - row[y])
                total += mitigation * (ratio**1.5 if ratio > 1 else 1.0) * ratio
        assert abs(float(value) - math.log(total)) < 1e-10
    plain = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    assert torch.allclose(seesaw(logits, target, torch.tensor(counts), 0.0, 0.0), plain)


def test_equalization_v2_as_loops_compute_it():
    logits, target = make_inputs()
    ratio = [0.2, 0.8, 1.3, 100.0]
    values = equalization_v2(logits, target, torch.tensor(ratio, dtype=torch.float64), 3.0)
    for value, row, y in zip(values, logits.tolist(), target.tolist(), strict=True):
        total = 0.0
        for c in range(4):
            g = 1 / (1 + math.exp(-12 * (ratio[c] - 0.8)))
            p = 1 / (1 + math.exp(-row[c]))
            total -= (1 + 3.0 * (1 - g)) * math.log(p) if c == y else g * math.log(1 - p)
        assert abs(float(value) - total) < 1e-9


def test_what_is_seen_counts_from_the_next_step_on_and_not_in_evaluation():
    logits, target = make_inputs()
    loss = SeesawLoss(4).double()
    first = loss(logits, target)
    assert torch.equal(loss(logits, target), first)  # nothing counts before the step has ended
    loss.end_step()
    assert loss.counts.tolist() == [6.0, 2.0, 2.0, 2.0]
    assert not torch.equal(loss.eval()(logits, target), first)
    loss.end_step()
    assert loss.counts.sum() == 12


def test_the_ratio_is_that_of_weighted_gradients():
    logits, target = make_inputs()
    loss = EqualizationV2(4).double()
    loss(logits, target)
    loss.end_step()
    probabilities = logits.sigmoid()
    for c in range(4):
        up = sum(1 - float(probabilities[i, c]) for i in range(6) if target[i] == c)
        down = sum(float(probabilities[i, c]) for i in range(6) if target[i] != c)
        assert abs(float(loss.ratio[c]) - up / down) < 1e-5
    before = loss.ratio
    loss(logits, target)
    assert torch.equal(loss.ratio, before)


def total_after_a_step(rank):
    logits, target = make_inputs()
    half = slice(3 * rank, 3 * rank + 3)
    losses = SeesawLoss(4), EqualizationV2(4)
    for loss in losses:
        loss(logits[half].float(), target[half])
        loss.end_step()
    return losses[0].counts, losses[1].sums


def test_two_processes_count_together(two_processes):
    (first, first_sums), (second, second_sums) = two_processes(total_after_a_step)
    assert torch.equal(first, second)
    assert first.tolist() == [3.0, 1.0, 1.0, 1.0]
    assert torch.equal(first_sums, second_sums)
    logits, target = make_inputs()
    whole = EqualizationV2(4)
    whole(logits.float(), target)
    whole.end_step()
    torch.testing.assert_close(first_sums, whole.sums)


def test_bad_input():
    logits, _ = make_inputs()
    with pytest.raises(TypeError, match="target must be class indices"):
        SeesawLoss(4)(logits, logits.softmax(dim=1))
    with pytest.raises(ValueError, match="mitigation must be at least 0"):
        SeesawLoss(4, mitigation=-1.0)
    with pytest.raises(ValueError, match="alpha must be"):
        EqualizationV2(4, alpha=0.0)
