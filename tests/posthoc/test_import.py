"""What importing the post-hoc corrections and the metrics does not load."""

import subprocess
import sys

import pytest

HEAVY = ("sklearn", "scipy", "torchmetrics", "pandas")


@pytest.mark.parametrize("package", ["longtail.posthoc", "longtail.metrics", "longtail.metrics.classes"])
def test_functions_load_no_heavy_package(package):
    program = f"import sys, {package}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
