"""Frames of polars, pandas and pyarrow: what files of the same content give, as the same kind of frame."""

import numpy as np
import pyarrow as pa
import pytest

from longtail import ClassPrior, adjust_logits
from longtail.lab.frames import adjust_frame, count_frame_labels, inspect_frame, prior_for_frame

LOGITS = np.random.default_rng(0).normal(size=(50, 3))
NAMES = ["cat", "dog", "emu"]


@pytest.fixture(params=["polars", "pandas", "pyarrow"])
def make_frame(request):
    """``make_frame(columns)`` gives a frame of one of the packages."""
    package = pytest.importorskip(request.param)
    return package.table if request.param == "pyarrow" else package.DataFrame


def test_labels_are_counted(make_frame):
    frame = make_frame({"x": [1.0, 2.0, 3.0, 4.0], "label": ["b", "a", "b", None]})
    found = count_frame_labels(frame)
    assert (found.classes, found.counts.tolist(), found.num_missing) == (("a", "b"), [1, 2], 1)
    assert inspect_frame(frame).imbalance == 2
    with pytest.raises(ValueError, match="there is no column or array 'y'"):
        count_frame_labels(frame, "y")


def test_scores_are_adjusted(make_frame, monkeypatch):
    monkeypatch.setattr("longtail.lab.data.formats.table_files.BATCH", 500)  # as if the frame were large
    monkeypatch.setattr("longtail.lab.data.formats.table_files.FEWEST_ROWS", 1)
    ids = [f"{i:02}" for i in range(50)]
    frame = make_frame({"id": ids} | {f"s_{name}": LOGITS[:, i] for i, name in enumerate(NAMES)})
    train = make_frame({"label": ["emu"] * 5 + ["cat"] * 60 + ["dog"] * 30})
    prior = prior_for_frame(train, frame, columns="s_")
    assert prior == ClassPrior.from_counts([60, 30, 5])
    found = adjust_frame(frame, prior, columns="s_")
    assert type(found) is type(frame)
    expected = adjust_logits(LOGITS, prior)
    table = pa.table(found)
    assert table.column_names == ["id", "prediction", "s_cat", "s_dog", "s_emu"]
    assert table.column("id").to_pylist() == ids
    assert table.column("prediction").to_pylist() == [NAMES[i] for i in expected.argmax(axis=1)]
    shares = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.column_stack([table[f"s_{name}"] for name in NAMES]), shares)


def test_an_index_of_pandas_is_no_score():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cat": [0.5, 0.1, 0.2], "dog": [0.1, 0.2, 0.3]}, index=[7, 5, 9])
    found = adjust_frame(frame, ClassPrior.from_counts([9, 1]))
    assert [*found.columns] == ["prediction", "cat", "dog"]
