"""Files of heads and of estimators: back as they were, damaged or foreign ones refused."""

import json
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from longtail import (
    ClassPrior,
    CosineLinear,
    ExtremeClassifier,
    LogitAdjustedClassifier,
    MarginBoostedClassifier,
    ThresholdedClassifier,
    fold_adjustment,
    margins,
)
from longtail.correction import Correction, read_correction
from longtail.errors import DamagedFileError
from longtail.serving import load_estimator, load_head, save_estimator, save_head

PRIOR = ClassPrior.from_counts([70, 20, 10])


@pytest.mark.parametrize("head", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), CosineLinear(4, 3, scale=7.0)])
def test_a_head_comes_back_with_its_record(head, tmp_path):
    record = Correction(PRIOR, "logit_adjusted", 0.5, is_corrected=True)
    save_head(head, tmp_path / "head.safetensors", record)
    loaded = load_head(tmp_path / "head.safetensors")
    x = torch.randn(5, 4)
    assert torch.equal(loaded(x), head(x))
    assert read_correction(loaded) == record
    with pytest.raises(ValueError, match="must not be corrected yet"):
        fold_adjustment(loaded)


def test_a_folded_head_can_be_kept_and_is_not_folded_again(tmp_path):
    save_head(nn.Linear(4, 3), tmp_path / "head.safetensors", Correction(PRIOR))
    folded = fold_adjustment(load_head(tmp_path / "head.safetensors"))
    save_head(folded, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match="by posthoc_adjusted with tau 1"):
        fold_adjustment(load_head(tmp_path / "head.safetensors"))


def test_a_damaged_or_foreign_head_is_refused(tmp_path, one_line):
    path = tmp_path / "head.safetensors"
    save_head(nn.Linear(4, 3), path, Correction(PRIOR))
    content = path.read_bytes()
    for place in range(0, len(content), 37):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DamagedFileError) as error:
            load_head(path)
        one_line(error)
    ExtremeClassifier(hidden_size=2, epochs=1).fit(np.eye(3), [0, 1, 2]).save(path)
    with pytest.raises(DamagedFileError, match="kind 'extreme classifier'"):
        load_head(path)
    with pytest.raises(ValueError, match="no record of its prior; pass correction"):
        save_head(nn.Linear(4, 3), path)
    with pytest.raises(ValueError, match="correction is for 3 classes, but the head has 2"):
        save_head(nn.Linear(4, 2), path, Correction(PRIOR))


def test_an_extreme_classifier_keeps_what_its_loss_did(tmp_path):
    X, y = np.eye(3, dtype=np.float32)[[0, 0, 0, 1, 1, 2]], [0, 0, 0, 1, 1, 2]
    settings = {"hidden_size": 2, "epochs": 1, "random_state": 0}
    plain = ExtremeClassifier(emphasis="precision", **settings).fit(X, y)
    assert plain.correction_ == Correction(plain.label_prior_, tau=0.0)
    assert ExtremeClassifier(emphasis="tail", **settings).fit(X, y).correction_.is_corrected
    adjusted = ExtremeClassifier(margins=margins.logit_adjusted, **settings).fit(X, y)
    adjusted.save(tmp_path / "model.safetensors")
    loaded = ExtremeClassifier.load(tmp_path / "model.safetensors")
    assert loaded.correction_ == Correction(ClassPrior.from_counts([3, 2, 1]), "logit_adjusted", 1.0, True)
    assert read_correction(loaded) == loaded.correction_


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("skops")
    return make_classification(200, weights=[0.8], random_state=0)


def test_estimators_come_back_as_they_were(data, tmp_path):
    X, y = data
    several = np.stack([y, X[:, 0] > 0], axis=1)
    models = [
        LogitAdjustedClassifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, y),
        ThresholdedClassifier(OneVsRestClassifier(LogisticRegression())).fit(X, several),
        LogisticRegression().fit(X, y),
    ]
    for model in models:
        path = tmp_path / "model.skops"
        save_estimator(model, path)
        np.testing.assert_array_equal(load_estimator(path).predict(X), model.predict(X))
    assert models[0].tau_search_ is not None  # the estimator itself is left as it is


def test_the_file_says_how_it_is_corrected_and_what_is_loaded_is_not_corrected_again(data, tmp_path, one_line):
    X, y = data
    model = LogitAdjustedClassifier(LogisticRegression(), tau=0.5).fit(X, y)
    save_estimator(model, tmp_path / "model.skops")
    with zipfile.ZipFile(tmp_path / "model.skops") as archive:
        note = json.loads(archive.read("longtail.json"))
    assert note["format"] == 1
    assert note["correction"]["tau"] == 0.5
    assert note["correction"]["prior"] == pytest.approx(model.class_prior_.tolist())
    with pytest.raises(ValueError, match="corrected twice") as error:
        LogitAdjustedClassifier(load_estimator(tmp_path / "model.skops")).fit(X, y)
    one_line(error)


def test_a_changed_file_and_foreign_types_are_refused(data, tmp_path, one_line):
    X, y = data
    path = tmp_path / "model.skops"
    save_estimator(LogisticRegression().fit(X, y), path)
    content = path.read_bytes()
    middle = content.index(b"\x93NUMPY") + 140  # in the coefficients
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(DamagedFileError) as error:
        load_estimator(path)
    one_line(error)
    path.write_bytes(pickle.dumps(LogisticRegression()))
    with pytest.raises(DamagedFileError, match="must be a file that save_estimator wrote"):
        load_estimator(path)
    own = make_pipeline(FunctionTransformer(one_plus), LogisticRegression()).fit(X, y)
    save_estimator(own, path)
    with pytest.raises(DamagedFileError, match=r"not trusted: .*one_plus") as error:
        load_estimator(path)
    one_line(error)


def one_plus(values):
    return values + 1


def test_a_file_of_another_version_says_so(data, tmp_path):
    path, other = tmp_path / "model.skops", tmp_path / "other.skops"
    save_estimator(LogisticRegression().fit(*data), path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other, "w") as changed:
        for name in archive.namelist():
            text = archive.read(name)
            changed.writestr(name, text.replace(b'"format": 1', b'"format": 2') if name == "longtail.json" else text)
    with pytest.raises(DamagedFileError, match=r"format 2, and this version of longtail reads 1"):
        load_estimator(other)


def test_what_skops_is_not_for_is_said(data, tmp_path):
    with pytest.raises(TypeError, match="use its save and load"):
        save_estimator(ExtremeClassifier(), tmp_path / "model.skops")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("package", "kind"), [("lightgbm", "LGBMClassifier"), ("xgboost", "XGBClassifier")])
def test_boosters_come_back_once_their_types_are_trusted(data, tmp_path, package, kind, one_line):
    X, y = data
    booster = getattr(pytest.importorskip(package), kind)(n_estimators=5, n_jobs=1, verbosity=0)
    model = MarginBoostedClassifier(booster).fit(X, y)
    save_estimator(model, tmp_path / "model.skops")
    with pytest.raises(
        DamagedFileError, match=rf"not trusted: .*{package}\.sklearn\.{kind}; if you trust them"
    ) as error:
        load_estimator(tmp_path / "model.skops")
    one_line(error)
    names = re.search("not trusted: (.*);", str(error.value))[1].split(", ")
    loaded = load_estimator(tmp_path / "model.skops", trusted=names)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert model.margins_ is not None  # the estimator itself is left as it is
