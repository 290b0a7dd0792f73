"""How pictures of the README and the site look: one style, light and dark, safe for color-blind readers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

SIZE = (7.6, 3.4)
"""Inches, of most pictures."""


@dataclass(frozen=True)
class Scheme:
    """The colors of one scheme. Before and after differ in lightness too, so that gray prints tell them apart."""

    page: str
    ink: str
    muted: str
    grid: str
    before: str
    after: str
    third: str
    fourth: str


SCHEMES = {
    "light": Scheme("#ffffff", "#1c2530", "#55606e", "#dfe4ea", "#8a94a0", "#0060a8", "#c44e00", "#00805c"),
    "dark": Scheme("#0d1117", "#e8ecf1", "#a9b4c0", "#2b333d", "#8893a0", "#5ab4f5", "#f08a4b", "#3cc39a"),
}


@contextmanager
def styled(scheme: Scheme) -> Iterator[None]:
    """Draw within this with the scheme's colors; nothing is changed outside."""
    cycle = mpl.cycler(color=[scheme.after, scheme.third, scheme.fourth, scheme.before])
    cycle += mpl.cycler(marker=["o", "s", "^", "D"])
    settings: Mapping[str, Any] = {
        "axes.edgecolor": scheme.grid,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.labelcolor": scheme.muted,
        "axes.prop_cycle": cycle,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": scheme.ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "figure.facecolor": "none",
        "font.size": 10.5,
        "grid.color": scheme.grid,
        "legend.frameon": False,
        "legend.labelcolor": scheme.ink,
        "lines.linewidth": 2,
        "savefig.facecolor": "none",
        "svg.hashsalt": "longtail",
        "text.color": scheme.ink,
        "xtick.color": scheme.muted,
        "ytick.color": scheme.muted,
    }
    with mpl.rc_context(dict(settings)):
        yield


def to_svg(figure: Figure, description: str) -> bytes:
    """The picture as SVG: the same bytes for the same picture, and what it was made of in its description."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Description": description})
    return b"".join(line.rstrip() + b"\n" for line in file.getvalue().splitlines())


def write_picture(path: Path, figure: Figure, description: str) -> None:
    """Write an SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_svg(figure, description))
