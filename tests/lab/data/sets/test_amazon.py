"""Amazon Sports and Toys: the published sizes, where the files are; and what is said where they are not."""

import pytest

from longtail.lab.data.sets.amazon import load_amazon_sports, load_amazon_toys


@pytest.mark.parametrize(
    ("load", "name", "users", "items", "events"),
    [(load_amazon_sports, "sports", 35598, 18357, 296337), (load_amazon_toys, "toys", 19412, 11924, 167597)],
)
def test_sizes_as_published(real_file, load, name, users, items, events):
    data = load(str(real_file(f"sequences/{name}.txt.gz").parents[1]))
    assert (len(data.test), data.num_classes) == (users, items)
    # Longer histories are cut, so the prior may count fewer than all labels: events without three per user.
    assert events - 3 * users - 0.02 * events < data.prior.num_samples <= events - 3 * users


@pytest.mark.parametrize("load", [load_amazon_sports, load_amazon_toys])
def test_missing_files_are_named(tmp_path, load):
    with pytest.raises(FileNotFoundError, match=r"put sequences/\w+.txt or sequences/\w+.txt.gz into"):
        load(str(tmp_path))
