"""What is left of a process group once it is destroyed."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import longtail
from longtail.negatives import importance, uniform

THREADS = Path("/proc/self/task")


def names_of_threads():
    return sorted(path.read_text().strip() for path in THREADS.glob("*/comm"))


def train_and_destroy(rank):
    encoder = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 8))
    head = longtail.SampledLinear(8, 20, uniform(20), importance, num_negatives=5, is_sharded=True)
    head(encoder(torch.ones(3, 4)), torch.tensor([1, 2, 3])).backward()
    head.topk(encoder(torch.ones(3, 4)), k=2)
    before = names_of_threads()
    del encoder, head
    dist.destroy_process_group()
    after = names_of_threads()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # which the helper destroys
    return before, after


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_a_destroyed_group_leaves_no_thread_that_could_abort_the_process_at_its_end(two_processes):
    for before, after in two_processes(train_and_destroy):
        assert any("gloo" in name for name in before)
        assert not any("gloo" in name for name in after)
