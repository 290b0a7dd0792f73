"""Tables and the picture of recommendation, from the rows of ``benchmarks/sequences.py`` and of Gowalla.

python -m site_pages.recommendation    # in docs/; ``make tables`` does it
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from longtail.lab.runs.statistics import estimate
from site_pages import ROOT
from site_pages.drawing import SCHEMES, Scheme, styled, write_picture
from site_pages.markdown import table
from site_pages.rows import Row, group_rows, read_rows

RESULTS = ROOT / "benchmarks" / "results"
TRADE_OFF, OPTIMIZERS = (RESULTS / "sequences" / f"{name}.csv" for name in ("trade_off", "optimizers"))
GOWALLA = RESULTS / "retrieval" / "gowalla.csv"
GOWALLA_EPOCHS = "10"
"""The length that all ways to sample were trained for."""
TITLES = {"amazon_toys": "Amazon Toys: next item, R@10", "amazon_sports": "Amazon Sports: next item, R@10"}
METRICS = {
    "recall_at_10": "R@10",
    "ndcg_at_10": "nDCG@10",
    "recall_at_10_head": "head",
    "recall_at_10_torso": "torso",
    "recall_at_10_tail": "tail",
}
SETTINGS = ("num_negatives", "epochs", "learning_rate")
"""What tells apart rows of one method; those of the settings with the most rows are drawn."""
COLORS = {
    "importance": "after",
    "relative": "fourth",
    "tail": "third",
    "unit": "muted",
    "constant": "before",
}
"""Weighting -> a field of ``Scheme``."""


MARKERS = {"uniform": "o", "within-batch": "s", "prior": "^"}


class Point(NamedTuple):
    """What one way to sample finds, as shares."""

    negatives: str
    weighting: str
    overall: float
    rare: float


def trade_off_table(recipe: str) -> str:
    """R@10 and nDCG@10 of every way to sample, and R@10 of the thirds of the items, beside the softmax over all."""
    rows = [row for row in read_rows(TRADE_OFF) if row["recipe"] == recipe] if TRADE_OFF.is_file() else []
    if not rows:
        return f"There are no rows yet. `python benchmarks/sequences.py trade-off --recipe {recipe}` makes them."
    body = []
    for (drawn, epochs, rate, method), members in sorted(group_rows(rows, *SETTINGS, "method").items(), key=_order):
        cells = [_percent(members, name) for name in METRICS]
        seconds = sum(float(row["processor_seconds"]) for row in members) / len(members)
        body.append([method, drawn, epochs, rate, *cells, f"{seconds:.0f}", str(len(members))])
    return table(["negatives, weighting", "drawn", "epochs", "rate", *METRICS.values(), "processor s", "seeds"], body)


def _order(entry: tuple[tuple[str, ...], Sequence[Row]]) -> tuple[int, int, float, float]:
    """All items, then most negatives, most epochs and the largest learning rate first, and then the most found."""
    (drawn, epochs, rate, _), rows = entry
    found = estimate(float(row["recall_at_10"]) for row in rows).mean
    return -int(drawn or 10**9), -int(epochs), -float(rate), -found


def optimizers_table() -> str:
    """R@10 on the validation items for every optimizer of the item vectors and its learning rate."""
    if not OPTIMIZERS.is_file():
        return "There are no rows yet. `python benchmarks/sequences.py optimizers` makes them."
    body = [
        [
            row["optimizer"],
            row["learning_rate"],
            *(f"{100 * float(row[name]):.2f}" for name in METRICS),
            f"{float(row['processor_seconds']):.0f}",
        ]
        for row in sorted(read_rows(OPTIMIZERS), key=lambda row: (row["optimizer"], float(row["learning_rate"])))
    ]
    return table(["optimizer", "learning rate", *METRICS.values(), "processor s"], body)


def _percent(rows: Sequence[Row], name: str) -> str:
    found = estimate(100 * float(row[name]) for row in rows)
    return f"{found.mean:.2f}" + (f" ± {found.half_width:.2f}" if found.has_interval else "")


def collect_points() -> Mapping[str, Sequence[Point]]:
    """Panels of the picture: those that have rows."""
    panels: dict[str, list[Point]] = {}
    for (recipe,), measured in group_rows(read_rows(TRADE_OFF) if TRADE_OFF.is_file() else [], "recipe").items():
        drawn = [row for row in measured if row["num_negatives"]]
        fullest = max(group_rows(drawn, *SETTINGS).values(), key=len)
        methods = group_rows(fullest, "method")
        if len(methods) < len(COLORS):
            continue
        for (method,), rows in methods.items():
            negatives, _, weighting = method.partition(", ")
            values = (
                estimate(float(row[name]) for row in rows).mean for name in ("recall_at_10", "recall_at_10_tail")
            )
            panels.setdefault(TITLES[recipe], []).append(Point(negatives, weighting, *values))
    panels["Gowalla: users and places, R@20"] = [
        Point(row["sampling"], row["weighting"], float(row["recall"]), float(row["rare_recall"]))
        for row in read_rows(GOWALLA)
        if row["weighting"] in COLORS and row["epochs"] == GOWALLA_EPOCHS
    ]
    return panels


def describe(panels: Mapping[str, Sequence[Point]]) -> str:
    """What the picture holds in its description, so that one made of other rows is noticed."""
    digest = hashlib.sha256(repr(sorted(panels.items())).encode()).hexdigest()
    return f"benchmarks/results/sequences and retrieval/gowalla.csv sha256:{digest}"


def draw(panels: Mapping[str, Sequence[Point]], scheme: Scheme) -> Figure:
    """For each data set, what is found of all items against what is found of the rarest third."""
    figure = Figure(figsize=(3.7 * len(panels) + 1.9, 3.7), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, points) in zip(all_axes, panels.items(), strict=True):
        for point in points:
            color, marker = getattr(scheme, COLORS[point.weighting]), MARKERS[point.negatives]
            axes.plot([point.rare], [point.overall], marker, color=color, markersize=9, ls="none")
        _label(axes, title)
    for weighting, field in COLORS.items():
        all_axes[0].plot([], [], "o", color=getattr(scheme, field), ls="none", label=weighting)
    drawn = {point.negatives for points in panels.values() for point in points}
    for negatives, marker in ((name, marker) for name, marker in MARKERS.items() if name in drawn):
        all_axes[0].plot([], [], marker, color=scheme.ink, ls="none", markerfacecolor="none", label=negatives)
    figure.legend(loc="outside right center", title="weights and negatives")
    return figure


def _label(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.margins(0.15)
    axes.set(xlabel="found of the rarest third", ylabel="found of all items", xlim=(0, None), ylim=(0, None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))  # whole percents
        axis.set_major_formatter(PercentFormatter(1, decimals=0))


def picture_path(scheme: str) -> Path:
    """Where the picture of a scheme is."""
    return ROOT / "docs" / "pictures" / f"recommendation_{scheme}.svg"


def main() -> None:
    """Write the picture in both schemes."""
    panels = collect_points()
    for name, scheme in SCHEMES.items():
        with styled(scheme):
            write_picture(picture_path(name), draw(panels, scheme), describe(panels))


if __name__ == "__main__":
    main()
