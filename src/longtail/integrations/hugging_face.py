"""A method in Hugging Face's ``Trainer``: loss, sampler, metrics and record by one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Sampler

from longtail.correction import Correction, record_correction
from longtail.integrations.dataset import SingleLoss, measure_classes, prepare_method
from longtail.prior import ClassPrior

__all__ = ["apply_method", "make_compute_loss"]

ComputeLoss = Callable[..., Tensor]


def make_compute_loss(loss: nn.Module | SingleLoss) -> ComputeLoss:
    """What ``Trainer`` takes as ``compute_loss_func``, for any loss that is a mean over samples.

    Formula:
        loss = sum over samples of l(y, f) / num_items_in_batch

    ``Trainer`` adds up the gradients of ``gradient_accumulation_steps`` batches and does not divide them. It hands
    over how many labels these batches have together, in all processes: by that number the sum is divided. A mean per
    batch would make gradients as many times too large as there are batches.

    Args:
        loss: logits [N, C], target [N] -> the mean over samples that are not -100.

    Returns:
        A function of the model's outputs, labels, and ``num_items_in_batch``; without the last, the mean.

    >>> compute_loss = make_compute_loss(MarginCrossEntropy())
    >>> outputs = {"logits": torch.zeros(4, 2)}
    >>> compute_loss(outputs, torch.tensor([0, 1, 1, -100]), num_items_in_batch=6).round(decimals=3)
    tensor(0.3470)
    """
    single = loss if isinstance(loss, SingleLoss) else SingleLoss(loss)

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
        if num_items_in_batch is None:
            return single(logits, labels)
        return single.divided(logits, labels, num_items_in_batch)

    return compute_loss


def apply_method(
    trainer: Any, method: str = "logit_adjusted", *, prior: ClassPrior | None = None, **options: Any
) -> Correction:
    """Give a ``Trainer`` the loss, the sampler and the metrics of a method, and its model the record of it.

    The prior is counted in ``trainer.train_dataset``. Loss and sampler work with gradient accumulation and any number
    of processes. Metrics (accuracy, balanced, of head, torso and tail) come to those the trainer has.
    ``save_model`` and ``save_pretrained`` write the record into ``config.json``: what adjusts the model later, such
    as ``fold_adjustment``, reads it there, and refuses to correct twice. A second call takes the place of the first.

    Args:
        trainer: a ``transformers.Trainer`` with a training set; the labels are class indices, of samples or tokens.
        method: a name as ``longtail list`` has it, of a method with one phase and a loss of logits.
        prior: the class counts, in place of counting them: for a stream, or ``prior.smoothed(1)`` where a class has
            no samples.
        options: of the method, such as tau.

    Returns:
        The record.
    """
    if trainer.train_dataset is None and prior is None:
        raise ValueError("apply_method: the trainer must have a train_dataset, to count its labels. Got None.")
    if getattr(trainer.args, "label_smoothing_factor", 0):
        warnings.warn(
            f"label_smoothing_factor has no effect: the loss is that of {method}; leave it at 0.",
            UserWarning,
            stacklevel=2,
        )
    config = getattr(trainer.model, "config", None)
    num_classes = getattr(config, "num_labels", None)
    prepared = prepare_method(trainer.train_dataset, method, num_classes, prior=prior, **options)
    sampler = prepared.sampler(trainer.args.seed, max(1, int(trainer.args.num_train_epochs)))
    if sampler is not None:
        if not hasattr(trainer, "_get_train_sampler"):
            raise TypeError(f"{method} needs a Trainer whose sampler can be set. Got {type(trainer).__name__}.")
        trainer._get_train_sampler = _SamplerOfMethod(sampler)
    elif isinstance(vars(trainer).get("_get_train_sampler"), _SamplerOfMethod):
        del trainer._get_train_sampler  # of an earlier call: two corrections would be one too many
    trainer.compute_loss_func = make_compute_loss(prepared.loss)
    others = trainer.compute_metrics

    def compute_metrics(prediction: Any, **settings: Any) -> dict[str, float]:
        scores = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        own = measure_classes(scores, prediction.label_ids, prepared.prior)
        return own if others is None else own | others(prediction, **settings)

    trainer.compute_metrics = compute_metrics
    record_correction(trainer.model, prepared.correction)
    return prepared.correction


class _SamplerOfMethod:
    """What a trainer asks for its sampler, set by ``apply_method``."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __call__(self, train_dataset: Any = None) -> Sampler[int]:
        return self.sampler
