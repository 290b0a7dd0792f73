"""Methods of this library in the training loops of others: Hugging Face's Trainer and Lightning.

Neither package is imported before it is used. Plain PyTorch, with or without processes, and accelerate need nothing
from here: losses and samplers do.
"""

from typing import TYPE_CHECKING, Any

from longtail.integrations.dataset import PreparedMethod, SingleLoss, prepare_method, read_labels
from longtail.integrations.hugging_face import apply_method, make_compute_loss

if TYPE_CHECKING:
    from longtail.integrations.lightning import MethodCallback

__all__ = [
    "apply_method",
    "make_compute_loss",
    "MethodCallback",
    "prepare_method",
    "PreparedMethod",
    "SingleLoss",
    "read_labels",
]


def __getattr__(name: str) -> Any:
    if name == "MethodCallback":
        from longtail.integrations.lightning import MethodCallback

        return MethodCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
