"""What the report computes of embeddings."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from longtail.diagnostics import intraclass_distances
from longtail.lab.report import read_runs, write_report
from longtail.lab.report.digests.embeddings import map_to_plane


def method_of(comparison, label):
    return next(method for method in comparison.methods if method.label == label)


def accuracies(predicted, labels, num_classes):
    return [np.mean(predicted[labels == index] == index) for index in range(num_classes)]


def test_embeddings_are_reduced_run_by_run(runs, comparison, counts):
    data = runs[0].load_embeddings()
    method = method_of(comparison, "cross_entropy")
    assert len(method.embeddings) == 2
    found = method.embeddings[0]
    is_tail = torch.from_numpy(counts < 20)[data.test.labels]
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


@pytest.mark.parametrize("width", [1, 10])
def test_a_map_is_the_same_again_and_needs_points_that_differ(width):
    points = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    first = map_to_plane(points)
    assert first.shape == (20, 2)
    assert np.array_equal(first, map_to_plane(points))
    assert map_to_plane(points[:5]) is None
    assert map_to_plane(np.ones_like(points)) is None


@pytest.mark.parametrize("change", ["classes", "file"])
def test_embeddings_that_do_not_fit(
    tmp_path, change, make_predictions, make_run, make_embeddings, keep_embeddings, counts
):
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(counts))
    data = make_embeddings(run.predictions)
    if change == "classes":
        data = dataclasses.replace(data, class_names=(*data.class_names, "another"))
    keep_embeddings(run, data)
    if change == "file":
        (run.path / "embeddings.safetensors").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="embeddings") as caught:
        write_report(read_runs([tmp_path]), tmp_path / "page.html")
    assert str(run.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_embeddings_that_are_not_finite_are_not_kept(
    tmp_path, make_predictions, make_run, make_embeddings, keep_embeddings, counts
):
    run = make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(counts))
    data = make_embeddings(run.predictions)
    data.test.inputs[3, 2] = math.nan
    with pytest.raises(ValueError, match=r"embeddings\.safetensors: 'test_inputs' must be finite"):
        keep_embeddings(run, data)
