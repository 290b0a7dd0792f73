"""What the parameters of ExtremeClassifier may be, and which of them a file keeps."""

from __future__ import annotations

from typing import Any

from longtail.estimators._parameters import (
    ANYTHING,
    FLAG,
    FUNCTION,
    NOTHING,
    WHOLE,
    Constraint,
    Constraints,
    check_parameters,
    number,
    text,
)
from longtail.estimators.extreme.settings import EMPHASES
from longtail.negatives.losses import CONTRASTIVE, SampledLoss

__all__ = ["CONSTRAINTS", "NOT_SAVED", "check_all_parameters"]

CONSTRAINTS: Constraints = {
    "emphasis": (text(*EMPHASES), number(0)),
    "class_mean_weight": (number(0), NOTHING),
    "one_vs_rest_weight": (number(0), NOTHING),
    "hidden_size": (WHOLE, NOTHING),
    "activation": (text("identity", "relu"),),
    "dropout": (number(0, 1), NOTHING),
    "skip_connection": (FLAG,),
    "uses_tfidf": (FLAG, NOTHING),
    "normalizes_rows": (FLAG, NOTHING),
    "n_estimators": (WHOLE, NOTHING),
    "loss": (Constraint("a SampledLoss", lambda value: isinstance(value, SampledLoss)), NOTHING),
    "scale": (number(0, excludes_low=True), NOTHING),
    "margins": (FUNCTION, NOTHING),
    "class_weights": (ANYTHING,),
    "distribution": (FUNCTION, NOTHING),
    "weighting": (FUNCTION, NOTHING),
    "num_negatives": (WHOLE,),
    "excludes_other_labels": (FLAG,),
    "epochs": (WHOLE, NOTHING),
    "batch_size": (WHOLE, NOTHING),
    "buffer_size": (WHOLE,),
    "uses_bfloat16": (FLAG,),
    "learning_rate": (number(0, excludes_low=True), NOTHING),
    "uses_layerwise_rate": (FLAG,),
    "weight_decay": (number(0),),
    "n_iter_no_change": (WHOLE, NOTHING),
    "validation_fraction": (number(0, 1, excludes_low=True),),
    "verbose": (FLAG,),
    "device": (ANYTHING,),
    "random_state": (ANYTHING,),
}
"""What the parameters of ExtremeClassifier may be."""

NOT_SAVED = ("margins", "class_weights", "distribution", "weighting", "loss", "random_state")
"""Functions, and what nobody needs to predict."""


def check_all_parameters(estimator: Any) -> None:
    """Raise if a parameter, or two of them together, can't be."""
    check_parameters(estimator, CONSTRAINTS)
    if estimator.weighting is not None and estimator.distribution is None:
        raise ValueError("weighting is of drawn negatives; give a distribution too.")
    if estimator.weighting is not None and estimator.margins is not None:
        raise ValueError("weighting implies the margins; give one of the two.")
    if estimator.skip_connection and (estimator.distribution is not None or estimator.scale is not None):
        raise ValueError("skip_connection needs the full softmax; leave distribution and scale None.")
    if (estimator.n_estimators or 1) > 1 and estimator.scale is not None:
        raise ValueError("n_estimators must be 1 where scale makes cosines of logits. Got more.")
    for name in ("class_mean_weight", "one_vs_rest_weight"):
        if getattr(estimator, name) and estimator.scale is not None:
            raise ValueError(f"{name} must be None or 0 where scale makes cosines of logits. Got more.")
    if estimator.loss is CONTRASTIVE and estimator.scale != 1:
        raise ValueError(f"CONTRASTIVE is a loss of cosines; scale must be 1. Got {estimator.scale}.")
