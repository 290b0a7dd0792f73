"""One budget for the memory that data may take, and the check before it is taken."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["BYTES_PER_CLASS", "check_memory", "memory_budget"]

VARIABLE = "LONGTAIL_MEMORY"
SHARE = 0.5
"""Of the machine's memory, where nothing else is said."""
UNKNOWN_MACHINE = 4 * 2**30
"""The budget where a system does not say how much memory it has."""
BYTES_PER_CLASS = 300
"""What a class takes that is named, counted and printed."""
GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux keeps what a container may use."""


def memory_budget(gigabytes: float | None = None) -> int:
    """Bytes that data may take: as told, else by the variable LONGTAIL_MEMORY, else half of the machine's memory.

    Args:
        gigabytes: the budget in units of 10^9 bytes, as the variable has it.

    >>> memory_budget(2)
    2000000000
    """
    if gigabytes is None and VARIABLE in os.environ:
        try:
            gigabytes = float(os.environ[VARIABLE])
        except ValueError:
            raise ValueError(f"{VARIABLE} must be a number of gigabytes. Got {os.environ[VARIABLE]!r}.") from None
    if gigabytes is None:
        return int(SHARE * _machine_memory())
    if not 0 < gigabytes < 2**40:
        raise ValueError(f"the memory budget must be a number of gigabytes above 0. Got {gigabytes}.")
    return int(gigabytes * 10**9)


def check_memory(needed: int, what: str, budget: int | None = None) -> None:
    """Raise, before memory is taken, where there would be more than the budget.

    Args:
        needed: bytes, at least.
        what: the beginning of the message, such as the name of a file.
        budget: bytes; default: that of :func:`memory_budget`.

    >>> check_memory(3 * 10**9, "a.npy", budget=10**9)
    Traceback (most recent call last):
    ...
    ValueError: a.npy would take 3 GB of memory, and data may take 1 GB; allow more with --memory or LONGTAIL_MEMORY.
    """
    limit = memory_budget() if budget is None else budget
    if needed > limit:
        raise ValueError(
            f"{what} would take {needed / 1e9:,.3g} GB of memory, and data may take {limit / 1e9:.3g} GB; "
            f"allow more with --memory or {VARIABLE}."
        )


def _machine_memory() -> int:
    """Bytes of memory that the machine has, or that its container may use."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        return int(UNKNOWN_MACHINE / SHARE)
    for path in GROUP_LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(found)
