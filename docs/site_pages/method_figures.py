"""What a method page shows beside the card: a picture of the method's margins, and what was measured of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from longtail import ClassPrior, Margins
from longtail.lab.runs.statistics import estimate
from longtail.methods import Method
from site_pages import ROOT
from site_pages.markdown import table
from site_pages.rows import group_by_method, read_rows
from site_pages.typeset import place

QUALITY = ROOT / "benchmarks" / "results" / "quality"
PICTURE_COUNTS = (1000, 600, 360, 215, 130, 77, 46, 28, 17, 10)
"""Training samples of the classes in the picture."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 228, 46, 14, 54
"""Of the picture, and of what is around its axes."""


def show_margins(method: Method) -> str:
    """How far the logit of the true class must lead that of the most frequent and of the rarest class."""
    margins = find_margins(method)
    num_classes = len(PICTURE_COUNTS)
    dense = margins.dense() if margins is not None else None
    frequent = [0.0 if dense is None else float(dense[y, 0]) for y in range(1, num_classes)]
    rare = [0.0 if dense is None else float(dense[y, -1]) for y in range(num_classes - 1)]
    has_any = any(abs(value) > 1e-9 for value in frequent + rare)
    none = "" if has_any else " This method has none: it works in other ways."
    text = (
        "How far the logit of the true class must lead that of another one in training (post-hoc: what is made up "
        f"for afterwards), with the default options, for classes of 1,000 to 10 samples.{none}"
    )
    return f"{text}\n\n{place(draw_lines(frequent, rare))}"


def find_margins(method: Method) -> Margins | None:
    """The margins of the method's loss, in the last phase that has any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about options that fit other data
        plan = method.plan(ClassPrior.from_counts(PICTURE_COUNTS))
    if plan.margins is not None:
        return plan.margins
    for phase in reversed(plan.phases):
        state: dict[str, Tensor] = phase.loss.state_dict()
        if {"positive", "negative"} <= state.keys():
            return Margins(state["positive"].double(), state["negative"].double())
    return None


def draw_lines(frequent: Sequence[float], rare: Sequence[float]) -> str:
    """An SVG in the colors of the page: the true class gets rarer to the right."""
    values = [*frequent, *rare, 0.0]
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 1.0
    low, high = low - pad, high + pad
    last = len(PICTURE_COUNTS) - 1

    def point(index: int, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 14) * index / last
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    lines = []
    for name, label, start, part in (
        ("frequent", "against the most frequent class", 1, frequent),
        ("rare", "against the rarest class", 0, rare),
    ):
        points = [point(start + offset, value) for offset, value in enumerate(part)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks = "".join(
            f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            if name == "frequent"
            else f'<rect class="{name}" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
            for x, y in points
        )
        lines.append(f'<polyline class="{name}" points="{path}"><title>{label}</title></polyline>{marks}')
    ticks = "".join(
        f'<text x="{LEFT - 6}" y="{point(0, value)[1] + 4:.1f}" text-anchor="end">{value:+.1f}</text>'
        for value in sorted({round(low + pad, 1), 0.0, round(high - pad, 1)})
    )
    below = HEIGHT - BOTTOM + 14
    across = "".join(
        f'<text x="{point(place, 0)[0]:.1f}" y="{below}" text-anchor="middle">{PICTURE_COUNTS[place]:,}</text>'
        for place in (0, 3, 6, 9)
    )
    zero = f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 14}" y1="{point(0, 0)[1]:.1f}" y2="{point(0, 0)[1]:.1f}"/>'
    caption = f'<text x="{LEFT}" y="{HEIGHT - 22}">training samples of the true class</text>'
    legend = (
        f'<text class="key" x="{LEFT}" y="{HEIGHT - 5}">● against the most frequent, '
        "■ against the rarest class</text>"
    )
    body = zero + "".join(lines) + ticks + across + caption + legend
    return f'<svg class="margins" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Margins">{body}</svg>'


def show_results(method: Method, folder: Path = QUALITY) -> str:
    """Balanced accuracy on every recipe that has rows of the method, beside plain cross-entropy; nothing without."""
    body = []
    for path in sorted(folder.glob("*.csv")):
        rows = group_by_method(read_rows(path))
        key = "balanced_accuracy" if "balanced_accuracy" in next(iter(rows.values()))[0] else "f1"
        plain = rows.get("cross_entropy") or rows.get("binary_cross_entropy")
        if method.name not in rows or not rows[method.name][0].get(key):
            continue
        own = estimate(100 * float(row[key]) for row in rows[method.name])
        spread = f" ± {own.half_width:.1f}" if own.has_interval else ""
        base = f"{estimate(100 * float(row[key]) for row in plain).mean:.1f}" if plain else ""
        unit = "F1" if key == "f1" else "balanced accuracy"
        body.append([f"`{path.stem}`", unit, f"{own.mean:.1f}{spread}", base, str(own.count)])
    if not body:
        return "There are no committed rows of this method yet; `longtail compare` makes some on your data."
    note = "On test sets, in percent, ± half a 95 % interval. [All results](../results.md)"
    return f"{table(['recipe', 'what', 'this method', 'plain loss', 'seeds'], body)}\n\n{note}"
