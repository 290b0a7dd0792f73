"""What two processes agree on beside metrics: priors, and that a failing one is reported."""

import pytest
import torch

from longtail import ClassPrior

LABELS = torch.tensor([0, 0, 0, 1, 1, 3, 0, 0, 1, 5])


def merge_priors(rank):
    merged = ClassPrior.from_labels(LABELS[:4] if rank == 0 else LABELS[4:], 6).all_reduce()
    try:
        ClassPrior.from_counts([1] * (rank + 2)).all_reduce()
        message = ""
    except ValueError as error:
        message = str(error)
    return merged.counts.tolist(), merged.num_samples, message


def test_two_processes_merge_their_priors_unless_their_classes_differ(two_processes):
    whole = ClassPrior.from_labels(LABELS, 6)
    for counts, num_samples, message in two_processes(merge_priors):
        assert counts == whole.counts.tolist()
        assert num_samples == whole.num_samples
        assert "same number of classes. Got 2 to 3" in message


def fail_in_one_process(rank):
    if rank == 1:
        raise ValueError("rank 1 gives up")
    return rank


def test_a_failing_process_is_reported(two_processes):
    with pytest.raises(RuntimeError, match="rank 1 gives up"):
        two_processes(fail_in_one_process)
