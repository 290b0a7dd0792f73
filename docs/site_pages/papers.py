"""Tables beside those of papers, from the rows that ``longtail reproduce`` records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from longtail.lab.reproduce import balms, elm, logit_adjustment, plm, sampled_training
from longtail.lab.reproduce.experiment import Summary
from longtail.lab.reproduce.ledger import read_lines
from longtail.lab.reproduce.paper_tables import summarize_table, to_markdown
from longtail.lab.reproduce.study import PaperTable
from site_pages.rows import DATA_NAMES


class Paper(NamedTuple):
    """What is shown of a paper's rows."""

    tables: Sequence[PaperTable]
    conclude: Callable[[Sequence[Mapping[str, str]]], list[Summary]] = lambda lines: []
    """Lines of all rows -> further tables."""


PAPERS = {
    "logit_adjustment": Paper(logit_adjustment.TABLES),
    "elm": Paper(elm.TABLES),
    "balms": Paper(balms.TABLES),
    "plm": Paper([table for table in plm.TABLES if table.name != "fit"], plm.conclude_fit),
    "sampling_bias": Paper(sampled_training.TABLES, sampled_training.check_findings),
}
"""Folder of rows -> its paper."""


def paper_tables(folder: Path) -> str:
    """The tables of a paper, one file of rows after the other; the command that makes them, where there are none."""
    found = (path for path in folder.glob("*.csv") if not path.stem.endswith("_points"))
    files = sorted(found, key=lambda path: path.stem)
    if not files:
        name = folder.name.replace("_", "-")
        command = f"longtail reproduce {name} --data cifar100 --fast"
        return f"The paper's own table has not been run on images yet: `{command}`."
    return "\n\n".join(f"### {describe_rows(path.stem)}\n\n{_write_file(path)}" for path in files)


def describe_rows(stem: str) -> str:
    """A heading for a file of rows: the data, in what the recipe was changed, and the file's name."""
    recipe = max((name for name in DATA_NAMES if stem.startswith(name)), key=len, default="")
    if not recipe:
        return f"`{stem}`"
    length, *settings = stem.removeprefix(recipe).split("+")
    changes = [re.sub(r"^(ratio|\d+)", r"\1 ", part) for part in length.split("_")[1:]]
    changes += [setting.replace("-", " ", 1).replace("_", " ") for setting in settings]
    return f"{', '.join([DATA_NAMES[recipe], *changes])} (`{stem}`)"


def _write_file(path: Path) -> str:
    lines = read_lines(path)
    paper = PAPERS[path.parent.name]
    summaries = [one for table in paper.tables for one in summarize_table(lines, table)]
    return "\n\n".join(map(to_markdown, summaries + paper.conclude(lines)))
