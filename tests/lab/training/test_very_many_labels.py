"""Multi-label data with very many labels: rankings, lists of labels, row-sparse steps. Here 40 labels are many."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.data.dataset import Split
from longtail.lab.data.registry import load_data
from longtail.lab.report import read_runs, write_report
from longtail.lab.runs.rankings import Rankings
from longtail.lab.training.comparison import default_methods
from longtail.lab.training.loop import train
from longtail.lab.training.models import BagOfFeatures, Classifier
from longtail.lab.training.optimizers import make_optimizer, make_row_sparse
from longtail.lab.training.ranking import ranking_metrics
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    to_toml,
    with_settings,
)
from longtail.negatives import SampledLinearLoss, importance, uniform

NUM_LABELS, NUM_FEATURES = 40, 90
LONGER = "train.epochs=30"


@pytest.fixture(autouse=True)
def forty_are_many(monkeypatch):
    monkeypatch.setattr("longtail.lab.data.dataset.VERY_MANY_LABELS", NUM_LABELS)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Every label has a feature of its own; others are noise. Some samples have no label."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part, size in (("train", 400), ("test", 120)):
        lines = [f"{size} {NUM_FEATURES} {NUM_LABELS}"]
        for _ in range(size):
            labels = sorted({int(label) for label in NUM_LABELS * rng.random(rng.integers(0, 4)) ** 2})
            features = sorted({*labels, *rng.integers(NUM_LABELS, NUM_FEATURES, 3).tolist()})
            lines.append(f"{','.join(map(str, labels))} {' '.join(f'{feature}:1' for feature in features)}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    paths = {part: str(folder / f"{part}.txt") for part in ("train", "test")}
    return Recipe(
        "labels",
        DataRecipe("sparse_table", options=paths),
        ModelRecipe("bag_of_features", {"width": 32, "out_features": 32}),
        TrainRecipe(epochs=8, batch_size=32, optimizer="rowwise_adam", learning_rate=0.02, weight_decay=0.0),
        MethodRecipe("sampled_softmax", {"num_negatives": 20}),
    )


def quick(recipe, folder, **options):
    return train(recipe, folder, accelerator="cpu", show_progress=False, **options)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["train.optimizer=adamw"],
        ["method.options={distribution='within_batch', weighting='tail'}"],
        ["method={name='sampled_logistic', options={num_negatives=20}}", LONGER],
        ["method={name='sampled_contrastive', options={num_negatives=20}}", "train.optimizer=adamw", LONGER],
        ["method={name='binary_cross_entropy'}", LONGER],
        ["train.accumulate=2", LONGER],
        ["train.evaluate_every=4"],
    ],
)
def test_labels_are_learned_and_ranked(recipe, settings, tmp_path):
    run = quick(with_settings(recipe, settings), tmp_path)
    assert run.is_ranked
    assert run.results.best.shape == run.results.scores.shape == (120, 20)
    truth = load_data(recipe.data).test.labels.to_dense()
    first = truth.gather(1, run.results.best[:, :1]).double().mean()
    assert run.metrics["precision_at_1"] == pytest.approx(float(first))
    assert first > 0.6  # a quarter of the samples has no label
    assert run.metrics.keys() >= {"psp_at_5", "recall_at_10", "recall_at_10_head", "recall_at_10_tail"}
    assert ("precision_at_3" in run.history[3]) == ("train.evaluate_every=4" in settings)


def test_metrics_are_what_loops_give(recipe, tmp_path):
    found = quick(with_settings(recipe, ["train.epochs=2"]), tmp_path).results
    truth = load_data(recipe.data).test.labels.to_dense()
    assert torch.equal(torch.from_numpy(found.truth.toarray()).bool(), truth)
    counts, num_train = found.train_counts.tolist(), 400
    a, b = 0.55, 1.5
    inverse = [1 + (math.log(num_train) - 1) * (b + 1) ** a * math.exp(-a * math.log(n + b)) for n in counts]
    metrics = ranking_metrics(found)
    for k in (1, 3, 5):
        hits = gained = possible = 0.0
        for row, best in enumerate(found.best.tolist()):
            true = {label for label in range(NUM_LABELS) if truth[row, label]}
            hits += len(true & set(best[:k])) / k
            gained += sum(inverse[label] for label in true & set(best[:k]))
            possible += sum(sorted((inverse[label] for label in true), reverse=True)[:k])
        assert metrics[f"precision_at_{k}"] == pytest.approx(hits / len(truth))
        assert metrics[f"psp_at_{k}"] == pytest.approx(gained / possible, rel=1e-5)
    for name, members in {"": torch.arange(NUM_LABELS), "_tail": found.prior.quantile_groups()["tail"]}.items():
        pairs = [(row, int(label)) for row in range(len(truth)) for label in members if truth[row, label]]
        found_pairs = sum(label in found.best[row, :10].tolist() for row, label in pairs)
        assert metrics[f"recall_at_10{name}"] == pytest.approx(found_pairs / len(pairs))


def test_rankings_are_kept(recipe, tmp_path):
    found = quick(with_settings(recipe, ["train.epochs=1", "data.options.propensity=[0.5, 0.4]"]), tmp_path).results
    again = Rankings.load(tmp_path / "rankings.safetensors")
    assert (again.propensity, again.num_train, again.class_names) == ((0.5, 0.4), 400, found.class_names)
    assert torch.equal(again.best, found.best)
    assert ranking_metrics(again) == ranking_metrics(found)
    assert again.prior == load_data(recipe.data).prior


@pytest.mark.parametrize("settings", [[], ["model.options.dropout=0.5", "train.head_rate=2.0"]])
def test_a_run_that_stopped_ends_with_the_same_numbers(recipe, settings, tmp_path, monkeypatch):
    recipe = with_settings(recipe, ["train.epochs=3", *settings])
    whole = quick(recipe, tmp_path / "whole")
    monkeypatch.setattr("longtail.lab.training.loop.CHECKPOINT_SECONDS", 0.0)
    from longtail.lab.runs.folder import append_metrics as append

    def stop(path, row):
        if row["epoch"] == 1:
            raise KeyboardInterrupt
        append(path, row)

    with monkeypatch.context() as patch:
        patch.setattr("longtail.lab.training.loop.append_metrics", stop)
        with pytest.raises(KeyboardInterrupt):
            quick(recipe, tmp_path / "parts")
    parts = quick(recipe, tmp_path / "parts")
    assert parts.metrics == whole.metrics
    assert torch.equal(parts.results.scores, whole.results.scores)


def test_rows_move_as_adam_moves_them_and_others_stay(recipe):
    """The first step of row-wise Adam is that of AdamW, on the rows that a batch touches."""
    data, steps = load_data(recipe.data), []
    for optimizer_name in ("rowwise_adam", "adamw"):
        torch.manual_seed(0)
        model = Classifier(BagOfFeatures(NUM_FEATURES, 8, 6), nn.Linear(6, NUM_LABELS))
        loss = SampledLinearLoss(uniform(NUM_LABELS), importance, 5)
        chosen = TrainRecipe(optimizer=optimizer_name, learning_rate=0.1, weight_decay=0.0)
        rows = make_row_sparse(model, loss) if optimizer_name == "rowwise_adam" else []
        assert len(rows) == (3 if rows else 0)
        optimizer = make_optimizer(model, chosen, rows)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        indices = torch.arange(6)
        model(data.train.batch(indices), loss, data.train.listed_targets(indices)).backward()
        optimizer.step()
        steps.append([after.detach() - old for after, old in zip(model.parameters(), before, strict=True)])
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other)
    assert (steps[0][0] == 0).all(dim=1).any()


def test_lists_of_labels_are_those_of_the_samples():
    labels = torch.rand(30, 7, generator=torch.Generator().manual_seed(0)) < 0.3
    labels[4] = False
    chosen = torch.tensor([5, 4, 4, 29, 0])
    for kept in (labels, labels.to_sparse_coo().coalesce()):
        listed = Split(torch.zeros(30, 1), kept).listed_targets(chosen)
        for row, index in zip(listed.tolist(), chosen, strict=True):
            assert [label for label in row if label != -100] == torch.nonzero(labels[index])[:, 0].tolist()
    empty = Split(torch.zeros(3, 1), torch.zeros(3, 7, dtype=torch.bool)).listed_targets(torch.arange(3))
    assert empty.tolist() == [[-100], [-100], [-100]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method={name='cross_entropy'}"], "cross_entropy needs one label per sample; .*sampled_softmax"),
        (["model={name='mlp'}"], r"'rowwise_adam' is for bag_of_features.*Got model\.name = 'mlp'"),
        (["train.clip_norm=1.0"], r"touches few rows, and train\.clip_norm all of them: it must be 0\. Got 1\.0"),
        (["train.ema_decay=0.9"], r"train\.ema_decay all of them"),
        (["data.options.propensity=[0.5]"], r"propensity must be two numbers above 0, A and B\. Got \[0\.5\]"),
        (["train.compile=true"], r"train\.compile is for inputs in tensors"),
    ],
)
def test_what_has_no_meaning_is_refused(recipe, settings, message, tmp_path, one_line):
    with pytest.raises(ValueError, match=message) as error:
        quick(with_settings(recipe, settings), tmp_path / "run")
    one_line(error)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("own", "other"), [("importance", "tail"), ("tail", "importance")])
def test_a_comparison_is_of_losses_that_draw_negatives(recipe, own, other):
    recipe = with_settings(recipe, [f"method.options.weighting={own}"])
    assert default_methods(recipe) == ["sampled_softmax", f"sampled_softmax(weighting={other})"]
    plain = with_settings(recipe, ["train.optimizer=adamw"])
    assert default_methods(plain)[0] == "cross_entropy"


def test_fewer_labels_are_not_ranked(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.lab.data.dataset.VERY_MANY_LABELS", 10_000)
    with pytest.raises(ValueError, match=r"sampled_softmax is for 10,000 labels or more; .*binary_cross_entropy"):
        quick(recipe, tmp_path / "run")
    run = quick(with_settings(recipe, ["method={name='binary_cross_entropy'}", "train.epochs=1"]), tmp_path / "run")
    assert not run.is_ranked


def test_a_comparison_has_a_table_and_no_page(recipe, tmp_path):
    """Of 10,000 labels: its processes know no other number. Most have no samples."""
    files = {}
    for part in ("train", "test"):
        _, *lines = Path(recipe.data.options[part]).read_text().splitlines()
        files[part] = tmp_path / f"{part}.txt"
        files[part].write_text("\n".join([f"{len(lines)} {NUM_FEATURES} 10000", *lines]) + "\n")
    path = tmp_path / "labels.toml"
    options = [f"data.options.{part}={str(file)!r}" for part, file in files.items()]
    path.write_text(to_toml(with_settings(recipe, ["train.epochs=2", *options])))
    methods = "binary_cross_entropy,sampled_softmax(weighting=tail)"
    arguments = ["compare", str(path), "--methods", methods, "--seeds", "1", "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    assert "PSP@5" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if not line.startswith("Wrote"))
    assert "psp_at_5" in (tmp_path / "runs" / "comparison.csv").read_text()
    with pytest.raises(ValueError, match="keeps the best labels of each sample"):
        write_report(read_runs([tmp_path / "runs"]), tmp_path / "page.html")
