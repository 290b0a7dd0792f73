"""Events from text and tables, and the leave-one-out split of them against plain loops."""

import datetime
import gzip

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from longtail.lab.data.formats.events import Events, leave_one_out, load_events, read_events
from longtail.lab.data.registry import DataRecipe, load_data

LINES = "ann 5 10 9 5\nbob 9 5 10 7 9 5 7\ncid 7 5\ndan 10 9 7\neve 5\n"
SEQUENCES = {line.split()[0]: line.split()[1:] for line in LINES.splitlines()}


def write_lines(path, text=LINES):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def names_of(data, items):
    return [data.class_names[item] for item in items]


@pytest.mark.parametrize("name", ["toys.txt", "toys.txt.gz"])
def test_lines_are_users_and_their_items(tmp_path, name):
    events = read_events(write_lines(tmp_path / name))
    assert events.users == tuple(SEQUENCES)
    assert events.item_names == ("5", "7", "9", "10")  # as numbers: 10 is after 9
    parts = events.items.tensor_split(events.offsets[1:-1])
    assert [[events.item_names[i] for i in part] for part in parts] == list(SEQUENCES.values())


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
@pytest.mark.parametrize("max_length", [2, 50])
def test_leave_one_out_is_what_loops_give(tmp_path, evaluate_on, max_length):
    data = load_events(write_lines(tmp_path / "toys.txt"), evaluate_on=evaluate_on, max_length=max_length)
    assert data.name == "toys"
    assert data.is_sequential
    assert not data.is_multilabel
    train, test = [], []
    for items in SEQUENCES.values():
        held_out = 2 if len(items) > 2 else 0
        kept = items[: len(items) - held_out]
        if len(kept) > 1:
            train.append((kept[:-1][-max_length:], kept[1:][-max_length:]))
        if held_out:
            end = len(items) - (1 if evaluate_on == "test" else 2)
            test.append((items[:end][-max_length:], items[end]))
    for index, (inputs, labels) in enumerate(train):
        one = torch.tensor([index])
        assert names_of(data, data.train.batch(one).items) == inputs
        assert names_of(data, data.train.targets(one)) == labels
    assert len(data.train) == len(train)
    for index, (inputs, label) in enumerate(test):
        assert names_of(data, data.test.batch(torch.tensor([index])).items) == inputs
        assert data.class_names[data.test.labels[index]] == label
    assert len(data.test) == len(test)
    counts = [sum(labels.count(name) for _, labels in train) for name in data.class_names]
    assert data.prior.counts.tolist() == counts if max_length == 50 else True
    assert bool((data.prior.probs > 0).all())  # smoothed: an item may be new in the test


@pytest.mark.parametrize("kind", ["whole", "fraction", "date"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_are_sorted_by_time(tmp_path, kind, suffix):
    rows = [(user, item, place) for user, items in SEQUENCES.items() for place, item in enumerate(items)]
    rows = [rows[place] for place in torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    start = datetime.datetime(2024, 1, 1)
    convert = {"whole": int, "fraction": lambda t: t / 8, "date": lambda t: start + datetime.timedelta(days=t)}[kind]
    table = pa.table(
        {
            "who": [user for user, _, _ in rows],
            "what": [int(item) for _, item, _ in rows],
            "when": [convert(place) for _, _, place in rows],
        }
    )
    path = tmp_path / f"events{suffix}"
    (pa.parquet.write_table if suffix == ".parquet" else pa.csv.write_csv)(table, path)
    events = read_events(path, user="who", item="what", time="when")
    parts = events.items.tensor_split(events.offsets[1:-1])
    found = {user: [events.item_names[i] for i in part] for user, part in zip(events.users, parts, strict=True)}
    assert found == SEQUENCES


def test_events_of_equal_time_stay_in_order(tmp_path):
    table = pa.table({"user": ["a"] * 4, "item": ["x", "y", "z", "w"], "time": [1, 0, 0, 0]})
    pa.parquet.write_table(table, tmp_path / "events.parquet")
    events = read_events(tmp_path / "events.parquet")
    assert [events.item_names[i] for i in events.items] == ["y", "z", "w", "x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Got an empty file"),
        ("ann 1 2 3 4\n\n", "line 2: must be a user and then items"),
        ("ann 1 2 3 4\nbob\n", "line 2: must be a user and then items"),
        ("ann 1 2 3 4\nann 5 6\n", "one line for each user"),
        (b"\xff\xfe 1 2", "must be text"),
        ("ann 1 2\nbob 1\n", "there must be users with four events"),
    ],
)
def test_bad_lines(tmp_path, text, message, one_line):
    path = tmp_path / "events.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as error:
        load_events(path)
    one_line(error)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": ["a"], "item": ["x"]}, "no column 'time'; name it with data.options.time"),
        ({"user": ["a", None], "item": ["x", "y"], "time": [1, 2]}, "every event must have a 'user'"),
        ({"user": ["a"], "item": ["x"], "time": ["noon"]}, "must be numbers or times"),
        (dict.fromkeys(("user", "item", "time"), pa.array([], pa.int64())), "Got none"),
    ],
)
def test_bad_tables(tmp_path, columns, message, one_line):
    pa.parquet.write_table(pa.table(columns), tmp_path / "events.parquet")
    with pytest.raises(ValueError, match=message) as error:
        read_events(tmp_path / "events.parquet")
    one_line(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"evaluate_on": "tests"}, "evaluate_on must be one of"), ({"max_length": 0}, "max_length must be at least 1")],
)
def test_bad_options(tmp_path, options, message):
    path = write_lines(tmp_path / "events.txt")
    with pytest.raises(ValueError, match=message):
        load_data(DataRecipe("events", options={"path": str(path), **options}))


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"events\.txt was not found"):
        read_events("events.txt")


def test_histories_are_all_events(tmp_path):
    events = read_events(write_lines(tmp_path / "events.txt"))
    histories = events.histories(max_length=3)
    last = [[events.item_names[i] for i in part] for part in histories.items.tensor_split(histories.offsets[1:-1])]
    assert last == [items[-3:] for items in SEQUENCES.values()]


def test_profiles_need_one_label():
    events = Events(("a",), torch.tensor([0, 4]), torch.tensor([0, 1, 2, 3]), tuple("abcd"))
    assert leave_one_out(events, "example").num_classes == 4
