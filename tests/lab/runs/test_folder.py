"""What reaches the disk before what, and what a run folder's files are checked against."""

import json
import os
from pathlib import Path

import pytest
import torch

from longtail.errors import DamagedFileError
from longtail.lab.runs.folder import (
    append_metrics,
    check_metrics,
    drop_metrics_from,
    read_checkpoint,
    seal_metrics,
    write_checkpoint,
)

ROWS = [{"epoch": epoch, "train_loss": 1 / (epoch + 1)} for epoch in range(4)]


@pytest.fixture
def metrics(tmp_path):
    for row in ROWS:
        append_metrics(tmp_path / "metrics.jsonl", row)
    return tmp_path / "metrics.jsonl"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are named in /proc")
def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_on_them(metrics, monkeypatch):
    events = []
    sync = os.fsync

    def record(descriptor):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write_checkpoint(metrics.with_name("c"), {"epoch": 4}, {"metrics": seal_metrics(metrics)})
    assert events[0] == "metrics.jsonl"
    assert events[1].startswith(".c.")
    assert events[2] == metrics.parent.name  # the folder, which has the new name


def test_lines_after_the_checkpoint_are_dropped_and_those_before_it_are_checked(metrics):
    append_metrics(metrics, {"epoch": 4})
    with metrics.open("a") as file:
        file.write('{"epoch": 5, "tr')  # what a kill leaves
    drop_metrics_from(metrics, 4)
    assert [json.loads(line) for line in metrics.read_text().splitlines()] == ROWS
    digest = seal_metrics(metrics)
    append_metrics(metrics, {"epoch": 4})
    check_metrics(metrics, 4, digest)
    metrics.write_text(metrics.read_text().replace("0.5", "0.6"))
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl does not fit the checkpoint beside it; .*--restart"):
        check_metrics(metrics, 4, digest)
    with pytest.raises(DamagedFileError):
        check_metrics(metrics.with_name("nothing"), 4, digest)


def test_a_checkpoint_may_hold_what_is_undefined_in_a_loss_but_not_in_the_model(tmp_path):
    nothing = torch.tensor([float("nan")])
    write_checkpoint(tmp_path / "c", {"loss": {"ratio": nothing}, "learner": None}, {"data": "x"})
    state, about = read_checkpoint(tmp_path / "c")
    assert state["loss"]["ratio"].isnan()
    assert state["learner"] is None
    assert about["data"] == "x"
    with pytest.raises(ValueError, match=r"'model\.weight' must be finite"):
        write_checkpoint(tmp_path / "c", {"model": {"weight": nothing}}, {})
    assert read_checkpoint(tmp_path / "c")[1] == {"data": "x"}
