"""Sets of the extreme-classification repository on small files written here."""

import pytest

from longtail.lab.data.registry import load_data
from longtail.lab.data.sets.extreme_repository import REPOSITORY_SETS, read_repository_set
from longtail.lab.training.recipe import DataRecipe

TITLES = {"amazoncat13k": "AmazonCat-13K", "wikilshtc325k": "WikiLSHTC-325K"}


@pytest.mark.parametrize("name", TITLES)
def test_a_set_is_found_or_named(tmp_path, monkeypatch, name):
    folder = REPOSITORY_SETS[name].folder
    with pytest.raises(FileNotFoundError, match=rf"{TITLES[name]} was not found: put {folder}/train\.txt"):
        read_repository_set(name, tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "train.txt").write_bytes(b"2 4 3\n0,2 1:2\n1 0:1\n")
    (tmp_path / folder / "test.txt").write_bytes(b"1 4 3\n1 1:2\n")
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    data = load_data(DataRecipe(name))
    assert (data.name, data.input_shape, data.num_classes) == (TITLES[name], (4,), 3)
    assert data.train.labels.to_dense().int().tolist() == [[1, 0, 1], [0, 1, 0]]


def test_propensities_are_those_of_jain_et_al():
    constants = {name: found.propensity for name, found in REPOSITORY_SETS.items()}
    assert constants == {"delicious": (0.55, 1.5), "amazoncat13k": (0.55, 1.5), "wikilshtc325k": (0.5, 0.4)}
