"""The table of sources, and recipes for data."""

import subprocess
import sys

import pytest
import torch

from longtail import datasets
from longtail.lab.data.registry import PROFILES, SOURCES, DataRecipe, load_data
from longtail.lab.data.sets.builtin import digits


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_documented_and_lives_with_its_set_or_format(name):
    source = SOURCES[name]
    assert source.__doc__
    assert source.__module__.startswith(("longtail.lab.data.sets.", "longtail.lab.data.formats."))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("shuffle_classes", [False, True])
def test_a_profile_keeps_what_make_long_tailed_keeps(profile, shuffle_classes):
    data = load_data(DataRecipe("digits", profile, 20.0, shuffle_classes=shuffle_classes, seed=3))
    whole = digits().train
    _, labels = datasets.make_long_tailed(
        whole.inputs,
        whole.labels,
        ratio=20.0,
        profile=PROFILES[profile],
        shuffle_classes=shuffle_classes,
        random_state=3,
    )
    assert torch.equal(data.train.labels, labels)
    assert int(data.prior.counts.max()) == 124


def test_data_does_not_import_training():
    program = "import sys, longtail.lab.data.registry, longtail.lab.data.download\n"
    program += "print([name for name in sys.modules if name.startswith('longtail.lab.training')])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
