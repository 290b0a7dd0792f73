"""The picture on top of the results: balanced error before and after, on every data set that has rows.

python -m site_pages.overview    # in docs/; ``make tables`` does it
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from longtail.lab.runs.statistics import Estimate, estimate
from site_pages import ROOT
from site_pages.drawing import SCHEMES, Scheme, styled, write_picture
from site_pages.rows import DATA_NAMES, comparison_rows, group_by_method

QUALITY = ROOT / "benchmarks" / "results" / "quality"
DATA_SETS = {
    "cifar10_lt_fast": "images, ResNet-32",
    "cifar100_lt_fast": "images, ResNet-32",
    "tiny_imagenet_lt_features": "features, linear",
    "clinc150": "texts, bag of features",
    "digits": "small network",
}
"""Recipe -> what the picture says beneath the name of its data; one without rows is left out."""


class Series(NamedTuple):
    """How a method is drawn."""

    label: str
    marker: str
    color: str
    """A field of ``Scheme``."""


METHODS = {
    "cross_entropy": Series("cross-entropy", "o", "before"),
    "posthoc_adjusted": Series("adjusted after training", "s", "after"),
    "logit_adjusted": Series("logit-adjusted loss", "^", "third"),
}

Errors = Mapping[str, Mapping[str, Estimate]]
"""Recipe -> method -> balanced error in percent."""


def picture_path(scheme: str) -> Path:
    """Where the picture of a scheme is."""
    return ROOT / "docs" / "pictures" / f"results_{scheme}.svg"


def collect_errors(folder: Path = QUALITY) -> Errors:
    """Balanced errors of the data sets that have rows."""
    errors: dict[str, dict[str, Estimate]] = {}
    for recipe in DATA_SETS:
        rows = comparison_rows(folder, recipe)
        methods = group_by_method(rows)
        if rows and all(name in methods for name in METHODS):
            errors[recipe] = {
                name: estimate(100 * (1 - float(row["balanced_accuracy"])) for row in methods[name])
                for name in METHODS
            }
    return errors


def describe(errors: Errors) -> str:
    """What the picture holds in its description, so that one made of other rows is noticed."""
    text = repr([(recipe, name, value) for recipe, found in errors.items() for name, value in found.items()])
    return f"benchmarks/results/quality sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def draw(errors: Errors, scheme: Scheme) -> Figure:
    """One line per data set: from plain cross-entropy to what corrects it."""
    figure = Figure(figsize=(6.2, 1.1 + 0.62 * len(errors)), layout="constrained")
    axes = figure.add_subplot()
    for place, found in enumerate(errors.values()):
        ends = [value.mean for value in found.values()]
        axes.plot([min(ends), max(ends)], [place, place], color=scheme.grid, lw=3, marker="", zorder=1)
        for offset, (name, value) in zip((0.0, 0.14, -0.14), found.items(), strict=True):
            series = METHODS[name]
            axes.errorbar(
                value.mean,
                place + offset,
                xerr=value.half_width if value.has_interval else None,
                fmt=series.marker,
                color=getattr(scheme, series.color),
                label=series.label if place == 0 else None,
                markersize=7,
                capsize=0,
            )
        axes.annotate(
            f"{min(ends) - found['cross_entropy'].mean:+.1f}".replace("-", "−"),
            (max(ends), place),
            (12, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
        )
    axes.set_yticks(range(len(errors)), [f"{DATA_NAMES[recipe]}\n{DATA_SETS[recipe]}" for recipe in errors])
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.12)
    axes.set_xlim(0, 1.15 * max(value.mean for found in errors.values() for value in found.values()))
    axes.set_xlabel("balanced error, % (less is better)")
    axes.set_title("What adjusting gains")
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2, handletextpad=0.3)
    return figure


def main() -> None:
    """Write the picture in both schemes."""
    errors = collect_errors()
    for name, scheme in SCHEMES.items():
        with styled(scheme):
            write_picture(picture_path(name), draw(errors, scheme), describe(errors))


if __name__ == "__main__":
    main()
