"""One line on the terminal that says how far training is, of one run or of many."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["ComparisonProgress", "TrainingProgress", "describe_progress"]

TAIL_BYTES = 4096
"""Of metrics.jsonl: enough for its last line."""


def describe_progress(
    name: str, epoch: int, num_epochs: int, elapsed: float, done: float, rate: float, run: str = ""
) -> str:
    """The line.

    Args:
        name: of what is trained.
        epoch: that is being trained, from 1 on.
        num_epochs: of the run.
        elapsed: seconds since the start.
        done: the share of all work that was done in that time; 0: not known yet.
        rate: samples per second; 0: not known yet.
        run: which one of how many.

    >>> describe_progress("logit_adjusted · seed 1", 12, 60, 109, 109 / 252, 202, run="2/6")
    'run 2/6 · logit_adjusted · seed 1 · epoch 12/60 · elapsed 1:49 · left 2:23 · 202 samples/s'
    """
    left = f"left {_clock(elapsed * (1 - done) / done)}" if done > 0 else ""
    speed = f"{rate:,.0f} samples/s" if rate else ""
    facts = [f"epoch {epoch}/{num_epochs}", f"elapsed {_clock(elapsed)}", left, speed]
    parts = [f"run {run}" if run else "", name, *facts]
    return " · ".join(part for part in parts if part)


def _clock(seconds: float) -> str:
    """
    >>> _clock(109), _clock(3700)
    ('1:49', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Line:
    """A line on standard error that is drawn anew, never broken, and gone in the end; nothing if not enabled."""

    def __init__(self, enabled: bool) -> None:
        console = Console(stderr=True)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._is_enabled = enabled and console.is_terminal
        self._start = time.monotonic()

    def __enter__(self) -> Any:
        if self._is_enabled:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_enabled:
            self._live.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def write(self, text: str) -> None:
        """Show this, as far as there is room."""
        if self._is_enabled:
            self._live.update(Text(text, "cyan", no_wrap=True, overflow="ellipsis"), refresh=True)


class TrainingProgress(_Line):
    """How far one run is."""

    def __init__(self, name: str, num_epochs: int, epoch: int, enabled: bool) -> None:
        super().__init__(enabled)
        self._name, self._num_epochs, self._first = name, num_epochs, epoch
        self._epoch_start = 0.0

    def begin_epoch(self) -> None:
        """Start the clock of an epoch."""
        self._epoch_start = time.monotonic()

    def show(self, epoch: int, share: float, samples: int) -> None:
        """Say how far an epoch is: its share done, and the samples seen so far in it."""
        rate = samples / max(1e-9, time.monotonic() - self._epoch_start)
        done = (epoch + share - self._first) / (self._num_epochs - self._first)
        self.write(describe_progress(self._name, epoch + 1, self._num_epochs, self.elapsed, done, rate))


class ComparisonProgress(_Line):
    """How far a comparison is: its runs are trained in other processes, whose folders say where they are."""

    def __init__(self, num_runs: int, enabled: bool = True) -> None:
        super().__init__(enabled)
        self._num_runs = num_runs

    def show(self, num_done: int, running: Sequence[tuple[Path, str, int]]) -> None:
        """Say where the run that was started first is.

        Args:
            num_done: runs that are done.
            running: folder, name and number of epochs of those in training.
        """
        if not running:
            return
        rows = [read_last_row(folder / "metrics.jsonl") for folder, _, _ in running]
        epochs = [int(row["epoch"]) + 1 if row else 0 for row in rows]
        shares = [epoch / planned for epoch, (_, _, planned) in zip(epochs, running, strict=True)]
        done = (num_done + sum(shares)) / self._num_runs
        rate = sum(float(row.get("samples_per_second", 0)) for row in rows)
        _, name, planned = running[0]
        line = describe_progress(
            name, min(planned, epochs[0] + 1), planned, self.elapsed, done, rate, f"{num_done + 1}/{self._num_runs}"
        )
        self.write(line)


def read_last_row(path: Path) -> dict[str, Any]:
    """The last complete line of metrics.jsonl; nothing if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
        row = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) and "epoch" in row else {}
