"""What importing the package does, and does not."""

import subprocess
import sys

import pytest

import longtail

HEAVY = ("sklearn", "scipy", "torchmetrics", "pandas", "typer", "rich", "plotly", "pyarrow", "lightning_fabric")


def test_importing_loads_torch_and_little_else():
    program = f"import sys, longtail; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("name", longtail.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(longtail, name)
    assert name == "METHODS" or value.__doc__


def test_public_names_are_listed_and_others_are_refused():
    assert dir(longtail) == sorted(longtail.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = longtail.nothing


def test_the_library_does_not_import_the_lab():
    program = "import pkgutil, sys, longtail, importlib\n"
    program += "for m in pkgutil.iter_modules(longtail.__path__):\n"
    program += "    m.name == 'lab' or importlib.import_module(f'longtail.{m.name}')\n"
    program += "print([name for name in sys.modules if name.startswith('longtail.lab')])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
