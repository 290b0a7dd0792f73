"""Tables of single experiments, from the rows of ``longtail reproduce`` and of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from longtail.lab.runs.statistics import Estimate, estimate
from site_pages.markdown import table
from site_pages.rows import EXTREME_SETS, Row, group_by_method, group_rows, read_rows

EXTREME_MEASURES = {
    **{f"{measure}@{k}": f"{measure}@{k}" for measure in ("P", "PSP") for k in (1, 3, 5)},
    "tail R@10": "tail R@10",
}
EXTREME_COLUMNS = EXTREME_MEASURES | {
    "train_cpu_s": "training, s",
    "predict_cpu_s": "prediction, s",
    "model_mb": "model, MB",
}
"""Columns of the table of extreme classification, with their titles."""
MASKING_COLUMNS = {
    "recall": "recall",
    "recall_rarest_3": "recall, 3 rarest",
    "f1": "F1",
    "f1_rarest_3": "F1, 3 rarest",
    "exact_match": "exact match",
}
"""Columns of the paper's Table 1 that are shown."""


def slices_table(path: Path) -> str:
    """Recall by slice and precision of ways to sample negatives, from rows of ``longtail reproduce delicious``."""
    names = [*(f"{group} R@{k}" for k in (1, 10) for group in ("head", "torso", "tail")), "P@1", "PSP@1"]
    body = []
    for scheme, members in group_rows(read_rows(path), "sampling", "weighting").items():
        values = [estimate(float(row[name]) for row in members) for name in names]
        body.append([", ".join(scheme), *(f"{value.mean:.1f} ± {value.half_width:.1f}" for value in values)])
    return table(["negatives, weighting", *names], body)


def extreme_tables(path: Path) -> str:
    """One table per data set of extreme classification, from rows of ``benchmarks/extreme_table.py``."""
    parts = []
    for (name,), rows in group_rows(read_rows(path), "set").items():
        body = []
        for (model,), members in group_rows(rows, "model").items():
            means = {column: estimate(float(row[column]) for row in members).mean for column in EXTREME_COLUMNS}
            cells = [f"{value:.{1 if column in EXTREME_MEASURES else 2}f}" for column, value in means.items()]
            body.append([f"{model}, {len(members)} seeds" if len(members) > 1 else model, *cells])
        parts.append(f"**{EXTREME_SETS.get(name, name)}**\n\n" + table(["model", *EXTREME_COLUMNS.values()], body))
    return "\n\n".join(parts)


def held_out_table(path: Path) -> str:
    """R@10 of rare labels on parts of the training samples, from ``benchmarks/extreme_table.py --held-out``."""
    rows = read_rows(path)
    models = list(dict.fromkeys(row["model"] for row in rows))
    body = []
    for (name,), members in group_rows(rows, "set").items():
        by_model = {model: found for (model,), found in group_rows(members, "model").items()}
        values = [estimate(float(row["tail R@10"]) for row in by_model[model]) for model in models]
        parts = len({row["seed"] for row in members})
        title = EXTREME_SETS.get(name, name).split(":")[0]
        body.append([title, str(parts), *(f"{value.mean:.1f} ± {value.half_width:.1f}" for value in values)])
    return table(["tail R@10", "parts", *models], body)


def stream_table(path: Path) -> str:
    """What makes a step cheaper on data of AmazonCat-13K's shape, from rows of ``benchmarks/extreme_stream.py``."""
    rows = [row for row in read_rows(path) if row["part"] == "step"]
    body = [[row["name"], f"{float(row['seconds']):.3f}", row["times_faster"], row["epoch_hours"]] for row in rows]
    return table(["step", "seconds", "times as fast", "epoch, hours"], body)


def index_table(path: Path) -> str:
    """Recall and speed of indexes of label vectors, from rows of ``benchmarks/extreme_index.py``."""
    columns = ("labels", "depth", "recall@10", "ms_per_query", "exact_ms_per_query", "times_faster", "build_s")
    header = ["index", "labels", "depth", "recall@10", "ms a query", "exact, ms", "times as fast", "build, s"]
    return table(header, [[row["index"], *(row[column] for column in columns)] for row in read_rows(path)])


def sharded_table(path: Path) -> str:
    """What a head costs whose rows are shared out to processes, from rows of ``benchmarks/sharded.py``."""
    header = [
        "labels x numbers",
        "processes",
        "",
        "seconds",
        "of the processor",
        "peak of a process, GiB",
        "GB",
        "result",
    ]
    columns = ("processes", "what", "seconds", "cpu_seconds", "peak_gib_per_process", "gigabytes", "value")
    body = [
        [f"{int(row['labels']):,} x {row['size']}", *(row[column] for column in columns)] for row in read_rows(path)
    ]
    return table(header, body)


def sharded_needs(path: Path, num_labels: int = 10**8, size: int = 128) -> str:
    """What more labels need on more processes: rows of the largest head and of the smallest one, in proportion."""
    rows = [row for row in read_rows(path) if row["size"] == str(size)]
    small, large = (find(rows, key=lambda row: int(row["labels"]))["labels"] for find in (min, max))
    measured = {row["what"].partition(",")[0]: row for row in rows if row["labels"] == large}
    growth, processes = num_labels / int(large), int(measured["load"]["processes"])
    peaks = {row["labels"]: _beside_rows(row) for row in rows if row["what"] == "load"}
    per_label = (peaks[large] - peaks[small]) / (int(large) - int(small))
    beside = peaks[large] + per_label * (num_labels - int(large))
    body = []
    for number in (8, 16, 32, 64):
        memory = 4 * num_labels * (size + 1) / number + beside  # a number per label is Adagrad's
        share = growth * processes / number
        parts = (f"{float(measured[name]['cpu_seconds']) * share:.0f}" for name in ("save", "load", "topk"))
        saved = float(measured["save"]["gigabytes"]) * growth / number
        body.append([str(number), f"{memory / 1e9:.1f}", f"{beside / 1e9:.1f}", f"{saved:.1f}", *parts])
    header = ["processes", "memory of each, GB", "of it for all labels", "files of each, GB"]
    return table([*header, "save, s", "load, s", "exact topk, s"], body)


def _beside_rows(row: Row) -> float:
    """Bytes of a process at its peak beside its share of the class vectors and of Adagrad's numbers."""
    own = 4 * int(row["labels"]) * (int(row["size"]) + 1) / int(row["processes"])
    return float(row["peak_gib_per_process"]) * 2**30 - own


def recommendation_table(path: Path) -> str:
    """R@20 of every way to sample negatives, from rows of ``longtail reproduce gowalla``."""
    body = [
        [
            f"{row['sampling']}, {row['weighting']}",
            row["epochs"],
            *(f"{float(row[name]):.4f}" for name in ("recall", "rare_recall")),
        ]
        for row in read_rows(path)
    ]
    return table(["negatives, weighting", "epochs", "R@20", "R@20, rarest third"], body)


def label_losses_table(path: Path) -> str:
    """F1 of losses for multi-label data at 0.5 and with tuned thresholds, with the settings that a holdout chose."""
    rows = [row for row in read_rows(path) if row["chosen"] == "True"]
    columns = ("macro_f1", "tuned_macro_f1", "rarest_f1", "tuned_rarest_f1", "micro_f1", "tuned_micro_f1", "map")
    header = [
        "method",
        "settings",
        "macro-F1 at 0.5",
        "tuned",
        "30 rarest at 0.5",
        "tuned",
        "micro-F1 at 0.5",
        "tuned",
    ]
    body = []
    for method, members in group_by_method(rows).items():
        found = [estimate(100 * float(row[column]) for row in members) for column in columns]
        cells = [f"{value.mean:.1f}&nbsp;±&nbsp;{value.half_width:.1f}" for value in found]
        options = json.loads(members[0]["settings"])
        settings = ", ".join(f"`{name}={value!r}`" for name, value in options.items())
        body.append([f"[`{method}`](methods/{method}.md)", settings, *cells])
    return table([*header, "mAP"], body)


def masking_table(path: Path) -> str:
    """Table 1 of partial label masking, from rows of ``longtail reproduce plm``; in brackets the paper's values."""
    return _masking_rows(path, ("1",), MASKING_COLUMNS)


def masking_settings_table(path: Path) -> str:
    """Tables 5 and 6, from the same rows."""
    return _masking_rows(path, ("5", "6"), {"error": "error"})


def _masking_rows(path: Path, numbers: Sequence[str], columns: Mapping[str, str]) -> str:
    cells = group_rows([row for row in read_rows(path) if row["table"] in numbers], "row", "column")
    body = []
    for name in dict.fromkeys(row for row, _ in cells):
        found = {column: cells[name, column] for column in columns}
        estimates = [estimate(100 * float(row["value"]) for row in found[column]) for column in columns]
        reported = [100 * float(found[column][0]["reported"]) for column in columns]
        body.append([name, *(f"{_interval(e)} ({r:.1f})" for e, r in zip(estimates, reported, strict=True))])
    return table(["", *columns.values()], body)


def _interval(value: Estimate) -> str:
    return f"{value.mean:.1f}&nbsp;±&nbsp;{value.half_width:.1f}" if value.has_interval else f"{value.mean:.1f}"


def processes_table(path: Path) -> str:
    """What each method guarantees on several processes, and the largest difference that was measured."""
    rows = read_rows(path)
    body = [[f"`{row['method']}`", row["guarantee"], row["difference"]] for row in rows]
    return table(["method", "two processes compute", "largest difference"], body)
