"""What is exported gives what the model gives, and a file that is changed, or another's, is refused."""

import json
import math

import numpy as np
import pytest
import torch
from pandas import DataFrame
from torch import nn

from longtail import ClassPrior, ExtremeClassifier, adjust_logits, fold_adjustment
from longtail.correction import Correction, read_correction
from longtail.errors import DamagedFileError
from longtail.heads import ExpertHead
from longtail.serving import (
    LabelRanking,
    ThresholdedModel,
    export_onnx,
    export_program,
    load_onnx,
    load_program,
    pad_rows,
)

PRIOR = ClassPrior.from_counts([70, 20, 10])


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).train()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folded model, and its file."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    folded = fold_adjustment(make_model(), PRIOR, tau=0.5)
    assert export_onnx(folded, torch.randn(2, 4), path) <= 1e-5
    assert folded.training  # as before
    return folded.eval(), path


@pytest.mark.parametrize("num_samples", [1, 2, 700])
def test_a_folded_model_gives_adjusted_logits_in_onnxruntime(exported, num_samples):
    x = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = adjust_logits(make_model().eval()(x), PRIOR, tau=0.5)
    found = load_onnx(exported[1])(x.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def test_the_file_keeps_the_record(exported):
    assert load_onnx(exported[1], exported[0]).correction == Correction(PRIOR, "posthoc_adjusted", 0.5, True)


def test_a_file_of_another_model_is_one_line(exported, one_line):
    with pytest.raises(ValueError, match=r"must be the ONNX file of this model\. Got that of another") as error:
        load_onnx(exported[1], fold_adjustment(make_model(1), PRIOR, tau=0.5))
    one_line(error)
    with pytest.raises(ValueError, match=r"inputs must be inputs \['samples', 4\]\. Got \[2, 5\]") as error:
        load_onnx(exported[1])(np.zeros((2, 5), np.float32))
    one_line(error)


def test_a_changed_file_is_refused(exported, tmp_path, one_line):
    content = exported[1].read_bytes()
    path = tmp_path / "changed.onnx"
    for place in range(0, len(content), math.ceil(len(content) / 60)):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DamagedFileError) as error:
            load_onnx(path)
        one_line(error)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedFileError):
        load_onnx(path)


def test_a_file_of_another_program_is_refused(exported, tmp_path, one_line):
    import onnx

    proto = onnx.load(exported[1])
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(DamagedFileError, match=r"export_onnx wrote\. Got another program's") as error:
        load_onnx(tmp_path / "other.onnx")
    one_line(error)


def test_outputs_that_differ_are_not_written(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.serving.onnx.OnnxModel.run", lambda self, *inputs: [np.zeros((2, 3), np.float32)])
    with pytest.raises(ValueError, match="nothing was written"):
        export_onnx(make_model(), torch.randn(2, 4), tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


def test_thresholds_are_part_of_the_file(exported, tmp_path):
    model = ThresholdedModel(nn.Sequential(make_model().eval(), nn.Sigmoid()), [0.4, 0.5, math.inf])
    path = tmp_path / "thresholds.onnx"
    assert export_onnx(model, torch.randn(2, 4), path, output_names=("scores", "is_predicted")) <= 1e-5
    x = torch.randn(50, 4)
    scores, is_predicted = load_onnx(path, model).run(x.numpy())
    np.testing.assert_array_equal(is_predicted, scores >= np.array([0.4, 0.5, np.inf], np.float32))
    assert is_predicted.any()
    assert not is_predicted[:, 2].any()
    with pytest.raises(ValueError, match="thresholds must be"):
        ThresholdedModel(model, [math.nan])


def test_experts_are_exported_as_the_mean_of_their_logits(exported, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), ExpertHead(6, 3, num_experts=2))
    folded, path = fold_adjustment(model, PRIOR, layer="2"), tmp_path / "experts.onnx"
    assert export_onnx(folded, torch.randn(2, 4), path) <= 1e-5
    x = torch.randn(9, 4)
    with torch.no_grad():
        experts = model.train()(x)
    assert experts.shape == (9, 2, 3)
    expected = adjust_logits(experts.mean(dim=1), PRIOR)
    np.testing.assert_allclose(load_onnx(path, folded)(x.numpy()), expected.numpy(), rtol=0, atol=1e-5)


def fit_extreme(**settings):
    from scipy.sparse import random as random_sparse

    features = random_sparse(80, 30, 0.2, "csr", dtype=np.float32, rng=0)
    if settings.pop("are_counts", False):
        features.data = np.ceil(5 * features.data)
    labels = np.random.default_rng(0).integers(0, 2, (80, 12))
    return ExtremeClassifier(hidden_size=8, epochs=2, random_state=0, **settings).fit(features, labels), features


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "identity", "are_counts": True},
        {"activation": "relu", "skip_connection": True},
        {"one_vs_rest_weight": 0.4},
        {"activation": "relu", "scale": 10.0},
    ],
)
def test_a_ranking_as_a_module_is_that_of_the_estimator(settings):
    estimator, features = fit_extreme(**settings)
    labels, logits = LabelRanking(estimator, k=3)(*map(torch.from_numpy, pad_rows(features)))
    np.testing.assert_array_equal(labels.numpy(), estimator.predict_topk(features, 3))
    np.testing.assert_allclose(logits[:, 0].numpy(), estimator.decision_function(features).max(axis=1), atol=1e-5)


def test_a_ranking_of_labels_is_that_of_the_estimator(exported, tmp_path):
    estimator, features = fit_extreme(activation="relu", skip_connection=True, are_counts=True)
    ranking, path = LabelRanking(estimator, k=3), tmp_path / "ranking.onnx"
    rows = tuple(torch.from_numpy(part) for part in pad_rows(features[:2]))
    names = {"input_names": ("columns", "values"), "output_names": ("labels", "logits")}
    assert export_onnx(ranking, rows, path, **names) <= 1e-5
    found = load_onnx(path, ranking)
    best, logits = found.run(*pad_rows(features))
    np.testing.assert_array_equal(best, estimator.predict_topk(features, 3))
    expected = np.take_along_axis(estimator.decision_function(features), best, 1)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert found.correction == estimator.correction_
    with pytest.raises(ValueError, match=r"k must be in 1\.\.12\. Got 13"):
        LabelRanking(estimator, 13)


def test_a_program_of_torch_export_is_the_model_with_its_record(tmp_path):
    folded, path = fold_adjustment(make_model(), PRIOR).eval(), tmp_path / "model.pt2"
    export_program(folded, torch.randn(2, 4), path)
    extra = {"longtail.json": ""}
    program = torch.export.load(path, extra_files=extra)
    x = torch.randn(5, 4)
    torch.testing.assert_close(program.module()(x), folded(x))
    assert Correction.from_json(json.loads(extra["longtail.json"])).is_corrected


@pytest.mark.parametrize("convert", [torch.Tensor.double, torch.Tensor.half, torch.Tensor.numpy, torch.clone])
def test_a_served_model_takes_numbers_of_any_precision(exported, convert):
    x = torch.ones(3, 4)
    served = load_onnx(exported[1])
    np.testing.assert_allclose(served(convert(x)), served(x.numpy()), atol=1e-3)
    np.testing.assert_array_equal(served(DataFrame(x.double().numpy())), served(x.numpy()))


def test_a_served_model_refuses_what_can_not_be_converted(exported, one_line):
    with pytest.raises(TypeError, match=r"inputs must be float32\. Got complex128; convert it first") as error:
        load_onnx(exported[1])(np.ones((3, 4), complex))
    one_line(error)


def test_what_is_exported_keeps_its_record(exported, tmp_path):
    assert read_correction(load_onnx(exported[1])) == read_correction(exported[0])
    export_program(exported[0], torch.randn(2, 4), tmp_path / "model.pt2")
    program = load_program(tmp_path / "model.pt2")
    assert read_correction(program) == read_correction(exported[0])
    with pytest.raises(ValueError, match="must not be corrected yet"):
        fold_adjustment(program, PRIOR)
    export_program(make_model(), torch.randn(2, 4), tmp_path / "plain.pt2")
    assert read_correction(load_program(tmp_path / "plain.pt2")) is None


class AsHuggingFace(nn.Module):
    """Outputs by name."""

    def __init__(self):
        super().__init__()
        self.model = make_model()

    def forward(self, x):
        return {"logits": self.model(x)}


def test_outputs_by_name_and_inputs_as_arrays_are_exported(exported, tmp_path):
    model = AsHuggingFace().eval()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    export_onnx(model, x[:2], tmp_path / "model.onnx")
    with torch.no_grad():
        expected = model(torch.from_numpy(x))["logits"]
    np.testing.assert_allclose(load_onnx(tmp_path / "model.onnx")(x), expected, rtol=0, atol=1e-5)


def test_what_can_t_be_exported_is_one_line(exported, tmp_path, one_line):
    path = tmp_path / "model.onnx"
    with pytest.raises(TypeError, match=r"a tuple of them in the order of the model's arguments\. Got dict") as error:
        export_onnx(make_model(), {"x": torch.ones(2, 4)}, path)
    one_line(error)
    with pytest.raises(ValueError, match=r"inputs must have two samples or more.* Got none"):
        export_onnx(make_model(), torch.ones(0, 4), path)
    with pytest.raises(ValueError, match=r"nothing was written\. Export model\.float\(\)") as error:
        export_onnx(make_model().bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16), path)
    one_line(error)
    assert not path.exists()
