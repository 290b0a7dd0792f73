"""Groups of classes: by frequency, or by name where classes are few."""

import numpy as np
import pytest

from longtail.lab.report import write_report
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.kinds import compare


@pytest.mark.parametrize(
    ("counts", "keys"),
    [
        ([900, 100], ["class-0", "class-1"]),
        ([3, 500, 40], ["class-1", "class-2", "class-0"]),
        ([900, 500, 400, 300, 200, 100], ["class-0", "class-1", "class-2", "class-3", "class-4", "class-5"]),
        ([900, 500, 400, 300, 200, 10], ["head", "tail"]),
        ([200] * 11, ["head"]),
    ],
    ids=["two", "three", "one group", "two groups", "too many to name"],
)
def test_few_classes_or_one_group_are_shown_by_name(make_predictions, counts, keys):
    predictions = make_predictions(np.array(counts))
    assert list(Labels.of(predictions).groups) == keys
    assert set(Labels.of(predictions, names_few=False).groups) <= {"head", "torso", "tail"}


def test_names_that_look_alike_are_told_apart(make_predictions):
    labels = Labels.of(make_predictions(np.array([90, 10]), names=["a" * 80 + "1", "a" * 80 + "2"]))
    assert len({group.name for group in labels.groups.values()}) == 2


@pytest.fixture(scope="module")
def binary_runs(tmp_path_factory, make_comparison):
    """Two classes of head frequency, and two seeds that differ: intervals far wider than 0 to 100%."""
    folder = tmp_path_factory.mktemp("binary")
    methods = {"cross_entropy": {"bias": 1.0}, "posthoc_adjusted": {"bias": 1.0, "posthoc": True}}
    names = ["healthy", "<b>ill</b>"]
    return make_comparison(folder, np.array([9500, 500]), methods, (0, 1), names=names, num_samples=20, signal=1.0)


@pytest.fixture(scope="module")
def binary_page(binary_runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "binary.html"
    write_report(binary_runs, path)
    return path.read_text()


def test_a_binary_problem_shows_both_classes_everywhere(binary_runs, binary_page, figures_of):
    comparison = compare(binary_runs)
    figures = figures_of(binary_page)
    names = ["healthy", "&lt;b&gt;ill&lt;/b&gt;"]
    assert figures["groups"]["data"][0]["x"] == ["all classes", *names]
    assert figures["margins"]["layout"]["xaxis"]["ticktext"] == names
    assert {trace["name"] for trace in figures["tau"]["data"]} == {"all classes", *names}
    metrics = comparison.methods[0].runs[0].metrics
    assert metrics["balanced_accuracy"] == pytest.approx((metrics["class-0"] + metrics["class-1"]) / 2)
    assert "in the head" not in binary_page
    assert "Head, torso and tail" not in binary_page
    assert "<b>ill" not in binary_page


def test_accuracies_and_their_intervals_stay_within_0_and_100_percent(binary_runs, binary_page, figures_of):
    assert any(method.metric("class-1").high > 1 for method in compare(binary_runs).methods)
    figures = figures_of(binary_page)
    for bars in figures["groups"]["data"]:
        above = bars["error_y"]["array"]
        below = bars["error_y"].get("arrayminus", above)
        assert all(0 <= y - low <= y + high <= 1 for y, low, high in zip(bars["y"], below, above, strict=True))
    for key in ("groups", "tau"):
        axis = figures[key]["layout"]["yaxis"]
        assert (axis["minallowed"], axis["maxallowed"]) == (0, 1)
    band = figures["tau"]["data"][0]
    assert band["fill"] == "toself"
    assert min(band["y"]) >= 0
    assert max(band["y"]) <= 1
