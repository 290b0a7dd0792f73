"""The page: its structure, its words, and that names of others stay inert."""

import dataclasses
import hashlib
import html.parser
import itertools
import json
import re
from importlib import resources

import numpy as np
import plotly.graph_objects
import pytest

from longtail.lab.report import read_runs, write_report
from longtail.lab.report.figures.drawing import Series, series_of_groups, series_of_methods
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
    assert page.read_text().count("* plotly.js (basic - minified) v") == 1


def lead_of(path):
    return re.search(r'<p class="lead">(.*?)</p>', path.read_text(), re.DOTALL).group(1)


def test_lead_names_what_seeds_cannot_tell_apart_and_the_price(page, comparison):
    best, other = comparison.ranked[:2]
    gap = comparison.difference("balanced_accuracy", best, other)
    assert gap.low <= 0 <= gap.high
    gain = comparison.difference("balanced_accuracy")
    lead = lead_of(page)
    assert "<strong>logit_adjusted and posthoc_adjusted</strong> are best, and 3 seeds cannot tell them apart" in lead
    assert f"logit_adjusted: +{100 * gain.mean:.1f} points over cross_entropy" in lead
    assert f"(95% interval +{100 * gain.low:.1f} to +{100 * gain.high:.1f}, 3 seeds)" in lead
    assert f"Gain: tail +{100 * comparison.difference('tail').mean:.1f} and torso +" in lead
    assert f"Price: head −{-100 * comparison.difference('head').mean:.1f} points." in lead
    assert "<code>loss = MarginCrossEntropy(margins.logit_adjusted(prior))</code>" in page.read_text()


def test_lead_names_a_winner_that_is_one(tmp_path, make_comparison, method_options):
    methods = {name: method_options[name] for name in ("cross_entropy", "class_balanced")}
    write_report(make_comparison(tmp_path, methods=methods), tmp_path / "page.html")
    assert "<strong>class_balanced</strong> is best: balanced accuracy" in lead_of(tmp_path / "page.html")
    assert "class_weights=weights.effective_number(prior)" in (tmp_path / "page.html").read_text()


def test_lead_names_no_winner_where_seeds_do_not_tell(tmp_path, make_predictions, make_run, make_comparison, counts):
    same = {"cross_entropy": {"bias": 0.1}, "logit_adjusted": {"bias": 0.1, "signal": 3.001}}
    runs = make_comparison(tmp_path, methods=same, seeds=(0, 1))
    shuffled = [
        make_run(tmp_path / "other", "logit_adjusted", 1, make_predictions(counts, bias=0.1, seed=5, signal=2.9))
    ]
    write_report([*runs[:3], *shuffled], tmp_path / "page.html")
    lead = lead_of(tmp_path / "page.html")
    assert lead.startswith("<strong>Nothing is clearly better than ")
    assert "To use it" not in (tmp_path / "page.html").read_text()


def test_one_seed_names_no_winner(tmp_path, make_comparison):
    write_report(make_comparison(tmp_path, seeds=(0,)), tmp_path / "page.html")
    assert lead_of(tmp_path / "page.html").startswith("<strong>No winner with one seed</strong>: highest")


def test_lead_of_a_single_run(tmp_path, runs):
    write_report(runs[:1], tmp_path / "page.html")
    lead = lead_of(tmp_path / "page.html")
    only = compare(runs[:1]).best
    assert f"{100 * only.metric('tail').mean:.1f}% in the tail" in lead
    at_one = only.tau_metric("balanced_accuracy")[8].mean
    assert f"with tau = 1, gives {100 * at_one:.1f}%" in lead


def test_many_methods_are_dots_and_the_best_three_and_the_baseline_are_shown(tmp_path, make_comparison, figures_of):
    methods = {"cross_entropy": {"bias": 1.0}, "posthoc_adjusted": {"bias": 1.0, "posthoc": True}}
    names = ("logit_adjusted", "adaptive", "equalized", "focal", "class_balanced")
    methods |= {name: {"bias": 0.2 * place} for place, name in enumerate(names)}
    write_report(make_comparison(tmp_path, methods=methods, seeds=(0, 1)), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    groups = figures_of(text)["groups"]["data"]
    assert [trace["mode"] for trace in groups] == ["markers"] * 4
    ranked = compare(read_runs([tmp_path])).ranked
    assert groups[0]["y"] == [method.label for method in reversed(ranked)]
    assert groups[0]["x"] == sorted(groups[0]["x"])
    buttons = re.findall(r'data-series="(method-\d)" aria-pressed="(true|false)"', text)
    places = {f"method-{i}": method for i, method in enumerate(compare(read_runs([tmp_path])).methods)}
    shown = {places[key].label for key, pressed in buttons if pressed == "true"}
    assert shown == {"cross_entropy", *(method.label for method in ranked[:3])}
    assert "the best three of 7 methods" in text


def test_few_classes_go_by_their_names(tmp_path, make_predictions, make_run, figures_of):
    runs = [
        make_run(
            tmp_path / name, name, 0, make_predictions(np.array([900, 60]), names=["healthy", "sick"], **options)
        )
        for name, options in (("cross_entropy", {"bias": 1.0}), ("posthoc_adjusted", {"bias": 1.0, "posthoc": True}))
    ]
    write_report(runs, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert figures_of(text)["groups"]["data"][0]["x"] == ["all classes", "healthy", "sick"]
    assert "class-accuracy" not in figures_of(text)
    assert re.search(r"Gain: sick \+[\d.]+ points. Price: healthy −", lead_of(tmp_path / "page.html"))


def test_marks_of_neighbors_differ_without_color(comparison):
    marks = [(one.symbol, one.dash, one.pattern) for one in series_of_methods(comparison)]
    assert all(a != b for one, two in itertools.pairwise(marks) for a, b in zip(one, two, strict=True))
    groups = [(one.symbol, one.dash, one.pattern) for one in series_of_groups(comparison.labels)]
    assert len({symbol for symbol, _, _ in groups}) == len({dash for _, dash, _ in groups}) == len(groups) == 3
    many = [Series.of_method(index, comparison.methods[0]) for index in range(100)]
    assert len({(one.color, one.symbol, one.dash) for one in many}) == 100


def test_no_bars_stand_on_a_logarithmic_scale(page, hostile_page, figures_of):
    for path in (page, hostile_page):
        for key, figure in figures_of(path.read_text()).items():
            is_log = any(axis.get("type") == "log" for name, axis in figure["layout"].items() if "axis" in name)
            assert not is_log or all(trace["type"] == "scatter" for trace in figure["data"]), key


def test_sparse_bins_of_confidence_are_pooled(comparison, figures_of, page):
    for trace, method in zip(
        figures_of(page.read_text())["calibration"]["data"][1:], comparison.methods, strict=True
    ):
        total = int(method.test_counts().sum())
        assert sum(trace["customdata"]) == pytest.approx(1, abs=1e-3)
        assert min(trace["customdata"]) * total >= 19.9
        assert len(trace["x"]) > 3


def test_intervals_stay_between_0_and_100_percent(tmp_path, make_predictions, make_run, figures_of, counts):
    runs = [
        make_run(tmp_path / str(s), "focal", s, make_predictions(counts, signal=6 + 3 * s, seed=s)) for s in (0, 1)
    ]
    write_report(runs, tmp_path / "page.html")
    for trace in figures_of((tmp_path / "page.html").read_text())["groups"]["data"]:
        above = trace["error_y"]["array"]
        assert max(trace["error_y"].get("arrayminus", above)) > 0
        assert all(mean + end <= 1.0001 for mean, end in zip(trace["y"], above, strict=True))


def test_the_recipe_gives_the_title(tmp_path, make_predictions, make_run, counts):
    run = make_run(tmp_path / "run", "focal", 0, make_predictions(counts))
    write_report([run], tmp_path / "page.html")
    assert "<h1>example</h1>" in (tmp_path / "page.html").read_text()
    described = dataclasses.replace(run, recipe=run.recipe | {"description": "Digits & more"})
    write_report([described], tmp_path / "page.html")
    assert "<h1>Digits &amp; more</h1>" in (tmp_path / "page.html").read_text()


def test_a_half_section_without_a_partner_is_wide(page):
    kinds = re.findall(r'<section id="[\w-]+" class="card (wide|half)"', page.read_text())
    runs = ["".join(group) for group in re.findall(r"(?:half,)+", ",".join(kinds) + ",")]
    assert runs
    assert all(run.count("half") % 2 == 0 for run in runs)


def test_the_vendored_script_is_the_published_one():
    folder = resources.files("longtail.lab.report").joinpath("vendor")
    source = folder.joinpath("plotly-basic.min.js").read_bytes()
    published = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(source).hexdigest() == published
    assert folder.joinpath("plotly-LICENSE.txt").read_text().startswith("MIT License")


def test_table_has_the_best_in_bold(page, comparison):
    rows = re.findall(r'<tr role="row"><th scope="row".*?</tr>', page.read_text())
    names = [re.search(r"</svg> <span>(\w+)</span></span></th>", row).group(1) for row in rows]
    ranked = sorted(comparison.methods, key=lambda method: -method.metric("balanced_accuracy").mean)
    assert names == [method.label for method in ranked]
    value = ranked[0].metric("balanced_accuracy")
    whole = '<strong><span class="whole">'
    assert f"{whole}{100 * value.mean:.1f} ± {100 * value.half_width:.1f}</span></strong>" in rows[0]
    errors = [method.metric("calibration_error").mean for method in ranked]
    assert f"{whole}{100 * min(errors):.1f}" in rows[int(np.argmin(errors))]


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
    assert len(text) < 1_500_000


def test_points_of_a_hundred_classes_name_their_class(tmp_path, make_comparison, figures_of, long_tail_counts):
    runs = make_comparison(tmp_path, counts=long_tail_counts(100, 500, 100), seeds=(0,), num_samples=1000)
    write_report(runs, tmp_path / "page.html")
    traces = figures_of((tmp_path / "page.html").read_text())["class-accuracy"]["data"]
    points = next(trace for trace in traces if trace["mode"] == "markers")
    assert points["customdata"][0] == "class 0<br>500 training samples"
    assert len(points["x"]) == 100
    assert [trace["mode"] for trace in traces].count("lines+markers") == len(runs)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_stand_out(scheme, color_schemes, contrast):
    """WCAG 2: text 4.5 to 1, marks of figures 3 to 1."""
    colors = color_schemes()[scheme]
    for text in ("ink", "muted", "accent"):
        assert min(contrast(colors[text], colors[place]) for place in ("card", "page")) >= 4.5, text
    assert contrast(colors["accent"], colors["tint"]) >= 4.5
    for mark in (name for name in colors if name.startswith("method-") or name in ("head", "torso", "tail", "faint")):
        assert contrast(colors[mark], colors["card"]) >= 3, mark


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
