"""Multi-label: the ratios of positives to negatives that labels are masked to."""

from __future__ import annotations

import numpy as np

from longtail.lab.report.digests.multilabel import MultilabelComparison
from longtail.lab.report.figures.drawing import (
    DASHES,
    NUM_COLORS,
    Figure,
    Series,
    Table,
    build_axis,
    build_layout,
    build_line,
    build_trace,
    escape_markup,
    round_numbers,
    space_out,
)
from longtail.lab.report.text import class_name, clean, count

__all__ = ["draw_masking_ratios"]


def draw_masking_ratios(comparison: MultilabelComparison) -> Figure | None:
    """The ratio that the labels of each class are masked to, by epoch; None if none is."""
    masked = [(method, found) for method in comparison.methods if (found := method.positive_ratios()) is not None]
    if not masked:
        return None
    method, (epochs, ratios) = masked[0]
    labels = comparison.labels
    ranked = [int(i) for i in labels.by_frequency if np.isfinite(ratios[:, i]).all()]
    steps = space_out(len(epochs))
    traces, legend, rows = [], [], []
    for place, index in enumerate(ranked[i] for i in space_out(len(ranked), most=NUM_COLORS)):
        name = class_name(labels.names[index], 24)
        series = Series(f"class-{place}", name, f"method-{place}", dash=DASHES[place % len(DASHES)])
        legend.append(series)
        traces.append(
            build_trace(series)
            | build_line(series)
            | {
                "x": [epochs[i] + 1 for i in steps],
                "y": round_numbers(ratios[steps, index]),
                "hovertemplate": f"{escape_markup(name)}, epoch %{{x}}: %{{y:.4f}}",
            }
        )
        rows.append((name, count(labels.counts[index]), f"{ratios[0, index]:.4f}", f"{ratios[-1, index]:.4f}"))
    head, tail = (ratios[-1, index] / ratios[0, index] for index in (ranked[0], ranked[-1]))
    summary = (
        f"{clean(method.label)}, seed {method.runs[0].seed}: from its first to its last epoch the ratio of the "
        f"most frequent class went to {head:.2g} times what it was, that of the rarest to {tail:.2g} times."
    )
    layout = build_layout(x=build_axis("epoch"), y=build_axis("positives over negatives", type="log", dtick="D2"))
    table = Table(("class", "training samples", "after the first epoch", "in the end"), rows)
    return Figure("positive-ratios", traces, layout, summary, table, legend)
