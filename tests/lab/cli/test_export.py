"""``longtail export``: the model of a run, adjusted once."""

import json

import numpy as np
import pytest
import torch

from longtail.correction import Correction
from longtail.lab.runs.folder import load_run
from longtail.lab.training.export import serve_run


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "runs"
    done = run(
        "compare", "digits", "--methods", "posthoc_adjusted", "--seeds", 1, "--workers", 1, "--set", "train.epochs=2",
        "--output", folder,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return folder


def first_logits(folder, tau=None):
    model, inputs = serve_run(folder, tau)
    with torch.no_grad():
        return model(inputs).numpy()


def test_what_is_served_predicts_what_the_run_did(trained, plain):
    for folder in (trained, plain / "cross_entropy" / "seed-0"):
        expected = load_run(folder).predictions.scores[:2]
        np.testing.assert_allclose(first_logits(folder), expected, rtol=0, atol=1e-4)
    # A post-hoc run is adjusted once, whether its method or --tau does it.
    adjusted = load_run(plain / "posthoc_adjusted" / "seed-0").predictions.scores[:2]
    for folder, tau in ((plain / "posthoc_adjusted" / "seed-0", None), (plain / "cross_entropy" / "seed-0", 1.0)):
        np.testing.assert_allclose(first_logits(folder, tau), adjusted, rtol=0, atol=1e-4)


def test_export_writes_a_program_with_its_record(run, trained, tmp_path):
    done = run("export", trained, "--output", tmp_path / "model.pt2")
    assert done.exit_code == 0, done.stderr
    assert "corrected for class frequencies" in done.stdout
    extra = {"longtail.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    record = Correction.from_json(json.loads(extra["longtail.json"]))
    assert (record.method, record.tau, record.is_corrected) == ("logit_adjusted", 1.0, True)
    _, inputs = serve_run(trained)
    found = program.module()(torch.cat([inputs] * 3)).detach().numpy()
    np.testing.assert_allclose(found, np.concatenate([first_logits(trained)] * 3), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_export_writes_onnx(run, trained, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from longtail.serving import load_onnx

    done = run("export", trained, "--output", tmp_path / "model.onnx")
    assert done.exit_code == 0, done.stderr
    model, inputs = serve_run(trained)
    served = load_onnx(tmp_path / "model.onnx", model)
    np.testing.assert_allclose(served(inputs.numpy()), first_logits(trained), rtol=0, atol=1e-5)
    assert served.correction.method == "logit_adjusted"


def test_a_second_correction_and_other_mistakes_are_one_line(refuse, trained, plain, tmp_path):
    output = tmp_path / "model.pt2"
    for folder in (trained, plain / "posthoc_adjusted" / "seed-0"):
        refuse(
            "export", folder, "--output", output, "--tau", "1", message="must not be corrected yet. Got one that is"
        )
    refuse("export", trained, "--output", tmp_path / "model.bin", message="must be an .onnx or .pt2 file")
    refuse("export", tmp_path / "none", "--output", output, message="is no complete run")
    output.write_text("mine")
    refuse("export", trained, "--output", output, message="exists already")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    assert output.read_text() == "mine"
