"""What is said while training."""

import json

import pytest

from longtail.lab.training.progress import ComparisonProgress, TrainingProgress, describe_progress, read_last_row


def test_the_line_has_what_is_known():
    line = describe_progress("logit_adjusted · seed 1", 12, 60, 109, 109 / 252, 202, run="2/6")
    expected = "run 2/6 · logit_adjusted · seed 1 · epoch 12/60 · elapsed 1:49 · left 2:23 · 202 samples/s"
    assert line == expected
    assert describe_progress("a", 1, 2, 0, 0, 0) == "a · epoch 1/2 · elapsed 0:00"


class Written(ComparisonProgress):
    def write(self, text):
        self.text = text


def test_a_comparison_reads_where_its_runs_are(tmp_path, monkeypatch):
    for name, epochs in (("a", 3), ("b", 1)):
        (tmp_path / name).mkdir()
        rows = [json.dumps({"epoch": epoch, "samples_per_second": 50.0}) for epoch in range(epochs)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    progress = Written(num_runs=4)
    monkeypatch.setattr(Written, "elapsed", property(lambda self: 60.0))
    progress.show(1, [(tmp_path / "a", "a · seed 0", 6), (tmp_path / "b", "b · seed 0", 2)])
    # 1 + 3/6 + 1/2 of 4 runs took a minute.
    assert progress.text == "run 2/4 · a · seed 0 · epoch 4/6 · elapsed 1:00 · left 1:00 · 100 samples/s"


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"loss": 1}\n'])
def test_a_broken_last_line_says_nothing(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert read_last_row(tmp_path / "metrics.jsonl") == {}
    assert read_last_row(tmp_path / "none") == {}


def test_nothing_is_written_where_there_is_no_terminal(capfd):
    with TrainingProgress("a · seed 0", 2, 0, enabled=True) as progress:
        progress.begin_epoch()
        progress.show(0, 0.5, 10)
    assert capfd.readouterr() == ("", "")
