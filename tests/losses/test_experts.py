"""Experts: the loss against a loop, the head in training and evaluation, and what their mean stands for."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import ClassPrior, margins
from longtail.heads import CosineLinear, ExpertHead, class_mean_head
from longtail.losses.experts import ExpertsCrossEntropy
from longtail.losses.softmax import margin_cross_entropy
from longtail.methods import experts, experts_with, skill_diverse_experts

PRIOR = ClassPrior.from_counts([900, 90, 10])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_is_the_mean_over_experts_and_samples():
    each = [margins.logit_adjusted(PRIOR, tau) for tau in (0.0, 1.0, 2.0)]
    logits = torch.randn(5, 3, 3, generator=seeded(), dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 0, 1])
    loss = ExpertsCrossEntropy(each).double()(logits, target)
    total = 0.0
    for e, tau in enumerate((0.0, 1.0, 2.0)):
        for n in range(5):
            shifted = [float(logits[n, e, c]) + tau * float(PRIOR.log_probs[c]) for c in range(3)]
            total -= float(torch.tensor(shifted).double().log_softmax(0)[target[n]])
    assert float(loss) == pytest.approx(total / 15, abs=1e-6)  # margins are kept in float32
    assert torch.autograd.gradcheck(lambda f: ExpertsCrossEntropy(each).double()(f, target), logits.requires_grad_())
    with pytest.raises(ValueError, match=r"logits must be of 3 experts. Got \(5, 2, 3\)"):
        ExpertsCrossEntropy(each)(logits[:, :2], target)
    with pytest.raises(ValueError, match="at least one expert"):
        ExpertsCrossEntropy([])


@pytest.mark.parametrize("scale", [0.0, 20.0])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_head_gives_each_expert_in_training_and_the_mean_in_evaluation(scale, is_split):
    head = ExpertHead(6, 3, num_experts=2, scale=scale, is_split=is_split)
    x = torch.randn(4, 6, generator=seeded())
    each = head(x)
    parts = (x[:, :3], x[:, 3:]) if is_split else (x, x)
    for number, part in enumerate(parts):
        assert torch.equal(each[:, number], head.experts[number](part))
    assert torch.allclose(head.eval()(x), each.mean(dim=1))
    assert isinstance(head.experts[0], CosineLinear if scale else nn.Linear)
    with pytest.raises(ValueError, match="must split into 4 experts"):
        ExpertHead(6, 3, num_experts=4, is_split=True)


def test_the_mean_of_the_best_experts_is_the_balanced_posterior():
    """Each expert at the minimum of its loss on known probabilities; their mean ranks by P(y | x) / pi[y]."""
    prior = ClassPrior.from_counts([70, 20, 10])
    plan = experts(prior, taus=[0.0, 0.5, 2.5])
    assert plan.is_consistent is True
    assert experts(prior, taus=[0.0, 1.0]).is_consistent is False
    posterior = torch.tensor([0.6, 0.25, 0.15], dtype=torch.float64)
    logits = torch.zeros(1, 3, 3, dtype=torch.float64, requires_grad=True)
    loss = plan.loss.double()
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        value = loss(logits, posterior[None])
        value.backward()
        return value

    optimizer.step(closure)
    mean = logits.detach().mean(dim=1).log_softmax(dim=1)
    wanted = (posterior / prior.probs).log()[None].log_softmax(dim=1)
    assert torch.allclose(mean, wanted, atol=1e-5)


def test_experts_of_one_tau_are_logit_adjustment_and_sade_is_experts_for_an_exponential_profile():
    logits, target = torch.randn(6, 3, generator=seeded()), torch.tensor([0, 1, 2, 0, 0, 1])
    one = experts(PRIOR, taus=[1.0]).loss(logits[:, None], target)
    assert torch.allclose(one, margin_cross_entropy(logits, target, margins.logit_adjusted(PRIOR)).mean())
    exponential = ClassPrior.from_counts([100, 10, 1])
    each = torch.randn(6, 3, 3, generator=seeded(1))
    assert torch.allclose(
        experts(exponential).loss(each, target), skill_diverse_experts(exponential).loss(each, target), atol=1e-5
    )
    assert skill_diverse_experts(PRIOR).is_consistent is False


def test_any_margins_make_experts():
    plan = experts_with(PRIOR, [margins.none(PRIOR), margins.adaptive(PRIOR)], scale=16.0)
    head = plan.head(4, 3)
    assert [type(expert) for expert in head.experts] == [CosineLinear] * 2
    assert plan.is_consistent is not True
    assert torch.isfinite(plan.loss(head(torch.randn(2, 4)), torch.tensor([0, 2])))


def test_margins_are_added_to_scaled_cosines_as_to_any_logit():
    """The offset is tau log pi in units of logits: not scaled with the cosines, and not added before scaling."""
    head = CosineLinear(4, 3, scale=30.0)
    x, target = torch.randn(5, 4, generator=seeded()), torch.tensor([0, 1, 2, 2, 0])
    cosines = F.normalize(x) @ F.normalize(head.weight).T
    wanted = F.cross_entropy(30.0 * cosines + PRIOR.log_probs.float(), target)
    got = margin_cross_entropy(head(x), target, margins.logit_adjusted(PRIOR)).mean()
    assert torch.allclose(got, wanted, atol=1e-5)


def test_a_head_of_class_means_is_the_loop_over_samples():
    x = torch.randn(20, 5, generator=seeded(), dtype=torch.float64)
    labels = torch.arange(20) % 3
    head = class_mean_head(x, labels, num_classes=4, scale=10.0)
    for c in range(3):
        total = torch.zeros(5, dtype=torch.float64)
        for row, label in zip(x, labels, strict=True):
            if label == c:
                total += row / row.norm()
        assert torch.allclose(head.weight[c], total / total.norm(), atol=1e-10)
    assert torch.isfinite(head.weight[3]).all()
    assert head.weight[3].norm() > 0
    assert head.weight.requires_grad
    with pytest.raises(ValueError, match=r"embeddings must be \[N, D\] with labels \[N\]"):
        class_mean_head(x, labels[:5], 3)
