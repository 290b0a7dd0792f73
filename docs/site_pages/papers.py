"""Tables beside those of papers, from the rows that ``longtail reproduce`` records."""

from __future__ import annotations

from pathlib import Path

from longtail.lab.reproduce import balms, elm, logit_adjustment, plm, sampled_training
from longtail.lab.reproduce.ledger import read_lines
from longtail.lab.reproduce.paper_tables import summarize_table, to_markdown
from longtail.lab.reproduce.study import PaperTable

PAPER_TABLES: dict[str, tuple[PaperTable, ...]] = {
    "logit_adjustment": logit_adjustment.TABLES,
    "elm": elm.TABLES,
    "balms": balms.TABLES,
    "plm": plm.TABLES,
    "sampling_bias": sampled_training.TABLES,
}
"""Folder of rows -> the tables of its paper."""


def paper_tables(folder: Path) -> str:
    """The tables of a paper, one file of rows after the other; the command that makes them, where there are none."""
    files = sorted(path for path in folder.glob("*.csv") if not path.stem.endswith("_points"))
    if not files:
        name = folder.name.replace("_", "-")
        command = f"longtail reproduce {name} --data cifar100 --fast"
        return f"The paper's own table has not been run on images yet: `{command}`."
    return "\n\n".join(f"### {path.stem}\n\n{_write_file(path)}" for path in files)


def _write_file(path: Path) -> str:
    lines = read_lines(path)
    summaries = [one for table in PAPER_TABLES[path.parent.name] for one in summarize_table(lines, table)]
    return "\n\n".join(map(to_markdown, summaries))
