"""The HTML page: what was found in words, the table of methods, the figures, the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from longtail._core.files import replacing
from longtail.lab.report.blocks import Panels, Section
from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.document import dump_figures, read_resource, render_document
from longtail.lab.report.headline import Headline, write_headline
from longtail.lab.report.kinds import choose_kind, compare
from longtail.lab.report.text import clean, count
from longtail.lab.runs.folder import Run

__all__ = ["write_report"]

PLOTLY = "vendor/plotly-basic.min.js"
"""plotly.js with scatter and bar traces only, as its makers publish it (plotly.js-basic-dist-min 4.1.1, MIT): a
quarter of the whole, and enough. It is part of the package: a page must be made, and read, without a network."""


def write_report(runs: Iterable[Run], output: Path, title: str = "") -> Headline:
    """Write one self-contained HTML page about ``runs``, whole or not at all.

    Args:
        runs: one run or many, of any methods and seeds, all of the same data. They are taken one at a time, so an
            iterator such as ``read_runs`` gives needs the memory of one.
        output: the file to write.
        title: the page's heading; if empty, what the recipe says of itself.

    Returns:
        What the page says first.
    """
    comparison = compare(runs)
    headline = write_headline(comparison)
    page = _render_page(comparison, headline, title)
    with replacing(output) as file:
        file.write(page.encode())
    return headline


def _render_page(comparison: Comparison[Any], headline: Headline, title: str) -> str:
    kind = choose_kind(comparison.labels)
    sections = _pair_halves([section for section in kind.build_sections(comparison) if section.blocks])
    panels = [block for section in sections for block in section.blocks if isinstance(block, Panels)]
    return render_document(
        "page.html",
        read_resource(PLOTLY),
        title=clean(title or comparison.title, most=120),
        figures=dump_figures(figure for panel in panels for figure in panel.figures),
        headline=headline,
        note=_describe_selection(comparison),
        facts=_list_facts(comparison),
        sections=sections,
    )


def _pair_halves(sections: Sequence[Section]) -> list[Section]:
    """Half-wide sections are side by side; one that has no partner gets the whole width, so that there is no hole."""
    paired: list[Section] = []
    is_left = False
    for section, following in zip_longest(sections, sections[1:]):
        is_left = not section.is_wide and not is_left
        is_alone = is_left and (following is None or following.is_wide)
        paired.append(replace(section, is_wide=True) if is_alone else section)
        is_left = is_left and not is_alone
    return paired


def _describe_selection(comparison: Comparison[Any]) -> str:
    """What figures leave out at first; nothing if that is nothing."""
    num_hidden = len(comparison.methods) - len(comparison.preselected)
    if not num_hidden:
        return ""
    return f"Most figures show the baseline and the best three of {len(comparison.methods)} methods at first."


def _list_facts(comparison: Comparison[Any]) -> dict[str, str]:
    """The size of the data and of the comparison, at a glance."""
    labels, counts = comparison.labels, comparison.labels.counts
    imbalance = f"{counts.max() / counts.min():,.0f} : 1" if counts.min() else "a class has none"
    seeds = {run.seed for method in comparison.methods for run in method.runs}
    return {
        "classes": count(labels.num_classes),
        "training samples": count(labels.num_train),
        "largest to smallest class": imbalance,
        "test samples": count(labels.num_test),
        "method" if len(comparison.methods) == 1 else "methods": count(len(comparison.methods)),
        "seed" if len(seeds) == 1 else "seeds": count(len(seeds)),
    }
