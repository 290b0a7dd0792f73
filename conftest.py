"""What every test and doctest runs under: one thread per process, and an instruction set that all machines share."""

import importlib
import os

# Some virtual machines announce matrix tiles (AMX) and then stop at the first use of them. Set before torch is used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long tests/fuzz tries things."""
    parser.addoption(
        "--fuzz-minutes", type=float, default=0.0, help="minutes for tests/fuzz; default: about one in all"
    )


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Threads that spin for work make a suite on a busy machine take ten times as long."""
    torch.set_num_threads(1)


collect_ignore = ["src/longtail/integrations/lightning.py"]
"""Has no examples, and imports lightning, which may be absent and takes seconds."""

PACKAGES = (
    "prior",
    "margins",
    "weights",
    "losses",
    "negatives",
    "heads",
    "sampling",
    "posthoc",
    "metrics",
    "methods",
)


@pytest.fixture(autouse=True)
def public_names_in_examples(request: pytest.FixtureRequest) -> None:
    """A docstring's example may use the library's public names without importing them."""
    example = getattr(request.node, "dtest", None)
    if example is None or ".lab." in example.name:
        return
    example.globs.setdefault("torch", torch)
    for package in PACKAGES:
        module = importlib.import_module(f"longtail.{package}")
        for name in module.__all__:
            example.globs.setdefault(name, getattr(module, name))
