"""What the parameters of ExtremeClassifier may be, and which of them a file keeps."""

from __future__ import annotations

from longtail.estimators._extreme_settings import EMPHASES
from longtail.estimators._parameters import (
    ANYTHING,
    FLAG,
    FUNCTION,
    NOTHING,
    WHOLE,
    Constraint,
    Constraints,
    number,
    text,
)
from longtail.negatives.losses import SampledLoss

__all__ = ["CONSTRAINTS", "NOT_SAVED"]

CONSTRAINTS: Constraints = {
    "emphasis": (text(*EMPHASES), number(0)),
    "hidden_size": (WHOLE, NOTHING),
    "activation": (text("identity", "relu"),),
    "dropout": (number(0, 1), NOTHING),
    "skip_connection": (FLAG,),
    "uses_tfidf": (FLAG, NOTHING),
    "normalizes_rows": (FLAG, NOTHING),
    "n_estimators": (WHOLE, NOTHING),
    "loss": (Constraint("a SampledLoss", lambda value: isinstance(value, SampledLoss)),),
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
