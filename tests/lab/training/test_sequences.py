"""Sequences in the training loop: what is learned, resuming, comparing, and what is refused."""

from pathlib import Path

import pytest
import torch
from pyarrow import csv, parquet
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.report import read_runs, write_report
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    to_toml,
    with_settings,
)
from longtail.lab.training.recommending import recommend

NUM_ITEMS = 24


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Users walk through the items in steps of one, from anywhere: what comes next can be learned."""
    path = tmp_path_factory.mktemp("data") / "walks.txt"
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(NUM_ITEMS, (150,), generator=generator).tolist()
    lengths = torch.randint(4, 9, (150,), generator=generator).tolist()
    walks = [[(start + step) % NUM_ITEMS for step in range(n)] for start, n in zip(starts, lengths, strict=True)]
    path.write_text("\n".join(f"user{n} {' '.join(map(str, walk))}" for n, walk in enumerate(walks)) + "\n")
    return Recipe(
        "walks",
        DataRecipe("events", options={"path": str(path), "max_length": 5}),
        ModelRecipe("transformer", {"width": 16, "num_layers": 1, "dropout": 0.0}),
        TrainRecipe(epochs=12, batch_size=32, optimizer="adamw", learning_rate=0.02, weight_decay=0.0),
        MethodRecipe("sampled_softmax", {"num_negatives": 12}),
    )


def quick(recipe, folder, **options):
    return train(recipe, folder, accelerator="cpu", show_progress=False, **options)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.name=gru", "model.options={width=16, dropout=0.0}"],
        ["method={name='cross_entropy'}"],
        ["method={name='logit_adjusted'}"],
        ["method.options={distribution='within_batch', weighting='tail'}"],
    ],
)
def test_what_comes_next_is_learned(recipe, settings, tmp_path):
    run = quick(with_settings(recipe, settings), tmp_path)
    assert run.is_ranked
    assert run.results.best.shape == (150, 20)
    first = (run.results.best[:, 0] == run.results.labels).double().mean()
    assert first > 0.75
    assert run.metrics["recall_at_10"] >= first
    assert {"ndcg_at_10", "recall_at_10_head", "recall_at_10_torso", "recall_at_10_tail"} <= set(run.metrics)


def test_a_run_that_stopped_ends_with_the_same_numbers(recipe, tmp_path, monkeypatch):
    recipe = with_settings(recipe, ["model.options.dropout=0.3", "train.epochs=4", "train.evaluate_every=2"])
    whole = quick(recipe, tmp_path / "whole")
    assert [("recall_at_10" in row) for row in whole.history] == [False, True, False, True]
    monkeypatch.setattr("longtail.lab.training.loop.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("longtail.lab.training.loop._finish", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        quick(recipe, tmp_path / "parts")
    monkeypatch.undo()
    parts = quick(recipe, tmp_path / "parts")
    assert parts.metrics == whole.metrics
    assert torch.equal(parts.results.best, whole.results.best)


def test_history_can_be_left_out(recipe, tmp_path):
    run = quick(with_settings(recipe, ["train.epochs=1", "train.exclude_history=true"]), tmp_path)
    from longtail.lab.data.registry import load_data

    inputs = load_data(recipe.data).test.inputs
    for row in range(20):
        had = inputs.items[inputs.offsets[row] : inputs.offsets[row + 1]]
        finite = run.results.best[row][run.results.scores[row].isfinite()]
        assert not bool(torch.isin(finite, had).any())


def test_changing_the_head_afterwards_leaves_what_the_encoder_reads(recipe, tmp_path):
    plain = quick(with_settings(recipe, ["method={name='cross_entropy'}"]), tmp_path / "plain")
    normalized = quick(
        with_settings(recipe, ["method={name='weight_normalized', options={tau=0.0}}"]), tmp_path / "tau"
    )
    assert torch.equal(plain.results.best, normalized.results.best)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method={name='class_balanced_sampling'}"], "draws samples by their label"),
        (["method={name='binary_cross_entropy'}"], "is for several at once|one label"),
        (["train.mixing=mixup"], "neither mixed nor augmented"),
        (["train.save_embeddings=10"], "one label per sample"),
        (["model={name='mlp'}"], "can't take the inputs"),
    ],
)
def test_what_has_no_meaning_is_refused(recipe, settings, message, tmp_path, one_line):
    with pytest.raises(ValueError, match=message) as error:
        quick(with_settings(recipe, settings), tmp_path)
    one_line(error)


def test_exclude_history_is_for_sequences(tmp_path):
    other = Recipe("digits", DataRecipe("digits"), ModelRecipe("mlp"), TrainRecipe(epochs=1, exclude_history=True))
    with pytest.raises(ValueError, match="is for sequences of items"):
        quick(other, tmp_path)


def test_a_comparison_has_a_table_and_no_page(recipe, tmp_path):
    path = tmp_path / "walks.toml"
    path.write_text(to_toml(with_settings(recipe, ["train.epochs=2"])))
    methods = "cross_entropy,sampled_softmax(weighting=tail)"
    folder = tmp_path / "runs"
    arguments = [
        "compare",
        str(path),
        "--methods",
        methods,
        "--seeds",
        "1",
        "--workers",
        "1",
        "--output",
        str(folder),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "nDCG@10" in result.output
    assert "recall_at_10_tail" in (folder / "comparison.csv").read_text()
    assert not (folder / "report.html").exists()
    with pytest.raises(ValueError, match="keeps the best labels"):
        write_report(read_runs([folder]), tmp_path / "page.html")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_recommendations_come_after_all_events(recipe, tmp_path, suffix):
    quick(with_settings(recipe, ["data.options.evaluate_on=validation"]), tmp_path / "run")
    output = tmp_path / f"next{suffix}"
    result = CliRunner().invoke(app, ["recommend", str(tmp_path / "run"), "--output", str(output), "-k", "3"])
    assert result.exit_code == 0, result.output
    assert "3 items for each of 150 users" in " ".join(result.output.split())
    table = (parquet.read_table if suffix == ".parquet" else csv.read_csv)(output).to_pylist()
    last = {line.split()[0]: line.split()[-1] for line in Path(recipe.data.options["path"]).read_text().splitlines()}
    first = {row["user"]: int(row["item"]) for row in table if row["place"] == 1}
    right = [first[user] == (int(item) + 1) % NUM_ITEMS for user, item in last.items()]
    assert sum(right) > 0.9 * len(right)


def test_recommending_needs_events(tmp_path, recipe):
    quick(Recipe("digits", DataRecipe("digits"), ModelRecipe("mlp"), TrainRecipe(epochs=1)), tmp_path / "run")
    with pytest.raises(ValueError, match="must be events of users"):
        recommend(tmp_path / "run")
    quick(with_settings(recipe, ["train.epochs=1"]), tmp_path / "walks")
    with pytest.raises(ValueError, match=r"k must be in 1..24"):
        recommend(tmp_path / "walks", k=25)
    table = recommend(tmp_path / "walks", k=NUM_ITEMS, exclude_history=False)
    assert table.num_rows == 150 * NUM_ITEMS
