"""The HTML page: what was found in words, the table of methods, the figures, the settings.

The page is one file. It loads nothing, which its content security policy enforces: the two scripts in it are allowed
by their hashes, and nothing else may run or be fetched. Text of others (names of classes and methods, recipes,
titles) reaches it escaped only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

import longtail
from longtail._core.files import replacing
from longtail.lab.report import figures, label_figures
from longtail.lab.report.digest import TAUS, Comparison, MethodResults, compare
from longtail.lab.report.embedded import SCALES
from longtail.lab.report.figures import Figure, Series, Table
from longtail.lab.report.words import class_name, clean, count, duration, listed, percent, points, with_interval
from longtail.lab.runs.folder import Run
from longtail.lab.training.label_metrics import rarest_sizes

__all__ = ["write_report"]

MOST_SETTING = 200
"""Characters shown of one setting."""

SWATCHES = {
    "circle": '<circle cx="14" cy="6" r="4"/>',
    "square": '<rect x="10" y="2" width="8" height="8"/>',
    "diamond": '<path d="M14 1l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M14 1.5l4.5 8h-9z"/>',
    "triangle-down": '<path d="M14 10.5l4.5-8h-9z"/>',
    "cross": '<path d="M12.5 2h3v2.5H18v3h-2.5V10h-3V7.5H10v-3h2.5z"/>',
}
SWATCH_DASHES = {"solid": "none", "dash": "5 3", "dot": "2 2"}


def write_report(runs: Iterable[Run], output: Path, title: str = "Long-tail report") -> None:
    """Write one self-contained HTML page about ``runs``, whole or not at all.

    Args:
        runs: one run or many, of any methods and seeds, all of the same data. They are taken one at a time, so an
            iterator such as ``read_runs`` gives needs the memory of one.
        output: the file to write.
        title: the page's heading.
    """
    page = _page(compare(runs), title)
    with replacing(output) as file:
        file.write(page.encode())


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    short_title: str
    """For the navigation."""
    body: str
    is_wide: bool = True


def _page(comparison: Comparison, title: str) -> str:
    drawn: list[Figure] = []
    sections = _sections(comparison, drawn)
    plotly, script = _inert_in_script(get_plotlyjs()), _inert_in_script(_resource("page.js"))
    shown_title = html.escape(clean(title, most=120))
    navigation = "".join(f'<li><a href="#{s.key}">{html.escape(s.short_title)}</a></li>' for s in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_security_policy(plotly, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="longtail {html.escape(longtail.__version__)}">
<title>{shown_title}</title>
<style>{_resource("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header class="page-header">
<h1>{shown_title}</h1>
<p class="lead">{_lead(comparison)}</p>
{_facts(comparison)}
</header>
<nav class="contents" aria-label="Sections"><ul>{navigation}</ul></nav>
<main id="main">
<noscript><p class="card">The pictures need JavaScript. Their numbers are in the tables below them.</p></noscript>
{"".join(_section(section) for section in sections)}
</main>
<footer>
<p>In a figure, drag to zoom and double-click to go back. Press a name above a figure to hide it in all of them. This
page is one file and loads nothing. Made by longtail {html.escape(longtail.__version__)}.</p>
</footer>
<script type="application/json" id="figures">{_figure_data(drawn)}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def _sections(comparison: Comparison, drawn: list[Figure]) -> list[Section]:
    """The page's sections; their figures are added to ``drawn``."""

    def draw(*wanted: Figure | None) -> str:
        """Figures side by side under one legend."""
        found = [figure for figure in wanted if figure is not None]
        drawn.extend(found)
        if not found:
            return ""
        legend = max((figure.legend for figure in found), key=len)
        return f'{_legend(legend)}<div class="panels">{"".join(map(_figure, found))}</div>'

    if comparison.is_multilabel:
        return [section for section in _label_sections(comparison, draw) if section.body]
    tau = draw(figures.tau_curve(comparison))
    norms = draw(figures.weight_norms(comparison))
    rates = draw(figures.sample_rates(comparison), figures.sample_rate_variance(comparison))
    training = draw(
        figures.training_loss(comparison), figures.accuracy_by_epoch(comparison), figures.learning_rate(comparison)
    )
    embeddings = ""
    if any(method.embeddings for method in comparison.methods):
        groups = comparison.labels.groups
        parts = {
            "Share of samples up to a margin": draw(*(figures.margin_shares(comparison, group) for group in groups)),
            "Distances within a class": _DISTANCE_NOTE
            + draw(*(figures.class_distances(comparison, scale) for scale in SCALES)),
            "Other heads, and the variance of classes": draw(
                figures.other_heads(comparison), figures.variance_bound(comparison)
            ),
            "Maps": draw(*figures.embedding_maps(comparison)),
        }
        embeddings = "".join(f"<h3>{title}</h3>{part}" for title, part in parts.items() if part)
    candidates = [
        Section("methods", "Methods", "Methods", _method_table(comparison)),
        Section("groups", "Head, torso and tail", "Groups", draw(figures.group_bars(comparison)), is_wide=False),
        _distribution(comparison, draw),
        Section(
            "classes",
            "Accuracy of each class against its frequency",
            "Classes",
            draw(figures.class_accuracy(comparison)) + _changes(comparison),
        ),
        Section(
            "adjustment", "Adjusting the logits after training", "Tau", tau and _TAU_WARNING + tau, is_wide=False
        ),
        Section("calibration", "Calibration", "Calibration", draw(figures.calibration(comparison)), is_wide=False),
        Section("margins", "Logit margins", "Margins", draw(figures.margins(comparison)), is_wide=False),
        Section("embeddings", "Embeddings and margins", "Embeddings", embeddings),
        Section("norms", "Norms of the class vectors", "Norms", norms, is_wide=False),
        Section("rates", "Learned sample rates", "Rates", rates),
        Section("confusions", "The worst confusions", "Confusions", _confusions(comparison)),
        Section(
            "training",
            "Training",
            "Training",
            training and (_TRAINING_NOTE if len(comparison.methods) > 1 else "") + training,
        ),
        Section("settings", "Recipe and environment", "Settings", _settings(comparison)),
    ]
    return [section for section in candidates if section.body]


def _distribution(comparison: Comparison, draw: Callable[..., str]) -> Section:
    figure = draw(figures.label_distribution(comparison))
    return Section("labels", "How the labels are distributed", "Labels", figure, is_wide=False)


def _label_sections(comparison: Comparison, draw: Callable[..., str]) -> list[Section]:
    """The sections of a page about samples with several labels."""
    by_frequency = draw(
        label_figures.recall_by_frequency(comparison), label_figures.precision_by_frequency(comparison)
    )
    histograms = draw(label_figures.probabilities(comparison, True), label_figures.probabilities(comparison, False))
    training = draw(
        figures.training_loss(comparison), label_figures.f1_by_epoch(comparison), figures.learning_rate(comparison)
    )
    return [
        Section("methods", "Methods", "Methods", _method_table(comparison)),
        Section("classes", "Recall and precision against frequency", "Classes", by_frequency),
        Section("f1", "F1 of each class", "F1", draw(label_figures.f1_by_class(comparison))),
        Section("probabilities", "Predicted probabilities in head and tail", "Probabilities", histograms),
        Section(
            "ratios",
            "Ratios that labels are masked to",
            "Ratios",
            draw(label_figures.positive_ratios(comparison)),
            is_wide=False,
        ),
        _distribution(comparison, draw),
        Section("training", "Training", "Training", training),
        Section("settings", "Recipe and environment", "Settings", _settings(comparison)),
    ]


_TAU_WARNING = (
    "<p>What <code>adjust_logits</code> makes of the stored logits of plain cross-entropy. <strong>Measured on the "
    "test set, for analysis only</strong>: choose tau on held-out data, or take tau = 1.</p>"
)
_TRAINING_NOTE = "<p>Losses of different methods are on different scales: compare their shape, not their height.</p>"


_DISTANCE_NOTE = (
    "<p>How far the farthest sample of the same class is, on three scales. What shrinks all embeddings lowers the "
    "first, what moves them away from the origin the second; only the third says how compact classes are against "
    "what separates them.</p>"
)


def _section(section: Section) -> str:
    width = "wide" if section.is_wide else "half"
    return (
        f'<section id="{section.key}" class="card {width}" aria-labelledby="{section.key}-title">'
        f'<h2 id="{section.key}-title">{html.escape(section.title)}</h2>{section.body}</section>\n'
    )


def _lead(comparison: Comparison) -> str:
    """The main finding in words."""
    best, reference = comparison.best, comparison.reference
    value = best.metric(comparison.main_metric)
    name = "mean F1" if comparison.is_multilabel else "balanced accuracy"
    sentences = [f"<strong>{_label(best)}</strong>: {name} <strong>{percent(value.mean)}</strong>"]
    if reference is None:
        sentences[0] += f"{_spread(comparison, best)}."
        if not comparison.is_multilabel:
            sentences.append(_group_levels(comparison, best))
            sentences.append(_adjustment_hint(comparison))
    else:
        sentences[0] += (
            f", {_gain(comparison, comparison.main_metric)} over {_label(reference)}{_certainty(comparison)}."
        )
        sentences.append(_rare_gains(comparison) if comparison.is_multilabel else _group_gains(comparison))
    return " ".join(sentence for sentence in sentences if sentence)


def _gain(comparison: Comparison, name: str) -> str:
    return f"{points(comparison.difference(name).mean)} points"


def _certainty(comparison: Comparison) -> str:
    difference = comparison.difference(comparison.main_metric)
    if not difference.has_interval:
        return ""
    span = f"95% interval {points(difference.low)} to {points(difference.high)}, {difference.count} seeds"
    doubt = ": within the noise of seeds" if difference.low <= 0 <= difference.high else ""
    return f" ({span}{doubt})"


def _rare_gains(comparison: Comparison) -> str:
    """Where a sample may have several labels: recall and F1 of the rarest classes."""
    sizes = rarest_sizes(comparison.labels.num_classes)[:1]
    told = [
        f"On the {size} rarest classes: recall {points(comparison.difference(f'recall_rarest_{size}').mean)} and "
        f"F1 {points(comparison.difference(f'f1_rarest_{size}').mean)} points."
        for size in sizes
    ]
    return "".join(told)


def _group_gains(comparison: Comparison) -> str:
    gains = {name: comparison.difference(name).mean for name in comparison.labels.groups}
    told = [f"{name} {points(gain)}" for name, gain in reversed(gains.items()) if math.isfinite(gain)]
    return f"By group: {listed(told)} points." if len(told) > 1 else ""


def _group_levels(comparison: Comparison, method: MethodResults) -> str:
    levels = {name: method.metric(name).mean for name in comparison.labels.groups}
    told = [f"{percent(level)} in the {name}" for name, level in levels.items() if math.isfinite(level)]
    return f"Mean accuracy is {listed(told)}." if len(told) > 1 else ""


def _adjustment_hint(comparison: Comparison) -> str:
    curve = comparison.plain and comparison.plain.tau_metric("balanced_accuracy")
    if not curve:
        return ""
    at_one = curve[int(abs(TAUS - 1).argmin())].mean
    gain = points(at_one - curve[0].mean)
    return f"Adjusting the logits after training, with tau = 1, gives {percent(at_one)} ({gain} points)."


def _spread(comparison: Comparison, method: MethodResults) -> str:
    value = method.metric(comparison.main_metric)
    return f" (± {100 * value.half_width:.1f}, {value.count} seeds)" if value.has_interval else ""


def _facts(comparison: Comparison) -> str:
    """The size of the data and of the comparison, at a glance."""
    labels, counts = comparison.labels, comparison.labels.counts
    imbalance = f"{counts.max() / counts.min():,.0f} : 1" if counts.min() else "a class has none"
    seeds = {run.seed for method in comparison.methods for run in method.runs}
    facts = {
        "classes": count(labels.num_classes),
        "training samples": count(labels.num_train),
        "largest to smallest class": imbalance,
        "test samples": count(labels.num_test),
        "method" if len(comparison.methods) == 1 else "methods": count(len(comparison.methods)),
        "seed" if len(seeds) == 1 else "seeds": count(len(seeds)),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{items}</dl>'


@dataclass(frozen=True)
class Column:
    """A column of the table of methods."""

    key: str
    title: str
    short_title: str
    """For a phone, where there is no row of titles."""
    best: Callable[[Iterable[float]], float] | None = None


def _method_table(comparison: Comparison) -> str:
    columns = _label_columns(comparison) if comparison.is_multilabel else _accuracy_columns(comparison)
    best = {column.key: _best_value(comparison, column) for column in columns}
    head = "".join(
        f'<th scope="col" role="columnheader">{title}</th>'
        for title in ("method", *(c.title for c in columns), "seeds")
    )
    ranked = sorted(
        zip(comparison.methods, _method_series(comparison), strict=True),
        key=lambda pair: -pair[0].metric(comparison.main_metric).mean,
    )
    rows = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{_swatch(series)} {_label(method)}</th>'
        + "".join(_metric_cell(method, column, best[column.key]) for column in columns)
        + f'<td role="cell" data-label="seeds">{len(method.runs)}</td></tr>'
        for method, series in ranked
    )
    has_intervals = any(len(method.runs) > 1 for method in comparison.methods)
    means = ": the mean over seeds ± a 95% interval (Student's t)" if has_intervals else ""
    meaning = _LABEL_MEANING if comparison.is_multilabel else _ACCURACY_MEANING
    bold = " The best of a column is bold." if len(comparison.methods) > 1 else ""
    return (
        f"<p>On the test set, in percent{means}.{bold} {meaning}</p>"
        f'<table class="methods" role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table>'
    )


_ACCURACY_MEANING = "Balanced accuracy is the mean over classes; head, torso and tail are its parts."
_LABEL_MEANING = (
    "A label is predicted at a probability of at least 0.5. Precision, recall and F1 are means over classes with "
    "test samples; exact match: all labels of a sample are right; mAP: the mean average precision, without threshold."
)


def _accuracy_columns(comparison: Comparison) -> list[Column]:
    groups = [Column(name, name, name, max) for name in comparison.labels.groups]
    return [
        Column("balanced_accuracy", "balanced accuracy", "balanced", max),
        *groups,
        Column("accuracy", "accuracy", "accuracy", max),
        Column("calibration_error", "calibration error", "calibration", min),
        Column("seconds", "time", "time"),
    ]


def _label_columns(comparison: Comparison) -> list[Column]:
    rare = [
        Column(f"{key}_rarest_{size}", f"{name}, {size} rarest", f"{name}, {size} rarest", max)
        for key, name in (("recall", "recall"), ("f1", "F1"))
        for size in rarest_sizes(comparison.labels.num_classes)[:1]
    ]
    return [
        Column("f1", "F1", "F1", max),
        Column("precision", "precision", "precision", max),
        Column("recall", "recall", "recall", max),
        *rare,
        Column("exact_match", "exact match", "exact match", max),
        Column("mean_average_precision", "mAP", "mAP", max),
        Column("seconds", "time", "time"),
    ]


def _best_value(comparison: Comparison, column: Column) -> float:
    values = [method.metric(column.key).mean for method in comparison.methods]
    finite = [value for value in values if math.isfinite(value)]
    return column.best(finite) if column.best and len(values) > 1 and finite else math.nan


def _metric_cell(method: MethodResults, column: Column, best: float) -> str:
    value = method.metric(column.key)
    text = duration(value.mean) if column.key == "seconds" else with_interval(value)
    # What looks equal is equally good.
    if math.isfinite(best) and f"{100 * value.mean:.1f}" == f"{100 * best:.1f}":
        text = f'<strong>{text}</strong><span class="unseen"> (best)</span>'
    return f'<td role="cell" data-label="{column.short_title}">{text}</td>'


def _changes(comparison: Comparison) -> str:
    """The classes on which the best method differs most from the reference."""
    classes = comparison.largest_changes()
    if not classes or comparison.reference is None:
        return ""
    labels = comparison.labels
    before, after = comparison.reference.class_accuracy(), comparison.best.class_accuracy()
    rows = [
        (
            f"{class_name(labels.names[index])} ({count(labels.counts[index])})",
            f"{percent(before[index])} → {percent(after[index])}",
            points(after[index] - before[index]),
        )
        for index in classes
    ]
    title = f"Classes that change most from {_label(comparison.reference)} to {_label(comparison.best)}"
    table = _table(
        Table(("class (training samples)", "accuracy", "points"), rows), "Classes that change most", most=80
    )
    return f"<h3>{title}</h3>{table}"


def _confusions(comparison: Comparison) -> str:
    """The largest confusions of every method: of the reference and the best in full view, of others folded."""
    shown, folded = [], []
    for method, series in zip(comparison.methods, _method_series(comparison), strict=True):
        name = f"{_swatch(series)} {_label(method)}"
        if method in (comparison.best, comparison.reference):
            shown.append(f"<div><h3>{name}</h3>{_confusion_table(comparison, method)}</div>")
        else:
            folded.append(f"<details><summary>{name}</summary>{_confusion_table(comparison, method)}</details>")
    return (
        "<p>Over all seeds; pairs of few samples rank lower. In brackets: training samples of the class.</p>"
        f'<div class="panels">{"".join(shown)}</div>{"".join(folded)}'
    )


def _confusion_table(comparison: Comparison, method: MethodResults) -> str:
    confusions = method.worst_confusions()
    if not confusions:
        return "<p>No sample is misclassified.</p>"
    rows = "".join(
        f"<tr><td>{_class(comparison, one.true)}</td><td>{_class(comparison, one.predicted)}</td>"
        f'<td><span class="bar" style="--share:{one.share:.3f}"></span>{percent(one.share)} '
        f"<small>{count(one.samples)} of {count(one.of)}</small></td></tr>"
        for one in confusions
    )
    return (
        '<table class="confusions"><thead><tr><th scope="col">true class</th><th scope="col">predicted as</th>'
        f'<th scope="col">share of the true class</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _class(comparison: Comparison, index: int) -> str:
    labels = comparison.labels
    return f"{html.escape(class_name(labels.names[index]))} <small>({count(labels.counts[index])})</small>"


def _settings(comparison: Comparison) -> str:
    """What all runs share, and where they differ."""
    methods = comparison.methods
    keys = list(dict.fromkeys(key for method in methods for key in method.runs[0].settings))
    values = {key: [method.runs[0].settings.get(key, "") for method in methods] for key in keys}
    shared = [(key, found[0]) for key, found in values.items() if len(set(found)) == 1]
    differing = [(key, *found) for key, found in values.items() if len(set(found)) > 1]
    environments = _distinct(run.environment for method in methods for run in method.runs)
    seeds = [(method.label, ", ".join(str(run.seed) for run in method.runs)) for method in methods]
    parts = [
        ("The same in all runs", Table(("setting", "value"), shared)),
        ("Different between methods", Table(("setting", *(method.label for method in methods)), differing)),
        ("Seeds", Table(("method", "seeds"), seeds)),
        ("Environment", Table(("what", "value"), environments)),
    ]
    tables = "".join(f"<h3>{title}</h3>{_table(table, title, MOST_SETTING)}" for title, table in parts if table.rows)
    return f"<details><summary>Every setting of the runs</summary>{tables}</details>"


def _distinct(environments: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    found: dict[str, dict[str, None]] = {}
    for environment in environments:
        for key, value in environment.items():
            found.setdefault(key, {})[value] = None
    return [(key, "; ".join(values)) for key, values in found.items()]


def _figure(figure: Figure) -> str:
    """A picture to be drawn by the script, its summary and its table."""
    height = figure.layout["height"]
    return (
        f'<figure id="figure-{figure.key}">'
        f'<div class="plot" data-figure="{figure.key}" role="img" aria-labelledby="caption-{figure.key}" '
        f'style="min-height:{height}px"></div>'
        f'<figcaption id="caption-{figure.key}">{html.escape(figure.summary)}</figcaption>'
        f"<details><summary>The numbers</summary>{_table(figure.table, 'The numbers of the figure')}</details>"
        "</figure>"
    )


def _legend(series: Sequence[Series]) -> str:
    """Buttons that hide and show a series in all figures; nothing if there is but one."""
    if len(series) < 2:
        return ""
    items = "".join(
        f'<li><button type="button" data-series="{one.key}" aria-pressed="true">{_swatch(one)} '
        f"{html.escape(one.label)}</button></li>"
        for one in series
    )
    return f'<ul class="legend" aria-label="Shown in the figures; press to hide">{items}</ul>'


def _table(table: Table, name: str, most: int = 60) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    head = "".join(f'<th scope="col">{html.escape(clean(title))}</th>' for title in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if place == 0 else f"<td>{cell}</td>"
            for place, cell in enumerate(html.escape(clean(cell, most)) for cell in row)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _swatch(series: Series) -> str:
    """How the series looks, as a small picture."""
    return (
        f'<svg class="swatch" viewBox="0 0 28 12" width="28" height="12" aria-hidden="true" '
        f'style="color:var(--{series.color})"><line x1="0" y1="6" x2="28" y2="6" '
        f'stroke-dasharray="{SWATCH_DASHES[series.dash]}"/>{SWATCHES[series.symbol]}</svg>'
    )


def _method_series(comparison: Comparison) -> list[Series]:
    return [Series.of_method(index, method) for index, method in enumerate(comparison.methods)]


def _label(method: MethodResults) -> str:
    return html.escape(clean(method.label))


def _figure_data(drawn: Sequence[Figure]) -> str:
    """The figures as JSON that can't end its script element, whatever its strings hold."""
    data = {figure.key: {"data": figure.traces, "layout": figure.layout} for figure in drawn}
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _security_policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def _inert_in_script(source: str) -> str:
    """JavaScript whose text can't end its script element; line ends as the parser of HTML makes them."""
    return source.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
