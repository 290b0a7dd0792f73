from __future__ import annotations

import torch

from longtail._core.threads import limit_threads


def test_a_small_step_gets_one_thread_and_a_large_one_keeps_all() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with limit_threads(1e6):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with limit_threads(1e10):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
