"""The picture in the README: accuracy by class frequency, before and after, from committed rows.

python -m site_pages.before_after    # in docs/; ``make tables`` does it
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from site_pages import ROOT
from site_pages.drawing import SCHEMES, Scheme, styled, write_picture
from site_pages.rows import Row, group_by_method, read_rows

ROWS = ROOT / "benchmarks" / "results" / "quality" / "classes" / "tiny_imagenet_lt_features.csv"
PICTURES = ROOT / "docs" / "pictures"
BEFORE, AFTER = "cross_entropy", "posthoc_adjusted"
NUM_BINS = 9
SHORTEST_ARROW = 0.04


def picture_path(scheme: str) -> Path:
    """Where the picture of a scheme is."""
    return PICTURES / f"before_after_{scheme}.svg"


def describe_rows() -> str:
    """What the picture holds in its description, so that one made of other rows is noticed."""
    return f"{ROWS.relative_to(ROOT).as_posix()} sha256:{hashlib.sha256(ROWS.read_bytes()).hexdigest()}"


def average_bins(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Classes of like frequency together: their mean count, and the mean of their accuracies; rarest first."""
    counts = [int(row["train_samples"]) for row in rows]
    low, high = math.log(min(counts)), math.log(max(counts))
    bins: dict[int, list[Row]] = {}
    for row, number in zip(rows, counts, strict=True):
        place = min(NUM_BINS - 1, int(NUM_BINS * (math.log(number) - low) / (high - low)))
        bins.setdefault(place, []).append(row)
    return [(_geometric_mean(bins[place]), _mean_accuracy(bins[place])) for place in sorted(bins)]


def _geometric_mean(rows: Sequence[Row]) -> float:
    return math.exp(sum(math.log(int(row["train_samples"])) for row in rows) / len(rows))


def _mean_accuracy(rows: Sequence[Row]) -> float:
    return sum(int(row["hits"]) / int(row["test_samples"]) for row in rows) / len(rows)


def draw(rows: Sequence[Row], scheme: Scheme) -> Figure:
    """Two lines over the number of training images, and the change between them."""
    methods = group_by_method(rows)
    before, after = average_bins(methods[BEFORE]), average_bins(methods[AFTER])
    figure = Figure(figsize=(6.2, 3.7), layout="constrained")
    axes = figure.add_subplot()
    for (x, low), (_, high) in zip(before, after, strict=True):
        if abs(high - low) < SHORTEST_ARROW:
            continue
        arrow = {"arrowstyle": "-|>", "color": scheme.muted, "lw": 1.2, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", (x, high), (x, low), arrowprops=arrow)
    axes.plot(*zip(*before, strict=True), color=scheme.before, marker="o", ls="--", label="before: cross-entropy")
    axes.plot(*zip(*after, strict=True), color=scheme.after, marker="s", label="after: adjust_logits(logits, prior)")
    for index, offset in ((0, (-32, 28)), (-1, (10, 4))):
        (x, low), (_, high) = before[index], after[index]
        middle = (x, (low + high) / 2) if index else (x, high)
        style = {
            "textcoords": "offset points",
            "fontsize": 13,
            "fontweight": "bold",
            "ha": "left",
        }
        axes.annotate(f"{low:.0%} → {high:.0%}", middle, offset, **style)
    axes.set(
        xscale="log", ylim=(0, 0.8), xlabel="training images of the class (rare classes left, frequent ones right)"
    )
    axes.set_title(f"Accuracy of {len(methods[BEFORE])} classes, by frequency")
    ticks = [count for count in (5, 10, 20, 50, 100, 200, 500) if before[0][0] <= 1.3 * count]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(loc="upper left")
    axes.margins(x=0.12)
    return figure


def main() -> None:
    """Write the picture in both schemes."""
    rows = read_rows(ROWS)
    for name, scheme in SCHEMES.items():
        with styled(scheme):
            write_picture(picture_path(name), draw(rows, scheme), describe_rows())


if __name__ == "__main__":
    main()
