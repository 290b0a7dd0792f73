"""From folders to runs, one at a time, with errors of one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from longtail.lab.data.digest import DataChanged
from longtail.lab.runs.folder import Run, find_runs, load_run

__all__ = ["read_runs"]


def read_runs(folders: Iterable[Path]) -> Iterator[Run]:
    """The complete runs at or below ``folders``, each read when it is asked for and each once.

    The folders are searched at once: a folder without a complete run raises here, not later.

    Args:
        folders: run folders, or folders that hold some at any depth.
    """
    paths: dict[Path, Path] = {}
    for folder in folders:
        found = find_runs(folder)
        if not found:
            raise FileNotFoundError(
                f"{folder}: there is no complete run at or below it; train one first, or resume it."
            )
        paths |= {path.resolve(): path for path in found}
    return _read_all(paths.values())


def _read_all(paths: Iterable[Path]) -> Iterator[Run]:
    """The runs; two that name the same data were made on the same."""
    seen: dict[str, Run] = {}
    for path in paths:
        run = _read(path)
        first = seen.setdefault(repr(run.recipe.get("data")), run)
        if first.summary.get("data") != run.summary.get("data"):
            raise DataChanged(
                f"{first.path} and {path} were made on different data, which their recipes call the same; "
                "train one of them again with --restart, or report them apart."
            )
        yield run


def _read(path: Path) -> Run:
    run = load_run(path)
    try:
        # Touched here so that a broken file is an error about this folder.
        _ = run.method, run.seed, float(run.summary["seconds"]), [int(row["epoch"]) for row in run.history]
    except KeyError as error:
        raise ValueError(f"{path}: this run can't be read: it lacks {error}; train it again.") from error
    except (ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: this run can't be read: {reason}; train it again.") from error
    return run
