"""Methods that train as usual and then change the model's logits or its head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from longtail import posthoc
from longtail.losses.softmax import MarginCrossEntropy
from longtail.margins import logit_adjusted
from longtail.methods.plan import Phase, Plan
from longtail.prior import ClassPrior

__all__ = ["posthoc_adjusted", "prior_normalized", "weight_normalized"]


def posthoc_adjusted(prior: ClassPrior, tau: float = 1.0) -> Plan:
    """Cross-entropy, then logits less tau * log pi."""
    adjust = partial(posthoc.adjust_logits, prior=prior, tau=tau)
    # Where training converges, its largest logit is that of the logit-adjusted loss: so is its consistency.
    return Plan((_plain(),), adjust_logits=adjust, margins=logit_adjusted(prior, tau), is_margin_loss=True)


def weight_normalized(prior: ClassPrior, tau: float = 1.0) -> Plan:
    """Cross-entropy, then class vectors over the tau-th power of their length, without the bias."""

    def adjust(head: nn.Module) -> None:
        head.get_parameter("weight").copy_(posthoc.normalize_weights(head.get_parameter("weight"), prior, tau))
        bias = _find_bias(head)
        if bias is not None:
            bias.zero_()

    return _plan_for_head(adjust)


def prior_normalized(prior: ClassPrior, tau: float = 1.0) -> Plan:
    """Cross-entropy, then class vectors, and the bias with them, over the tau-th power of their class's share."""

    def adjust(head: nn.Module) -> None:
        for parameter in (head.get_parameter("weight"), _find_bias(head)):
            if parameter is not None:
                rows = parameter.reshape(prior.num_classes, -1)
                parameter.copy_(posthoc.normalize_weights_by_prior(rows, prior, tau).reshape(parameter.shape))

    return _plan_for_head(adjust)


def _find_bias(head: nn.Module) -> nn.Parameter | None:
    return dict(head.named_parameters()).get("bias")


def _plan_for_head(adjust: Callable[[nn.Module], None]) -> Plan:
    return Plan((_plain(),), adjust_head=torch.no_grad()(adjust), is_consistent=False)


def _plain() -> Phase:
    return Phase(MarginCrossEntropy())
