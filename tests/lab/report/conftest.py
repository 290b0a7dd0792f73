"""Made-up runs and their pages, for the tests of the report."""

import json
import re
from importlib import resources

import numpy as np
import pytest
import torch

from longtail import ClassPrior
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.report import read_runs, write_report
from longtail.lab.report.kinds import compare
from longtail.lab.runs.folder import (
    Predictions,
    append_metrics,
    environment,
    load_run,
    save_embeddings,
    write_json,
    write_summary,
)
from longtail.posthoc import adjust_logits

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">%{x}<b>&amp;</b>\n\u202e'"


def long_tail_counts(num_classes, largest, ratio):
    steps = np.arange(num_classes) / (num_classes - 1)
    return np.floor(largest * ratio**-steps).astype(np.int64)


COUNTS = long_tail_counts(10, 400, 50)
METHODS = {
    "cross_entropy": {"bias": 1.0},
    "posthoc_adjusted": {"bias": 1.0, "posthoc": True},
    "logit_adjusted": {"bias": 0.1, "signal": 3.2},
    "class_balanced": {"bias": 0.6},
}


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
    """Gaussian clouds, one per class: as many training samples as it has, at most 12, and its test samples."""
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
    save_embeddings(data, run.path / "embeddings.safetensors")
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
    predictions.save(folder / "predictions.safetensors")
    write_summary(folder, {"method": method, "seed": seed, "seconds": 14.4 + seed, "metrics": {}})
    return load_run(folder)


def make_comparison(folder, counts=COUNTS, methods=METHODS, seeds=(0, 1, 2), **more):
    return [
        make_run(folder / f"{method}-{seed}", method, seed, make_predictions(counts, seed=seed, **(options | more)))
        for method, options in methods.items()
        for seed in seeds
    ]


def figures_of(text):
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return json.loads(data.group(1))


def color_schemes():
    css = resources.files("longtail.lab.report").joinpath("templates", "page.css").read_text()
    light, dark = re.findall(r":root(?:[^{]*)\{([^}]*--page[^}]*)\}", css)
    return {
        name: dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for name, block in (("light", light), ("dark", dark))
    }


@pytest.fixture(scope="session", name="make_predictions")
def make_predictions_fixture():
    return make_predictions


@pytest.fixture(scope="session", name="make_embeddings")
def make_embeddings_fixture():
    return make_embeddings


@pytest.fixture(scope="session", name="keep_embeddings")
def keep_embeddings_fixture():
    return keep_embeddings


@pytest.fixture(scope="session", name="make_run")
def make_run_fixture():
    return make_run


@pytest.fixture(scope="session", name="make_comparison")
def make_comparison_fixture():
    return make_comparison


@pytest.fixture(scope="session", name="figures_of")
def figures_of_fixture():
    return figures_of


@pytest.fixture(scope="session", name="color_schemes")
def color_schemes_fixture():
    return color_schemes


@pytest.fixture(scope="session", name="long_tail_counts")
def long_tail_counts_fixture():
    return long_tail_counts


@pytest.fixture(scope="session")
def counts():
    return COUNTS


@pytest.fixture(scope="session")
def method_options():
    return METHODS


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    made = make_comparison(tmp_path_factory.mktemp("runs"))
    for run in made:
        if run.method in ("cross_entropy", "logit_adjusted") and run.seed < 2:
            spread = 1.0 if run.method == "cross_entropy" else 0.5
            keep_embeddings(run, make_embeddings(run.predictions, spread, run.seed))
    return made


@pytest.fixture(scope="session")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="session")
def page(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_report(runs, path, title="Digits")
    return path


@pytest.fixture(scope="session")
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
