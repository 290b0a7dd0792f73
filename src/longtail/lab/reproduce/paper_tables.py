"""Tables "paper | here | difference | protocol" from lines of rows, and their order against the paper's."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from scipy import stats

from longtail.lab.reproduce._writing import draw_table
from longtail.lab.reproduce.experiment import Summary
from longtail.lab.reproduce.ledger import Line
from longtail.lab.reproduce.study import PaperTable
from longtail.lab.runs.statistics import Estimate, estimate

__all__ = ["compare_with_paper", "correlate_ranks", "summarize_table", "to_html", "to_markdown"]

HEADINGS = ("row", "paper", "here", "difference", "protocol")


def summarize_table(lines: Sequence[Line], table: PaperTable) -> list[Summary]:
    """Tables beside the paper's, and one of what else was measured."""
    first, *others = table.quantities
    summaries = [compare_with_paper(lines, table, first), *([_list_quantities(lines, table)] if others else [])]
    return [summary for summary in summaries if summary.rows]


def compare_with_paper(lines: Sequence[Line], table: PaperTable, quantity: str) -> Summary:
    """One line per row of the table: the paper's value, ours, and how ours was made."""
    rows, pairs = [], []
    grouped = _group_rows(lines, table.name, quantity)
    protocols = list(dict.fromkeys(line["protocol"] for found in grouped.values() for line in found))
    for name, found in grouped.items():
        here = estimate(float(line["value"]) for line in found)
        paper = float(found[0]["paper"] or "nan")
        seeds = f"{here.count} seed{'s' * (here.count > 1)}"
        own = found[0]["protocol"] if found[0]["protocol"] != protocols[0] else ""
        protocol = "; ".join(part for part in (own, seeds, found[0]["note"]) if part)
        difference = "" if math.isnan(paper) else f"{here.mean - paper:+.2f}"
        rows.append((name, "" if math.isnan(paper) else f"{paper:.2f}", _format(here), difference, protocol))
        pairs.append((paper, here.mean))
    note = f"{table.title}: {table.quantities[quantity]}. Here, unless said: {protocols[0] if protocols else ''}."
    correlation = correlate_ranks(pairs)
    if correlation is not None:
        count = sum(not math.isnan(paper) for paper, _ in pairs)
        note += f" Rank correlation with the paper's order (Spearman, {count} rows): {correlation:.2f}."
    return Summary(HEADINGS, rows, note)


def correlate_ranks(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of the paper's values with ours; None for fewer than three rows.

    >>> correlate_ranks([(1.0, 2.0), (2.0, 3.0), (3.0, 9.0), (math.nan, 0.0)])
    1.0
    """
    known = [(paper, here) for paper, here in pairs if math.isfinite(paper) and math.isfinite(here)]
    if len(known) < 3 or any(len(set(values)) < 2 for values in zip(*known, strict=True)):
        return None
    return round(float(stats.spearmanr(*zip(*known, strict=True)).statistic), 12)


def to_markdown(summary: Summary) -> str:
    """A table and its note."""
    cells = [summary.headings, ["---", *["---:"] * (len(summary.headings) - 1)], *summary.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join(lines) + (f"\n\n{summary.note}" if summary.note else "")


def to_html(summary: Summary) -> str:
    """A table and its note."""
    shown = summary.drop_empty_columns()
    return f"{draw_table(shown.headings, shown.rows, summary.note)}<p>{html.escape(summary.note)}</p>"


def _list_quantities(lines: Sequence[Line], table: PaperTable) -> Summary:
    """Every quantity of every row."""
    names = dict.fromkeys(line["row"] for line in lines if line["table"] == table.name)
    grouped = {quantity: _group_rows(lines, table.name, quantity) for quantity in table.quantities}
    shown = [quantity for quantity, found in grouped.items() if found]
    rows = []
    for name in names:
        rows.append((name, *(_format_cell(grouped[quantity].get(name, [])) for quantity in shown)))
    has_papers = any(line["paper"] for line in lines if line["table"] == table.name)
    note = f"{table.title}, in detail{'; in brackets: the paper' if has_papers else ''}."
    return Summary(("row", *(table.quantities[quantity] for quantity in shown)), rows, note)


def _format_cell(found: Sequence[Line]) -> str:
    paper = next((line["paper"] for line in found if line["paper"]), "")
    return _format(estimate(float(line["value"]) for line in found)) + (f" ({float(paper):.2f})" if paper else "")


def _group_rows(lines: Sequence[Line], table: str, quantity: str) -> dict[str, list[Line]]:
    rows: dict[str, list[Line]] = {}
    for line in lines:
        if line["table"] == table and line["quantity"] == quantity and line["value"]:
            rows.setdefault(line["row"], []).append(line)
    return rows


def _format(value: Estimate) -> str:
    if not math.isfinite(value.mean):
        return ""
    return f"{value.mean:.2f}" + (f" ± {value.half_width:.2f}" if value.has_interval else "")
