"""A method in Lightning: a callback that sets the loss, measures, and keeps the record in checkpoints."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler

from longtail._core.labels import NO_LABEL
from longtail.correction import ATTRIBUTE, Correction, read_correction, record_correction
from longtail.integrations.dataset import PreparedMethod, SingleLoss, prepare_method
from longtail.metrics import BalancedAccuracy, GroupAccuracy
from longtail.prior import ClassPrior

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    from pytorch_lightning.callbacks import Callback

__all__ = ["MethodCallback"]


class MethodCallback(Callback):  # type: ignore[misc]
    """Give a ``LightningModule`` the loss and the metrics of a method, and its checkpoints the record of it.

    When training starts, the prior is counted in the training set of the loader, and the module's loss is replaced:
    the attribute that ``training_step`` calls with logits and target. What ``validation_step`` and ``test_step`` hand
    to it is measured, across processes, and logged as ``val_balanced_accuracy``, ``test_tail`` and so on. Lightning
    divides losses by ``accumulate_grad_batches`` itself. ``trainer.test`` and ``validate`` of a model that was
    trained before measure by the prior of the checkpoint (``ckpt_path``), of the module's record, or of ``prior``.

    Args:
        method: a name as ``longtail list`` has it, of a method with one phase and a loss of logits.
        loss: the name of the module's attribute.
        num_classes: how many classes there are; None is the largest label of the training set + 1.
        prior: the class counts, in place of counting them: for a stream, or ``prior.smoothed(1)`` where a class has
            no samples.
        options: of the method, such as tau.

    A method that draws samples in another way needs its sampler in the loader: ``DataLoader(train,
    sampler=callback.sampler(train))``. Lightning shares its draws out to processes, so leave
    ``use_distributed_sampler`` at its default.

    Attributes:
        correction: the record, once training has started.
    """

    def __init__(
        self,
        method: str = "logit_adjusted",
        *,
        loss: str = "loss",
        num_classes: int | None = None,
        prior: ClassPrior | None = None,
        **options: Any,
    ) -> None:
        self.method, self.attribute, self.num_classes, self.options = method, loss, num_classes, options
        self.prior = prior
        self.correction: Correction | None = None
        self._sampler: Sampler[int] | None = None
        self._measured: _MeasuredLoss | None = None

    def sampler(self, dataset: Any, *, seed: int = 0, epochs: int = 1) -> Sampler[int] | None:
        """The sampler of the method; None where any order will do.

        Args:
            dataset: the training set.
            seed: of the draws.
            epochs: of training, for a method whose draws depend on how far it is.
        """
        self._sampler = self._prepare(dataset).sampler(seed, epochs)
        return self._sampler

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the loss."""
        dataset = getattr(trainer.train_dataloader, "dataset", None)
        if dataset is None and self.prior is None:
            raise ValueError("MethodCallback: the training data must be one DataLoader, to count its labels.")
        prepared = self._prepare(dataset)
        if self._sampler is None and prepared.sampler(0, 1) is not None:
            raise ValueError(
                f"{self.method} draws samples in its own way: make the loader with sampler=callback.sampler(dataset)."
            )
        self._replace_loss(pl_module, prepared)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Raise where training goes past the loss."""
        if self._measured is not None and not self._measured.has_trained:
            raise ValueError(
                f"MethodCallback: training_step must call self.{self.attribute}(logits, target). Got one that has "
                "another loss, so that nothing would be corrected; call it there, or pass loss=NAME."
            )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure a model that was trained before."""
        self._measure_only(trainer, pl_module)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure a model that was trained before."""
        self._measure_only(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what was measured."""
        self._log(pl_module, "val")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what was measured."""
        self._log(pl_module, "test")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the record."""
        if self.correction is not None:
            checkpoint[ATTRIBUTE] = self.correction.to_json()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take the record over; a checkpoint of another method is refused."""
        found = read_correction(checkpoint)
        if found is not None and found.method != self.method:
            raise ValueError(
                f"the checkpoint must be of a model trained with {self.method}. Got one of {found.method}; "
                "resume with that method, or start anew."
            )
        self.correction = found

    def _prepare(self, dataset: Any) -> PreparedMethod:
        return prepare_method(dataset, self.method, self.num_classes, prior=self.prior, **self.options)

    def _measure_only(self, trainer: Any, pl_module: Any) -> None:
        if self._measured is not None or trainer.state.fn == "fit":
            return
        record = self.correction or read_correction(pl_module)
        prior = self.prior if record is None else record.prior
        if prior is None:
            warnings.warn(
                "MethodCallback: nothing is measured, for the class counts of training are not known; pass "
                "ckpt_path, or prior to the callback.",
                UserWarning,
                stacklevel=2,
            )
            return
        prepared = prepare_method([], self.method, prior=prior, **self.options)
        self._replace_loss(pl_module, prepared if record is None else prepared._replace(correction=record))

    def _replace_loss(self, pl_module: Any, prepared: PreparedMethod) -> None:
        replaced = getattr(pl_module, self.attribute, None)
        if not callable(replaced):
            raise ValueError(
                f"MethodCallback: the module must have its loss as an attribute. Got none by the name of "
                f"{self.attribute!r}; pass loss=NAME."
            )
        _check_settings(replaced)
        self.correction = prepared.correction
        self._measured = _MeasuredLoss(prepared.loss, prepared, pl_module)
        pl_module._modules.pop(self.attribute, None)
        setattr(pl_module, self.attribute, self._measured)
        record_correction(pl_module, prepared.correction)

    def _log(self, pl_module: Any, stage: str) -> None:
        if self._measured is not None:
            for name, value in self._measured.take().items():
                pl_module.log(f"{stage}_{name}", value)


def _check_settings(loss: Any) -> None:
    """Raise or warn where the loss that is replaced does what the new one does not."""
    ignored = getattr(loss, "ignore_index", NO_LABEL)
    if ignored != NO_LABEL:
        raise ValueError(f"MethodCallback: samples without a label must have {NO_LABEL}. Got ignore_index={ignored}.")
    if getattr(loss, "label_smoothing", 0):
        warnings.warn(
            "MethodCallback: label_smoothing of the loss that is replaced has no effect; leave it at 0.",
            UserWarning,
            stacklevel=3,
        )


class _MeasuredLoss:
    """The loss, which also measures what it is given while the module is in evaluation."""

    def __init__(self, loss: SingleLoss, prepared: PreparedMethod, module: Any) -> None:
        self.loss, self.module, self.has_trained = loss, module, False
        prior = prepared.prior
        self.num_classes = prior.num_classes
        groups = {name: classes for name, classes in prior.groups().items() if len(classes)}
        self.balanced = BalancedAccuracy(num_classes=prior.num_classes)
        self.groups = GroupAccuracy(groups, num_classes=prior.num_classes)

    def __call__(self, input: Tensor, target: Tensor) -> Tensor:
        logits = input  # as PyTorch's losses call it
        if logits.is_floating_point() and logits.shape[-1] != self.num_classes:
            raise ValueError(
                f"MethodCallback: logits must be of {self.num_classes} classes, as the training set has them. Got "
                f"{logits.shape[-1]}; pass prior=ClassPrior.from_labels(labels, {logits.shape[-1]}).smoothed(1)."
            )
        if self.module.training:
            self.has_trained = True
        else:
            for metric in (self.balanced, self.groups):
                metric.to(logits.device).update(logits.detach().flatten(0, -2), target.flatten())
        return self.loss(logits, target)

    def take(self) -> dict[str, Tensor]:
        """Measurements of all processes since the last call; none of a group that had no samples."""
        if not self.balanced.update_called:
            return {}
        found = {"balanced_accuracy": self.balanced.compute(), **self.groups.compute()}
        self.balanced.reset()
        self.groups.reset()
        return {name: value for name, value in found.items() if not value.isnan()}
