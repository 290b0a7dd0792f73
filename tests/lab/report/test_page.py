"""The page: its structure, its words, and that names of others stay inert."""

import dataclasses
import html.parser
import json
import re

import numpy as np
import plotly.graph_objects
import pytest
from plotly.offline import get_plotlyjs

from longtail.lab.report import write_report
from longtail.lab.report.kinds import compare


class Outline(html.parser.HTMLParser):
    """The elements of a page, and whether they nest."""

    empty = frozenset({"meta", "line", "circle", "rect", "path", "br", "img"})

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.open = []
        self.texts = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.empty:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def test_only_runs_with_embeddings_have_their_section(page, tmp_path, make_predictions, make_run, counts):
    assert 'id="embeddings"' in page.read_text()
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(counts))
    write_report([run], tmp_path / "page.html")
    assert 'id="embeddings"' not in (tmp_path / "page.html").read_text()


def test_groups_and_classes_may_be_missing(tmp_path, make_predictions, make_run):
    """No torso, a class without training samples, a class without test samples, a head without class vectors."""
    predictions = make_predictions(np.array([500, 400, 3, 0]), num_samples=90)
    kept = predictions.labels != 2
    predictions = dataclasses.replace(
        predictions,
        logits=predictions.logits[kept],
        scores=predictions.scores[kept],
        labels=predictions.labels[kept],
        weight_norms=None,
    )
    run = make_run(tmp_path / "run", "cross_entropy", 0, predictions, epochs=1)
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'id="labels"' in page
    assert 'id="norms"' not in page
    assert 'id="training"' not in page
    assert "torso" not in compare([run]).labels.groups


def test_a_model_without_errors(tmp_path, make_predictions, make_run, counts):
    perfect = make_predictions(counts, signal=100.0)
    perfect = dataclasses.replace(perfect, labels=perfect.labels.astype(np.int32))
    write_report([make_run(tmp_path / "run", "focal", 0, perfect)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "No sample is misclassified." in page
    assert 'id="adjustment"' not in page


def test_page_is_well_formed_and_labeled(page, figures_of):
    outline = Outline(page.read_text())
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in outline.elements:
        assert attributes.get("aria-labelledby", ids[0]) in ids
        assert attributes.get("href", "#main").removeprefix("#") in ids
    assert [len(outline.all(tag)) for tag in ("h1", "main", "nav", "header", "footer", "title")] == [1] * 6
    assert outline.all("html")[0]["lang"] == "en"
    plots = [attributes for attributes in outline.all("div") if "data-figure" in attributes]
    assert {attributes["data-figure"] for attributes in plots} == figures_of(page.read_text()).keys()
    assert len(outline.all("figure")) == len(outline.all("figcaption")) == len(plots) == 20
    assert outline.texts["title"] == ["Digits"]


def test_page_loads_nothing(page):
    outline = Outline(page.read_text())
    assert not any("src" in attributes for _, attributes in outline.elements)
    assert outline.all("link") == []
    policy = next(a["content"] for a in outline.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert page.read_text().count("* plotly.js v") == 1


def test_lead_says_what_was_found(page, comparison):
    lead = re.search(r'<p class="lead">(.*?)</p>', page.read_text()).group(1)
    accuracy = comparison.best.metric("balanced_accuracy").mean
    gain = comparison.difference("balanced_accuracy")
    assert f"<strong>logit_adjusted</strong>: balanced accuracy <strong>{100 * accuracy:.1f}%</strong>" in lead
    assert f"+{100 * gain.mean:.1f} points over cross_entropy" in lead
    assert f"(95% interval +{100 * gain.low:.1f} to +{100 * gain.high:.1f}, 3 seeds)" in lead
    assert f"tail +{100 * comparison.difference('tail').mean:.1f}" in lead


def test_lead_admits_what_seeds_do_not_tell(tmp_path, make_predictions, make_run, make_comparison, counts):
    same = {"cross_entropy": {"bias": 0.1}, "logit_adjusted": {"bias": 0.1, "signal": 3.001}}
    runs = make_comparison(tmp_path, methods=same, seeds=(0, 1))
    shuffled = [
        make_run(tmp_path / "other", "logit_adjusted", 1, make_predictions(counts, bias=0.1, seed=5, signal=2.9))
    ]
    write_report([*runs[:3], *shuffled], tmp_path / "page.html")
    assert "within the noise of seeds" in (tmp_path / "page.html").read_text()


def test_lead_of_a_single_run(tmp_path, runs):
    write_report(runs[:1], tmp_path / "page.html")
    lead = re.search(r'<p class="lead">(.*?)</p>', (tmp_path / "page.html").read_text()).group(1)
    only = compare(runs[:1]).best
    assert f"{100 * only.metric('tail').mean:.1f}% in the tail" in lead
    at_one = only.tau_metric("balanced_accuracy")[8].mean
    assert f"with tau = 1, gives {100 * at_one:.1f}%" in lead


def test_table_has_the_best_in_bold(page, comparison):
    rows = re.findall(r'<tr role="row"><th scope="row".*?</tr>', page.read_text())
    names = [re.search(r"</svg> (\w+)</th>", row).group(1) for row in rows]
    ranked = sorted(comparison.methods, key=lambda method: -method.metric("balanced_accuracy").mean)
    assert names == [method.label for method in ranked]
    value = ranked[0].metric("balanced_accuracy")
    assert f"<strong>{100 * value.mean:.1f} ± {100 * value.half_width:.1f}</strong>" in rows[0]
    errors = [method.metric("calibration_error").mean for method in ranked]
    assert f"<strong>{100 * min(errors):.1f}" in rows[int(np.argmin(errors))]


def test_tau_is_said_to_be_measured_on_the_test_set(page):
    assert "Measured on the test set, for analysis only" in page.read_text()


def test_names_of_others_are_inert(hostile_page, figures_of):
    text = hostile_page.read_text()
    outline = Outline(text)
    assert outline.open == []
    assert outline.all("img") == []
    assert len(outline.all("script")) == 3
    assert "\u202e" not in text
    shown = json.dumps(figures_of(text), ensure_ascii=False)
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "'broken'" in text


def test_reports_of_many_classes_are_small(tmp_path, make_comparison, figures_of, long_tail_counts, method_options):
    counts = long_tail_counts(3100, 5000, 2500)
    methods = {name: method_options[name] for name in ("cross_entropy", "logit_adjusted")}
    runs = make_comparison(tmp_path, counts, methods, seeds=(0,), num_samples=800, signal=6.0)
    write_report(runs, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    longest = max(len(trace.get("x", [])) for figure in figures_of(text).values() for trace in figure["data"])
    assert longest <= 300
    assert len(text) - len(get_plotlyjs()) < 150_000


def test_points_of_a_hundred_classes_name_their_class(tmp_path, make_comparison, figures_of, long_tail_counts):
    runs = make_comparison(tmp_path, counts=long_tail_counts(100, 500, 100), seeds=(0,), num_samples=1000)
    write_report(runs, tmp_path / "page.html")
    traces = figures_of((tmp_path / "page.html").read_text())["class-accuracy"]["data"]
    points = next(trace for trace in traces if trace["mode"] == "markers")
    assert points["customdata"][0] == "class 0<br>500 training samples"
    assert len(points["x"]) == 100
    assert [trace["mode"] for trace in traces].count("lines+markers") == len(runs)


def luminance(color):
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_stand_out(scheme, color_schemes):
    """WCAG 2: text 4.5 to 1, marks of figures 3 to 1."""
    colors = color_schemes()[scheme]

    def contrast(one, other):
        high, low = sorted((luminance(colors[one]), luminance(colors[other])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for text in ("ink", "muted", "accent"):
        assert min(contrast(text, "card"), contrast(text, "page")) >= 4.5, text
    assert contrast("accent", "tint") >= 4.5
    for mark in (name for name in colors if name.startswith("method-") or name in ("head", "torso", "tail", "faint")):
        assert contrast(mark, "card") >= 3, mark


def test_figures_are_valid_and_their_colors_defined(page, hostile_page, figures_of, color_schemes):
    light, dark = color_schemes().values()
    assert light.keys() == dark.keys()

    def painted(value, key=""):
        if isinstance(value, dict):
            return {name: painted(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [painted(item) if isinstance(item, dict) else item for item in value]
        if isinstance(value, str) and key.endswith("color") and value.startswith("@"):
            return light[value[1:].split()[0]]
        return value

    for text in (page.read_text(), hostile_page.read_text()):
        for key, figure in figures_of(text).items():
            built = plotly.graph_objects.Figure(painted(figure))
            assert len(built.data) == len(figure["data"]) > 0, key
