"""The progress bar of a training run."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["TrainingProgress"]


class TrainingProgress:
    """Epochs done, loss, samples per second and time left, on standard error; nothing if not enabled."""

    def __init__(self, num_epochs: int, epoch: int, enabled: bool) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]:>3}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not enabled,
            transient=True,
        )
        self._task = self._progress.add_task(
            "train", total=num_epochs, completed=epoch, epoch=epoch, loss=float("nan"), rate=0.0
        )
        self._epoch_start = 0.0

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin_epoch(self) -> None:
        """Start the clock of an epoch."""
        self._epoch_start = time.monotonic()

    def show(self, epoch: int, share: float, loss: float, samples: int) -> None:
        """Say how far an epoch is: its share done, the latest loss, and the samples seen so far in it."""
        seconds = max(1e-9, time.monotonic() - self._epoch_start)
        self._progress.update(self._task, completed=epoch + share, epoch=epoch + 1, loss=loss, rate=samples / seconds)
