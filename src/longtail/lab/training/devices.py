"""Lightning Fabric on the devices that were asked for, or one line that says why not."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

__all__ = ["TIMEOUT_SECONDS", "end_lost_processes", "join_again", "open_fabric"]

TIMEOUT_SECONDS = 1800.0
"""How long processes wait for each other before they take one for lost."""

LOST = re.compile(r"timed? ?out|connection (closed|reset)|broken pipe|socket", re.IGNORECASE)
"""What the backends say of a process that does not answer any more."""

INSTRUCTIONS_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""Limits the instructions that matrices are multiplied with; see oneDNN."""
PROCESSOR = Path("/proc/cpuinfo")
MULTIPLY = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"

LAUNCHERS = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
"""Variables of torchrun, SLURM and Open MPI: all processes, and those on this node."""


def open_fabric(
    accelerator: str, devices: int | str = 1, precision: Any = None, timeout: float = TIMEOUT_SECONDS
) -> Fabric:
    """Fabric with these settings; what the machine doesn't have is a ValueError.

    Launched by ``torchrun``, ``srun`` or ``mpirun``, it is the launcher that says how many processes there are.

    >>> open_fabric("cpu").device
    device(type='cpu')
    """
    launched = _read_launcher(os.environ)
    settings: dict[str, Any] = {"devices": devices} if launched is None else launched
    if settings.get("strategy") == "ddp" or (isinstance(devices, int) and devices > 1):
        settings["strategy"] = DDPStrategy(timeout=timedelta(seconds=timeout))
    try:
        with _quiet_fabric():
            fabric = Fabric(accelerator=accelerator, precision=precision, **settings)
    except (ImportError, MisconfigurationException, RuntimeError) as error:
        raise ValueError(
            f"accelerator {accelerator!r} with devices {devices!r} can't be had here; there is {_available()}."
        ) from error
    if fabric.device.type == "cpu" and str(precision).startswith("bf16"):
        _check_matrix_tiles()
    return fabric


@contextmanager
def _quiet_fabric() -> Iterator[None]:
    """No line about the precision: it is in the recipe, and would stand between the lines of progress."""
    logger = logging.getLogger("lightning_fabric.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def end_lost_processes(fabric: Fabric, timeout: float) -> Iterator[None]:
    """Where another process is killed or stalls: one line that says so, and an end of those that this one started."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(fabric.strategy, DDPStrategy) or not LOST.search(str(error)):
            raise
        for process in getattr(fabric.strategy.launcher, "procs", ()):
            process.kill()  # one that is stopped hears nothing less
        raise TimeoutError(
            f"another process of this training has ended, or has not answered for {timeout:g} seconds; "
            "what was saved is kept: the same command resumes it."
        ) from error


def join_again(fabric: Fabric, timeout: float) -> None:
    """After ``torchrun`` has started all processes again, join their group by keys of this attempt.

    torchrun keeps one store for all attempts, and the addresses of processes that are gone stay in it: a process that
    is quicker than its neighbors would wait for those.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    has_common_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt == "0" or not has_common_store or dist.is_initialized():
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if fabric.device.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"attempt_{attempt}", store),  # type: ignore[attr-defined]
        timeout=timedelta(seconds=timeout),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def _read_launcher(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Devices per node, nodes and strategy as a launcher's variables say; None where there was no launcher.

    >>> _read_launcher({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    {'devices': 2, 'num_nodes': 2, 'strategy': 'ddp'}
    """
    for whole, local in LAUNCHERS:
        if whole in environment and local in environment:
            per_node = int(environment[local].partition("(")[0])
            num_nodes = max(1, int(environment[whole]) // per_node)
            strategy = "ddp" if int(environment[whole]) > 1 else "auto"
            return {"devices": per_node, "num_nodes": num_nodes, "strategy": strategy}
    return None


def _check_matrix_tiles() -> None:
    """Raise where the machine announces instructions for matrices of bfloat16 and stops at their first use.

    Some virtual machines do. A process that is stopped so can say nothing, so a child tries it first.
    """
    if INSTRUCTIONS_VARIABLE in os.environ or not _announces_tiles() or _can_multiply():
        return
    raise ValueError(
        "bfloat16 stops with 'Illegal instruction' here: this machine announces matrix tiles (AMX) that it does not "
        f"have. Set the variable {INSTRUCTIONS_VARIABLE}=AVX512_CORE_BF16, or train.precision=32-true."
    )


def _announces_tiles() -> bool:
    try:
        return "amx_bf16" in PROCESSOR.read_text()
    except OSError:  # not on Linux
        return False


@cache
def _can_multiply() -> bool:
    """Whether a child that multiplies matrices of bfloat16 ends by itself."""
    return subprocess.run([sys.executable, "-c", MULTIPLY], capture_output=True).returncode != -signal.SIGILL


def _available() -> str:
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append(f"cuda (devices 0 to {torch.cuda.device_count() - 1})")
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join(found)
