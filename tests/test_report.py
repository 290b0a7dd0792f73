"""The report: what it computes, what it refuses, and what a browser makes of it."""

import base64
import contextlib
import dataclasses
import fcntl
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import resources

import numpy as np
import plotly.graph_objects
import pytest
import scipy.stats
import torch
from plotly.offline import get_plotlyjs

from longtail import ClassPrior
from longtail.diagnostics import intraclass_distances, logit_margins
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.formats.arrays import save_arrays
from longtail.lab.report import read_runs, write_report
from longtail.lab.report.digest import TAUS, compare, estimate
from longtail.lab.report.embedded import map_to_plane
from longtail.lab.runs.folder import Predictions, append_metrics, environment, load_run, write_json
from longtail.posthoc import adjust_logits

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">%{x}<b>&amp;</b>\n\u202e'"


def long_tail_counts(num_classes, largest, ratio):
    steps = np.arange(num_classes) / (num_classes - 1)
    return np.floor(largest * ratio**-steps).astype(np.int64)


def make_predictions(counts, bias=1.0, seed=0, num_samples=400, names=None, signal=3.0, posthoc=False):
    """Gaussian logits: a signal for the true class, a weaker one for a similar class, and ``bias`` times log pi."""
    generator = np.random.default_rng(seed)
    num_classes = len(counts)
    prior = ClassPrior.from_counts(np.maximum(counts, 1))
    labels = np.arange(num_samples) % num_classes
    logits = generator.standard_normal((num_samples, num_classes), dtype=np.float32)
    rows = np.arange(num_samples)
    logits[rows, labels] += signal
    logits[rows, (labels + 1) % num_classes] += signal / 2
    logits += np.float32(bias) * prior.log_probs.numpy().astype(np.float32)
    return Predictions(
        logits=logits,
        scores=adjust_logits(logits, prior) if posthoc else logits,
        labels=labels.astype(np.int64),
        train_counts=counts,
        class_names=tuple(names or (f"class {index}" for index in range(num_classes))),
        weight_norms=(1 + bias * 0.1 * np.log(np.maximum(counts, 1))).astype(np.float32),
    )


def make_embeddings(predictions, spread=1.0, seed=0):
    """Gaussian clouds, one a class: as many training samples as it has, at most 12, and its test samples."""
    generator = torch.Generator().manual_seed(seed)
    num_classes = len(predictions.class_names)
    centers = 4 * torch.eye(num_classes)
    counts = torch.from_numpy(predictions.train_counts).clamp(max=12)
    labels = torch.repeat_interleave(torch.arange(num_classes), counts), torch.from_numpy(predictions.labels)
    train, test = (
        Split(centers[part] + spread * torch.randn(len(part), num_classes, generator=generator), part)
        for part in labels
    )
    return Dataset("embeddings", train, test, predictions.class_names)


def keep_embeddings(run, data):
    with (run.path / "embeddings.npz").open("wb") as file:
        save_arrays(data, file)
    return run


def make_run(folder, method, seed, predictions, epochs=12, settings=None):
    """A run folder as training leaves it."""
    folder.mkdir(parents=True)
    lines = ['name = "example"', "[data]", 'source = "gaussians"', "[train]", f"epochs = {epochs}", f"seed = {seed}"]
    lines += ["[method]", f"name = {json.dumps(method)}", *(settings or [])]
    (folder / "recipe.toml").write_text("\n".join(lines) + "\n")
    for epoch in range(1, epochs + 1):
        row = {"epoch": epoch, "phase": 1, "learning_rate": 0.1 * (1 - epoch / epochs), "seconds": 1.2}
        row["train_loss"] = 2.0 / epoch + 0.01 * seed
        if epoch % 2 == 0:
            row["balanced_accuracy"] = 0.5 + 0.03 * epoch
        append_metrics(folder / "metrics.jsonl", row)
    write_json(folder / "environment.json", environment())
    predictions.save(folder / "predictions.npz")
    write_json(folder / "summary.json", {"method": method, "seed": seed, "seconds": 14.4 + seed, "metrics": {}})
    return load_run(folder)


COUNTS = long_tail_counts(10, 400, 50)
METHODS = {
    "cross_entropy": {"bias": 1.0},
    "posthoc_adjusted": {"bias": 1.0, "posthoc": True},
    "logit_adjusted": {"bias": 0.1, "signal": 3.2},
    "class_balanced": {"bias": 0.6},
}


def make_comparison(folder, counts=COUNTS, methods=METHODS, seeds=(0, 1, 2), **more):
    return [
        make_run(folder / f"{method}-{seed}", method, seed, make_predictions(counts, seed=seed, **(options | more)))
        for method, options in methods.items()
        for seed in seeds
    ]


AT_3_AND_4 = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, spoken to in its debugging protocol over a pipe."""

    def __init__(self, program, folder):
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        # The protocol wants its pipes at 3 and 4, which may be taken here but not in a new process.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, *map(str, ends), *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._received = b""
        self._last_id = 0
        self._session = None
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next_message(self):
        while b"\0" not in self._received:
            part = os.read(self._input, 2**20)
            assert part, "Chromium ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        parameters = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(parameters["args"])
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"])
        elif event["method"] == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:")):
                self.complaints.append(url)

    def open(self, path, width=1280, height=900, scheme="light", touch=False):
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.documentElement?.dataset.figures === 'drawn'")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.complaints}"
            time.sleep(0.05)

    def screenshot(self, path, whole=True):
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        os.close(self._output)
        os.close(self._input)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"needs one of {', '.join(names)} to open the page")
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


# What is computed


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = make_comparison(tmp_path_factory.mktemp("runs"))
    for run in made:
        if run.method in ("cross_entropy", "logit_adjusted") and run.seed < 2:
            spread = 1.0 if run.method == "cross_entropy" else 0.5
            keep_embeddings(run, make_embeddings(run.predictions, spread, run.seed))
    return made


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs)


def method_of(comparison, label):
    return next(method for method in comparison.methods if method.label == label)


def accuracies(predicted, labels, num_classes):
    return [np.mean(predicted[labels == index] == index) for index in range(num_classes)]


def test_estimate_is_the_t_interval():
    values = [0.81, 0.84, 0.79, 0.9]
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    result = estimate(values)
    assert (result.mean, result.low, result.high) == pytest.approx((np.mean(values), low, high))
    assert (result.count, result.has_interval) == (4, True)


def test_estimate_without_spread():
    assert math.isnan(estimate([0.5]).half_width)
    assert not estimate([0.5]).has_interval
    assert math.isnan(estimate([]).mean)
    assert estimate([0.5, math.nan]).count == 1


def test_metrics_are_those_of_plain_loops(runs, comparison):
    predictions = runs[0].predictions
    predicted = predictions.scores.argmax(axis=1)
    by_class = accuracies(predicted, predictions.labels, 10)
    metrics = method_of(comparison, "cross_entropy").runs[0].metrics
    assert metrics["accuracy"] == pytest.approx(np.mean(predicted == predictions.labels))
    assert metrics["balanced_accuracy"] == pytest.approx(np.mean(by_class))
    head = [value for value, count in zip(by_class, COUNTS, strict=True) if count >= 100]
    tail = [value for value, count in zip(by_class, COUNTS, strict=True) if count <= 20]
    assert (metrics["head"], metrics["tail"]) == pytest.approx((np.mean(head), np.mean(tail)))


def test_metrics_are_those_that_training_stores(runs, comparison):
    from longtail.lab.training.evaluation import score_metrics

    for run in runs[:3]:
        predictions = run.predictions
        stored = score_metrics(
            torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels), predictions.prior
        )
        shown = method_of(comparison, run.method).runs[run.seed].metrics
        assert {name: shown[name] for name in stored} == pytest.approx(stored)


def test_class_accuracy_is_over_all_seeds(runs, comparison):
    expected = np.mean(
        [accuracies(run.predictions.scores.argmax(axis=1), run.predictions.labels, 10) for run in runs[:3]], axis=0
    )
    assert method_of(comparison, "cross_entropy").class_accuracy() == pytest.approx(expected)


def test_tau_curve_adjusts_the_stored_logits(runs, comparison):
    curve = method_of(comparison, "cross_entropy").runs[0].tau_metrics["balanced_accuracy"]
    predictions = runs[0].predictions
    for tau, value in zip(TAUS, curve, strict=True):
        predicted = adjust_logits(predictions.logits, predictions.prior, float(tau)).argmax(axis=1)
        assert value == pytest.approx(np.mean(accuracies(predicted, predictions.labels, 10))), tau


def test_tau_curve_only_of_plain_cross_entropy(comparison):
    adjusted = {method.label for method in comparison.methods if method.runs[0].tau_metrics is not None}
    assert adjusted == {"cross_entropy", "posthoc_adjusted"}
    assert comparison.plain.label == "cross_entropy"


def test_margins_are_those_of_a_loop(runs, comparison):
    predictions = runs[0].predictions
    expected = []
    for scores, label in zip(predictions.scores, predictions.labels, strict=True):
        if label == 9:
            expected.append(scores[label] - max(score for index, score in enumerate(scores) if index != label))
    assert comparison.labels.example("tail").tolist() == [9]
    margins = method_of(comparison, "cross_entropy").runs[0].margins["tail"]
    assert sorted(margins) == pytest.approx(sorted(expected), abs=1e-6)


def test_margins_of_groups_are_those_of_all_their_samples(runs, comparison):
    predictions = runs[0].predictions
    margins = logit_margins(torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels))
    is_tail = COUNTS[predictions.labels] <= 20
    found = method_of(comparison, "cross_entropy").runs[0].group_margins["tail"]
    np.testing.assert_allclose(found, margins.numpy()[is_tail])


def test_embeddings_are_reduced_run_by_run(runs, comparison):
    data = runs[0].load_embeddings()
    method = method_of(comparison, "cross_entropy")
    assert len(method.embeddings) == 2
    found = method.embeddings[0]
    is_tail = torch.from_numpy(COUNTS <= 20)[data.test.labels]
    distances = intraclass_distances(data.test.inputs, data.test.labels)
    assert found.distances["by_class_means"]["tail"] == pytest.approx(float(distances.by_class_means[is_tail].mean()))
    assert found.distances["raw"]["tail"] == pytest.approx(float(distances.raw[is_tail].mean()))
    means = torch.stack([data.train.inputs[data.train.labels == c].mean(0) for c in range(10)])
    nearest = torch.cdist(data.test.inputs, means).argmin(1).numpy()
    right = np.mean(accuracies(nearest, data.test.labels.numpy(), 10))
    assert found.accuracy["nearest_mean"] == pytest.approx(right)
    assert (found.variances <= found.bounds).all()
    tighter = method_of(comparison, "logit_adjusted").embeddings[0]
    assert tighter.distances["by_class_means"]["tail"] < 0.7 * found.distances["by_class_means"]["tail"]
    assert set(found.sample_labels) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
    assert method_of(comparison, "class_balanced").embeddings == ()


def test_only_runs_with_embeddings_have_their_section(page, tmp_path):
    assert 'id="embeddings"' in page.read_text()
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(COUNTS))
    write_report([run], tmp_path / "page.html")
    assert 'id="embeddings"' not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("width", [1, 10])
def test_a_map_is_the_same_again_and_needs_points_that_differ(width):
    points = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    first = map_to_plane(points)
    assert first.shape == (20, 2)
    assert np.array_equal(first, map_to_plane(points))
    assert map_to_plane(points[:5]) is None
    assert map_to_plane(np.ones_like(points)) is None


@pytest.mark.parametrize("change", ["classes", "values", "file"])
def test_embeddings_that_do_not_fit(tmp_path, change):
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(COUNTS))
    data = make_embeddings(run.predictions)
    if change == "classes":
        data = dataclasses.replace(data, class_names=(*data.class_names, "another"))
    if change == "values":
        data.test.inputs[3, 2] = math.nan
    keep_embeddings(run, data)
    if change == "file":
        (run.path / "embeddings.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="embeddings") as caught:
        write_report(read_runs([tmp_path]), tmp_path / "page.html")
    assert str(run.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_worst_confusions_are_those_of_a_loop(runs, comparison):
    pairs = {}
    for run in runs[:3]:
        for label, predicted in zip(run.predictions.labels, run.predictions.scores.argmax(axis=1), strict=True):
            if label != predicted:
                pairs[int(label), int(predicted)] = pairs.get((int(label), int(predicted)), 0) + 1
    # Every class has 120 samples over the seeds, so the largest share is the largest number.
    worst = method_of(comparison, "cross_entropy").worst_confusions()
    assert [one.samples for one in worst] == sorted(pairs.values(), reverse=True)[:10]
    assert all(pairs[one.true, one.predicted] == one.samples and one.of == 120 for one in worst)


def test_sure_confusions_rank_above_those_of_single_samples(tmp_path):
    labels = np.array([0] * 100 + [1])
    logits = np.zeros((101, 3), dtype=np.float32)
    logits[:80, 2] = logits[80:100, 0] = logits[100, 2] = 1
    predictions = Predictions(logits, logits, labels, np.array([50, 5, 5]), ("a", "b", "c"))
    comparison = compare([make_run(tmp_path / "run", "cross_entropy", 0, predictions)])
    worst = comparison.best.worst_confusions()
    assert [(one.true, one.predicted, one.share) for one in worst] == [(0, 2, 0.8), (1, 2, 1.0)]


def test_chunks_change_nothing(runs, comparison, monkeypatch):
    monkeypatch.setattr("longtail.lab.report.digest.CHUNK_ELEMENTS", 70)
    again = compare(runs[:1]).best.runs[0]
    before = method_of(comparison, "cross_entropy").runs[0]
    assert again.metrics == pytest.approx(before.metrics)
    assert again.margins["head"].tolist() == before.margins["head"].tolist()
    assert again.tau_metrics["tail"].tolist() == before.tau_metrics["tail"].tolist()


def test_best_is_held_against_cross_entropy_seed_by_seed(comparison):
    assert (comparison.best.label, comparison.reference.label) == ("logit_adjusted", "cross_entropy")
    pairs = zip(comparison.best.runs, comparison.reference.runs, strict=True)
    expected = estimate(one.metrics["tail"] - two.metrics["tail"] for one, two in pairs)
    assert comparison.difference("tail") == expected


def test_methods_are_in_the_order_of_their_table(comparison):
    assert [method.label for method in comparison.methods] == [
        "cross_entropy",
        "logit_adjusted",
        "class_balanced",
        "posthoc_adjusted",
    ]


def test_recipes_of_one_method_are_told_apart(tmp_path):
    predictions = make_predictions(COUNTS)
    runs = [
        make_run(tmp_path / "a", "logit_adjusted", 0, predictions, settings=["[method.options]", "tau = 1.5"]),
        make_run(tmp_path / "b", "logit_adjusted", 0, predictions, settings=["[method.options]", "tau = 2.0"]),
        make_run(tmp_path / "c", "cross_entropy", 0, predictions),
    ]
    labels = {method.label for method in compare(runs).methods}
    assert labels == {"cross_entropy", "logit_adjusted (tau=1.5)", "logit_adjusted (tau=2.0)"}


def test_groups_and_classes_may_be_missing(tmp_path):
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


def test_a_model_without_errors(tmp_path):
    perfect = make_predictions(COUNTS, signal=100.0)
    perfect = dataclasses.replace(perfect, labels=perfect.labels.astype(np.int32))
    write_report([make_run(tmp_path / "run", "focal", 0, perfect)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "No sample is misclassified." in page
    assert 'id="adjustment"' not in page


# What is refused


def test_no_runs(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="no complete run at or below"):
        read_runs([tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_runs_of_different_data(tmp_path):
    first = make_run(tmp_path / "a", "cross_entropy", 0, make_predictions(COUNTS))
    others = {
        "names": make_predictions(COUNTS, names=[f"kind {index}" for index in range(10)]),
        "counts": make_predictions(COUNTS + 1),
        "number": make_predictions(COUNTS[:5]),
        "tests": make_predictions(COUNTS, num_samples=399),
    }
    for name, predictions in others.items():
        other = make_run(tmp_path / name, "logit_adjusted", 0, predictions)
        with pytest.raises(ValueError, match="must be of the same data") as caught:
            compare([first, other])
        assert "\n" not in str(caught.value)


def test_one_run_twice(tmp_path):
    runs = [make_run(tmp_path / name, "cross_entropy", 0, make_predictions(COUNTS)) for name in "ab"]
    with pytest.raises(ValueError, match="both cross_entropy with seed 0"):
        compare(runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros((400, 9), np.float32)}, r"scores must be numbers of shape \(400, 10\)"),
        ({"logits": np.full((400, 10), np.nan, np.float32)}, "logits must be finite"),
        ({"labels": np.full(400, 10)}, r"labels must be in 0\.\.9"),
        ({"labels": np.full(400, 0.5)}, "labels must be whole numbers"),
        ({"train_counts": np.ones(9, np.int64)}, "train_counts must have one number a class"),
        ({"weight_norms": np.ones(11, np.float32)}, "weight_norms must have one number a class"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, change, message):
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(COUNTS))
    broken = dataclasses.replace(run, predictions=dataclasses.replace(run.predictions, **change))
    with pytest.raises(ValueError, match=message) as caught:
        compare([broken])
    assert str(run.path) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", '{"method": "cross_entropy"}'),
        ("summary.json", "[]"),
        ("summary.json", "{"),
        ("metrics.jsonl", "no json\n"),
        ("metrics.jsonl", '{"train_loss": 1.0}\n'),
        ("metrics.jsonl", "[]\n"),
        ("recipe.toml", "= ="),
        ("predictions.npz", "no archive"),
        ("environment.json", "{"),
    ],
)
def test_broken_run_folder(tmp_path, file, text):
    make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(COUNTS))
    (tmp_path / "run" / file).write_text(text)
    output = tmp_path / "page.html"
    output.write_text("what was there before")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "run"))) as caught:
        write_report(read_runs([tmp_path]), output)
    assert "\n" not in str(caught.value)
    assert output.read_text() == "what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_runs_are_found_once_and_read_late(tmp_path):
    make_run(tmp_path / "deep" / "run", "cross_entropy", 0, make_predictions(COUNTS))
    found = read_runs([tmp_path, tmp_path / "deep" / "run"])
    assert [run.method for run in found] == ["cross_entropy"]


# The page


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


def figures_of(text):
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return json.loads(data.group(1))


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_report(runs, path, title="Digits")
    return path


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    names = [HOSTILE, *(f"{HOSTILE} {index}" for index in range(9))]
    run = make_run(folder / "a", HOSTILE, 0, make_predictions(COUNTS, names=names))
    keep_embeddings(run, make_embeddings(run.predictions))
    make_run(
        folder / "b",
        "cross_entropy",
        0,
        make_predictions(COUNTS, names=names),
        settings=["[method.options]", "a = '<img>'"],
    )
    write_report(read_runs([folder]), folder / "page.html", title=HOSTILE)
    return folder / "page.html"


def test_page_is_well_formed_and_labeled(page):
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


def test_lead_admits_what_seeds_do_not_tell(tmp_path):
    same = {"cross_entropy": {"bias": 0.1}, "logit_adjusted": {"bias": 0.1, "signal": 3.001}}
    runs = make_comparison(tmp_path, methods=same, seeds=(0, 1))
    shuffled = [
        make_run(tmp_path / "other", "logit_adjusted", 1, make_predictions(COUNTS, bias=0.1, seed=5, signal=2.9))
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


def test_names_of_others_are_inert(hostile_page):
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


def test_reports_of_many_classes_are_small(tmp_path):
    counts = long_tail_counts(3100, 5000, 2500)
    methods = {name: METHODS[name] for name in ("cross_entropy", "logit_adjusted")}
    runs = make_comparison(tmp_path, counts, methods, seeds=(0,), num_samples=800, signal=6.0)
    write_report(runs, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    longest = max(len(trace.get("x", [])) for figure in figures_of(text).values() for trace in figure["data"])
    assert longest <= 300
    assert len(text) - len(get_plotlyjs()) < 150_000


def test_points_of_a_hundred_classes_name_their_class(tmp_path):
    runs = make_comparison(tmp_path, counts=long_tail_counts(100, 500, 100), seeds=(0,), num_samples=1000)
    write_report(runs, tmp_path / "page.html")
    traces = figures_of((tmp_path / "page.html").read_text())["class-accuracy"]["data"]
    points = next(trace for trace in traces if trace["mode"] == "markers")
    assert points["customdata"][0] == "class 0<br>500 training samples"
    assert len(points["x"]) == 100
    assert [trace["mode"] for trace in traces].count("lines+markers") == len(runs)


# Colors


def color_schemes():
    css = resources.files("longtail.lab.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root(?:[^{]*)\{([^}]*--page[^}]*)\}", css)
    return {
        name: dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for name, block in (("light", light), ("dark", dark))
    }


def luminance(color):
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_stand_out(scheme):
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


def test_figures_are_valid_and_their_colors_defined(page, hostile_page):
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


# In a browser

STATE = """({
  width: document.documentElement.scrollWidth,
  title: document.title,
  figures: [...document.querySelectorAll("[data-figure]")].map((plot) => ({
    key: plot.dataset.figure,
    traces: [...plot.querySelectorAll(".main-svg .trace")].filter((trace) => trace.querySelector("path")).length,
    width: plot.querySelector(".main-svg")?.getBoundingClientRect().width,
    room: plot.getBoundingClientRect().width,
  })),
})"""


@pytest.mark.parametrize(
    ("width", "scheme", "touch"), [(1280, "light", False), (375, "dark", True)], ids=["desktop", "phone"]
)
def test_figures_are_drawn(browser, page, width, scheme, touch):
    browser.open(page, width=width, scheme=scheme, touch=touch)
    state = browser.evaluate(STATE)
    wanted = figures_of(page.read_text())
    assert len(state["figures"]) == len(wanted) == 20
    for figure in state["figures"]:
        assert figure["traces"] == len(wanted[figure["key"]]["data"]), figure
        assert figure["width"] <= figure["room"] + 1, figure
    assert state["width"] <= width
    assert browser.complaints == []


def test_names_of_others_do_nothing_in_a_browser(browser, hostile_page):
    browser.open(hostile_page, width=375, touch=True)
    state = browser.evaluate(STATE)
    assert state["title"].startswith("</script><img")
    assert browser.evaluate("document.images.length") == 0
    assert state["width"] <= 375
    assert all(figure["traces"] for figure in state["figures"])
    # Plotly shows the name itself, as text.
    assert "</script><im" in browser.evaluate(
        "document.querySelector('[data-figure=label-distribution]').textContent"
    )
    assert browser.complaints == []


def test_a_method_is_hidden_in_all_figures(browser, page):
    browser.open(page)
    count = "document.querySelectorAll('[data-figure=class-accuracy] .scatterlayer .trace').length"
    assert browser.evaluate(count) == 4
    browser.evaluate("document.querySelector('#groups [data-series=method-1]').click()")
    browser.wait_for(f"{count} === 3")
    pressed = "[...document.querySelectorAll('[data-series=method-1]')].map((b) => b.getAttribute('aria-pressed'))"
    assert set(browser.evaluate(pressed)) == {"false"}
    browser.evaluate("document.querySelector('#classes [data-series=method-1]').click()")
    browser.wait_for(f"{count} === 4")
    assert browser.complaints == []


def test_page_is_printed_light_and_narrow(browser, page):
    browser.open(page, scheme="dark")
    browser.evaluate(
        """addEventListener("beforeprint", () => {
          const plot = document.querySelector("[data-figure=groups]");
          window.printed = [plot.layout.width, plot.layout.font.color];
        })"""
    )
    assert len(base64.b64decode(browser.call("Page.printToPDF")["data"])) > 50_000
    assert browser.evaluate("window.printed") == [660, color_schemes()["light"]["ink"]]
    assert (
        browser.evaluate("document.querySelector('[data-figure=groups]').layout.font.color")
        == (color_schemes()["dark"]["ink"])
    )
    assert browser.complaints == []
