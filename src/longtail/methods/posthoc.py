"""Methods that train as usual and then change the model's logits or its head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

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
    """Cross-entropy, then class vectors over the tau-th power of their length."""
    return _normalize_head(partial(posthoc.normalize_weights, prior=prior, tau=tau))


def prior_normalized(prior: ClassPrior, tau: float = 1.0) -> Plan:
    """Cross-entropy, then class vectors over the tau-th power of their class's share."""
    return _normalize_head(partial(posthoc.normalize_weights_by_prior, prior=prior, tau=tau))


def _normalize_head(normalize: Callable[[Tensor], Tensor]) -> Plan:
    def adjust(head: nn.Module) -> None:
        with torch.no_grad():
            weight = head.get_parameter("weight")
            weight.copy_(normalize(weight))

    return Plan((_plain(),), adjust_head=adjust, is_consistent=False)


def _plain() -> Phase:
    return Phase(MarginCrossEntropy())
