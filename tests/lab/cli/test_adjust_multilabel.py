"""``longtail adjust --multilabel``."""

import numpy as np
import pyarrow.csv
import pytest

from longtail.posthoc import f1_thresholds


@pytest.fixture
def folder(tmp_path):
    """Probabilities of 4 classes, most far below 0.5, for a holdout and for what is to be predicted."""
    generator = np.random.default_rng(0)
    for name in ("holdout", "test"):
        truth = (generator.random((200, 4)) < [0.5, 0.2, 0.1, 0.05]).astype(np.int64)
        scores = 0.3 * generator.random((200, 4)) + 0.15 * truth
        np.save(tmp_path / f"{name}_truth.npy", truth)
        np.save(tmp_path / f"{name}.npy", scores)
    return tmp_path


def options(folder, **changes):
    named = {
        "--holdout-scores": folder / "holdout.npy",
        "--holdout-labels": folder / "holdout_truth.npy",
        "--output": folder / "out.npz",
    } | changes
    pairs = [part for name, value in named.items() if value is not None for part in (name, value)]
    return [folder / "test.npy", "--multilabel", "--probabilities", *pairs]


class TestCommand:
    def test_thresholds_and_predictions_come_out(self, run, folder):
        more = {"--labels": folder / "test_truth.npy", "--thresholds": folder / "thresholds.csv"}
        done = run("adjust", *options(folder, **more))
        assert done.exit_code == 0, done.output
        with np.load(folder / "out.npz") as file:
            written = dict(file)
        chosen = f1_thresholds(np.load(folder / "holdout.npy"), np.load(folder / "holdout_truth.npy"), min_f1=0.1)
        np.testing.assert_allclose(written["thresholds"], chosen.values)
        np.testing.assert_array_equal(written["predictions"], np.load(folder / "test.npy") >= written["thresholds"])
        table = pyarrow.csv.read_csv(folder / "thresholds.csv").to_pydict()
        assert table["class"] == [0, 1, 2, 3]
        np.testing.assert_allclose(table["threshold"], chosen.values)
        assert "macro-F1" in done.output
        assert "0.0%" in done.output  # nothing reached 0.5 before

    def test_labels_may_be_true_and_false_and_lack_the_prefix_and_the_ids_of_scores(self, run, folder):
        for name in ("holdout", "test"):
            values, truth = np.load(folder / f"{name}.npy"), np.load(folder / f"{name}_truth.npy").astype(bool)
            table = {"id": np.arange(200)} | {f"p_{c}": values[:, i] for i, c in enumerate("abcd")}
            pyarrow.csv.write_csv(pyarrow.table(table), folder / f"{name}.csv")
            pyarrow.csv.write_csv(
                pyarrow.table({c: truth[:, i] for i, c in enumerate("abcd")}), folder / f"{name}_truth.csv"
            )
            np.save(folder / f"{name}_truth.npy", truth)
        assert run("adjust", *options(folder, **{"--labels": folder / "test_truth.npy"})).exit_code == 0
        files = {"--holdout-scores": folder / "holdout.csv", "--holdout-labels": folder / "holdout_truth.csv"}
        files |= {"--labels": folder / "test_truth.csv", "--output": folder / "out.csv"}
        files |= {"--columns": "p_", "--id": "id"}
        done = run("adjust", folder / "test.csv", *options(folder, **files)[1:])
        assert done.exit_code == 0, done.output
        assert "macro-F1" in done.output

    @pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
    def test_other_formats(self, run, folder, suffix):
        done = run("adjust", *options(folder, **{"--output": folder / f"out{suffix}", "--precision-floor": 0.6}))
        assert done.exit_code == 0, done.output
        assert (folder / f"out{suffix}").is_file()
        if suffix == ".npy":
            assert set(np.unique(np.load(folder / "out.npy"))) <= {0, 1}

    def test_classes_without_positives_in_the_holdout_are_named(self, run, folder):
        truth = np.load(folder / "holdout_truth.npy")
        truth[:, 2] = 0
        np.save(folder / "holdout_truth.npy", truth)
        done = run("adjust", *options(folder))
        assert "1 without positives there, left at 0.5: 2" in done.output

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"--holdout-labels": None}, "needs --holdout-scores and --holdout-labels"),
            ({"--holdout-labels": "halves.npy"}, "labels must be 0 or 1. Got 0.5"),
            ({"--holdout-labels": "short.npy"}, "there must be a row per sample"),
            ({"--holdout-scores": "narrow.npy", "--holdout-labels": "narrow.npy"}, "classes of the scores, 4. Got 3"),
            ({"--holdout-scores": "nan.npy"}, "scores must be finite"),
            ({"--counts": "holdout.npy"}, "--counts is for one label per sample"),
            ({"--tau": "2"}, "--tau is for one label"),
            ({"--precision-floor": "1.5"}, "floor must be in"),
            ({"--thresholds": "thresholds.txt"}, "suffix must be"),
            ({"--thresholds": "./out.npz"}, "--thresholds must be another file than --output"),
        ],
    )
    def test_bad_input_is_one_line_and_writes_nothing(self, refuse, folder, monkeypatch, changes, message):
        monkeypatch.chdir(folder)
        np.save("halves.npy", np.full((200, 4), 0.5))
        np.save("short.npy", np.ones((3, 4)))
        np.save("narrow.npy", np.ones((5, 3)))
        np.save("nan.npy", np.full((200, 4), np.nan))
        refuse("adjust", *options(folder, **changes), message=message)
        assert not (folder / "out.npz").exists()

    def test_multilabel_options_need_the_flag(self, run, folder):
        done = run("adjust", folder / "test.npy", "--precision-floor", 0.5, "--output", folder / "out.npz")
        assert done.exit_code == 2
        assert "--precision-floor needs --multilabel" in done.stderr
