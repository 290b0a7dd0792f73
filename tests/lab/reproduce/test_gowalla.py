"""Recommendation on a small world of users and items, and the reader of its file."""

import csv
import re

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from typer.testing import CliRunner

from longtail import negatives
from longtail.lab.cli.app import app
from longtail.lab.data.formats.interactions import read_interactions
from longtail.lab.data.sets.gowalla import read_gowalla
from longtail.lab.reproduce import gowalla as experiment
from longtail.lab.reproduce._schemes import SCHEMES, Scheme

NUM_USERS, NUM_ITEMS = 60, 45
SETTINGS = experiment.Settings(dimension=8, num_negatives=20, batch_size=16, epochs=12, learning_rate=0.1)


def make_pairs():
    """Users of three tastes, each with frequent and rare items; the pairs to find are of the same tastes."""
    generator = np.random.default_rng(0)
    probs = 1 / (1 + np.arange(NUM_ITEMS // 3))
    parts = [np.zeros((NUM_USERS, NUM_ITEMS), dtype=bool) for _ in range(2)]
    for user in range(NUM_USERS):
        items = generator.choice(NUM_ITEMS // 3, size=8, replace=False, p=probs / probs.sum()) * 3 + user % 3
        parts[0][user, items[:6]] = parts[1][user, items[6:]] = True
    return [csr_array(part) for part in parts]


def arrays_of(pairs, truth):
    return {
        "n_items": np.int64(NUM_ITEMS),
        "train_indptr": pairs.indptr.astype(np.int32),
        "train_items": pairs.indices.astype(np.uint16),
        "test_indptr": truth.indptr.astype(np.int32),
        "test_items": truth.indices.astype(np.uint16),
    }


@pytest.fixture(scope="module")
def outcomes(make_all):
    schemes = [*SCHEMES, *experiment.list_extremes(), *experiment.list_between([0.5])]
    return make_all(experiment.plan_rows(*make_pairs(), schemes, SETTINGS))


def test_all_schemes_are_trained_and_find_more_than_chance(outcomes):
    assert len({outcome.scheme for outcome in outcomes}) == 11
    for outcome in outcomes:
        if outcome.scheme.weighting != "relative":
            assert outcome.recall > 1.2 * experiment.PLACES / NUM_ITEMS, outcome
        assert 0 <= outcome.rare_recall <= 1


def test_a_seed_repeats_itself():
    pairs, _ = make_pairs()
    prior = experiment.count_items(pairs)
    arguments = (pairs, negatives.uniform(NUM_ITEMS), negatives.tail(prior), SETTINGS)
    first, again, other = (experiment.train(*arguments, seed) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


def test_a_user_is_the_sum_of_the_directions_of_their_items():
    model = experiment.ItemVectors(NUM_ITEMS, 4)
    taken = csr_array(([True] * 3, ([0, 0, 2], [1, 5, 3])), shape=(3, NUM_ITEMS))
    directions = model.weight / model.weight.norm(dim=1, keepdim=True)
    expected = torch.stack([directions[1] + directions[5], torch.zeros(4), directions[3]])
    torch.testing.assert_close(model.embed(taken), expected)
    dropped = model.embed(taken, 0.5, torch.Generator().manual_seed(0))
    assert not torch.equal(dropped, expected)
    assert experiment.pad_labels(taken).tolist() == [[1, 5], [-100, -100], [3, -100]]


def test_known_items_are_not_recommended():
    pairs, _ = make_pairs()
    model = experiment.train(pairs, negatives.uniform(NUM_ITEMS), negatives.constant, SETTINGS, 0)
    best = experiment.recommend(model, pairs, SETTINGS.temperature, users_at_once=7)
    assert best.shape == (NUM_USERS, experiment.PLACES)
    assert not any(pairs[user, item] for user in range(NUM_USERS) for item in best[user].tolist())


def test_recall_is_the_mean_over_users_with_something_to_find():
    truth = csr_array(([True] * 3, ([0, 0, 2], [0, 1, 2])), shape=(3, 30))
    best = torch.tensor([[0] + [-100] * 19, [1] + [-100] * 19, [2] + [-100] * 19])
    assert experiment.mean_recall(best, truth) == pytest.approx((0.5 + 1.0) / 2)


def test_distance_from_the_line():
    values = {"uniform": (0.3, 0.0), "within-batch": (0.1, 0.2)}
    ends = [experiment.Result(Scheme(name, "unit"), *pair, 1.0) for name, pair in values.items()]
    between = experiment.Result(Scheme("uniform", "tau = 0.5"), 0.25, 0.1, 1.0)
    beyond = experiment.Result(Scheme("uniform", "tail"), 0.05, 0.4, 1.0)
    before = experiment.Result(Scheme("uniform", "relative"), 0.9, 0.0, 1.0)
    gaps = experiment.measure_above_line([*ends, between, beyond, before])
    lower_end = min(recall for recall, _ in values.values())
    assert gaps == {between.scheme: pytest.approx(0.05), beyond.scheme: pytest.approx(0.05 - lower_end)}


def test_without_both_ends_there_is_no_line():
    assert experiment.measure_above_line([experiment.Result(Scheme("uniform", "unit"), 0.3, 0.1, 1.0)]) == {}


def test_the_legend_names_every_scheme(outcomes):
    text = experiment.draw_picture(outcomes, {"epochs": 1})
    buttons = re.findall(r"<button[^>]*data-series=.*?</svg> (.*?)</button>", text)
    assert buttons == [str(outcome.scheme) for outcome in outcomes]


def test_strengths_of_the_margin_are_one_series():
    results = [
        experiment.Result(scheme, 0.3, 0.1 + 0.01 * place, 1.0)
        for place, scheme in enumerate((*experiment.list_extremes(), *experiment.list_between()))
    ]
    text = experiment.draw_picture(results, {"epochs": 1})
    assert "uniform, tau = 0.25, 0.5, 0.75 and 1</button>" in text
    assert '"text":["  0.25","  0.5","  0.75","  1"]' in text


def test_the_command_writes_a_table_and_a_page(tmp_path, monkeypatch):
    (tmp_path / "gowalla").mkdir()
    np.savez(tmp_path / "gowalla" / "gowalla.npz", **arrays_of(*make_pairs()))
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    command = ["reproduce", "gowalla", "--epochs", "1", "--num-negatives", "5", "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "within-batch, tail" in done.stdout
    with (tmp_path / "out" / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(SCHEMES) + len(experiment.list_extremes()) + len(
            experiment.list_between()
        )
    page = (tmp_path / "out" / "picture.html").read_text()
    assert "<script src=" not in page
    assert 'data-figure="figure-0-0"' in page


# The file


def test_pairs_are_read_as_they_were_written(tmp_path):
    pairs, truth = make_pairs()
    np.savez(tmp_path / "pairs.npz", **arrays_of(pairs, truth))
    found = read_interactions(tmp_path / "pairs.npz")
    assert (found.train != pairs).nnz == 0
    assert (found.test != truth).nnz == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_items": None}, "must have the arrays.*train_items"),
        ({"n_items": np.int64(3)}, r"must be in 0\.\.2"),
        ({"train_items": np.full(360, -1)}, "must be in 0.*Got -1"),
        ({"n_items": np.zeros(2, dtype=np.int64)}, "Got: "),
        ({"train_indptr": np.array([0, 5])}, "must go from 0 up to the 360 items"),
        ({"train_indptr": np.array([0, 400, 360])}, "must go from 0"),
        ({"test_indptr": np.array([0, 120])}, "as many users to train on as to test. Got 60 and 1"),
        ({"train_items": np.zeros(360)}, "vectors of whole numbers"),
        ({"train_items": np.array([None] * 360)}, "must be an .npz"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, changes, message):
    arrays = {name: value for name, value in (arrays_of(*make_pairs()) | changes).items() if value is not None}
    np.savez(tmp_path / "pairs.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_interactions(tmp_path / "pairs.npz")


def test_a_damaged_or_missing_file_is_named(tmp_path):
    (tmp_path / "pairs.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(ValueError, match=r"pairs\.npz must be an \.npz"):
        read_interactions(tmp_path / "pairs.npz")
    with pytest.raises(FileNotFoundError, match=r"Gowalla was not found: put gowalla/gowalla\.npz"):
        read_gowalla(tmp_path)
