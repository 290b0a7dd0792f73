"""Strategies: files of labels and scores, recipes, arguments, and damage."""

import gzip
import io
import string

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from hypothesis import strategies as st

__all__ = ["arguments", "damage_bytes", "damages", "label_files", "recipe_texts", "score_files", "values"]

NAMES = st.text(string.ascii_letters + string.digits + " ,;\"'\t\n\x1b[2J é\u202e\0<>&", max_size=8)
NUMBERS = st.one_of(
    st.integers(-3, 50),
    st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, 10**19, -(2**63)]),
    st.floats(),
    st.floats(0, 1),
)


# --- Damage


@st.composite
def damages(draw):
    """Ways to damage bytes: (kind, place as a share, number)."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "zeros", "repeat", "swap"]))
    return kind, draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 255))


def damage_bytes(content, damage):
    kind, share, number = damage
    place = int(share * len(content))
    if kind == "cut" or not content:
        return content[:place]
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ (1 << number % 8)]) + content[place + 1 :]
    if kind == "insert":
        return content[:place] + bytes([number]) * (number % 7 + 1) + content[place:]
    if kind == "zeros":
        return content[:place] + bytes(len(content[place : place + number])) + content[place + number :]
    if kind == "repeat":
        return content[:place] + content[place : place + number] * 2 + content[place + number :]
    return content[place:] + content[:place]


# --- Files


@st.composite
def label_arrays(draw):
    """[N] labels of any type that a file may have; most are fine."""
    size = draw(st.integers(0, 12))
    kind = draw(st.sampled_from(["small", "small", "any", "names", "float", "bool", "matrix", "bytes", "object"]))
    if kind == "small":
        dtype = draw(st.sampled_from(["i8", ">i4", "u1", "i2", "f8", ">f8", "f2", "g"]))
        return np.array(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))).astype(dtype)
    if kind == "any":
        return np.array(draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=size, max_size=size)), dtype="i8")
    if kind == "names":
        return np.array(draw(st.lists(NAMES, min_size=size, max_size=size)), dtype=np.str_)
    if kind == "float":
        return np.array(draw(st.lists(st.floats(), min_size=size, max_size=size)))
    if kind == "bool":
        return np.zeros((size, draw(st.integers(0, 3))), dtype=bool)
    if kind == "matrix":
        return np.ones(draw(st.lists(st.integers(0, 4), max_size=4)), dtype=draw(st.sampled_from(["f4", "i8", "c8"])))
    return np.array([b"a", b"b"]) if kind == "bytes" else np.array([{"a": 1}, None], dtype=object)


@st.composite
def label_files(draw):
    """(file name, bytes): labels, whole or damaged."""
    suffix = draw(st.sampled_from([".npy", ".npz", ".csv", ".csv.gz", ".parquet", ".txt", ".toml", ".json", ""]))
    content = draw(_contents(suffix))
    for damage in draw(st.lists(damages(), max_size=2)):
        content = damage_bytes(content, damage)
    return f"labels{suffix}", content


@st.composite
def _contents(draw, suffix):
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    if suffix in (".npy", ".npz"):
        return _numpy_bytes(draw(label_arrays()), suffix, draw(st.sampled_from(["label", "y", "train_labels"])))
    columns = draw(st.dictionaries(st.one_of(st.just("label"), NAMES), st.integers(1, 3), min_size=1, max_size=3))
    size = draw(st.integers(0, 8))
    table = {name: draw(st.lists(_cells(kind), min_size=size, max_size=size)) for name, kind in columns.items()}
    if suffix == ".parquet":
        sink = io.BytesIO()
        pa.parquet.write_table(pa.table(table), sink)
        return sink.getvalue()
    if suffix in (".csv", ".csv.gz"):
        sink = io.BytesIO()
        pa.csv.write_csv(pa.table(table), sink)
        return gzip.compress(sink.getvalue()) if suffix.endswith("gz") else sink.getvalue()
    lines = [draw(st.sampled_from(["2 3 4", "0 0 0", "-1 2 3", "1,2 0:1.0 2:0.5", " 1:nan", "9 0:1", ""]))]
    lines += draw(st.lists(st.sampled_from(["1,2 0:1.0 2:0.5", "0 1:2", "", "x", "7 99:1", "0 0:inf"]), max_size=4))
    return "\n".join(lines).encode()


def _cells(kind):
    return {1: st.integers(0, 4), 2: st.sampled_from(["a", "b", "01", "1"]), 3: st.floats(-1, 1)}[kind]


def _numpy_bytes(array, suffix, name):
    sink = io.BytesIO()
    if suffix == ".npy":
        np.save(sink, array, allow_pickle=True)
    else:
        np.savez_compressed(sink, **{name: array, "other": np.zeros(2)})
    return sink.getvalue()


@st.composite
def score_files(draw):
    """(file name, bytes): scores [N, 3], most of them fine."""
    rows = draw(st.integers(0, 6))
    numbers = st.floats(-5, 5) if draw(st.booleans()) else st.floats()
    scores = np.array(draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=rows, max_size=rows)))
    scores = scores.reshape(rows, 3).astype(draw(st.sampled_from(["f8", "f4", "f2", ">f4"])), copy=False)
    suffix = draw(st.sampled_from([".npy", ".npz", ".csv", ".parquet"]))
    if suffix in (".npy", ".npz"):
        content = _numpy_bytes(scores, suffix, "scores")
    else:
        table, sink = pa.table({str(c): scores[:, c].astype("f8") for c in range(3)}), io.BytesIO()
        (pa.parquet.write_table if suffix == ".parquet" else pa.csv.write_csv)(table, sink)
        content = sink.getvalue()
    for damage in draw(st.lists(damages(), max_size=1)):
        content = damage_bytes(content, damage)
    return f"scores{suffix}", content


# --- Recipes and arguments


def values():
    """What may stand for a value in TOML, right or wrong."""
    simple = st.one_of(NUMBERS, st.booleans(), NAMES, st.sampled_from(["digits", "linear", "mlp", "cosine", "none"]))
    return st.one_of(simple, st.lists(simple, max_size=3), st.dictionaries(NAMES, simple, max_size=2))


SETTINGS = [
    *(
        f"train.{name}"
        for name in ("batch_size", "learning_rate", "momentum", "nesterov", "weight_decay", "schedule")
    ),
    *(f"train.{name}" for name in ("milestones", "decay", "warmup_epochs", "clip_norm", "accumulate", "ema_decay")),
    *(f"train.{name}" for name in ("pad_crop", "flip", "cutout", "mixup", "precision", "channels_last", "seed")),
    *(f"train.{name}" for name in ("evaluate_every", "save_embeddings", "optimizer", "epochs", "nothing")),
    *("data.source", "data.profile", "data.ratio", "data.seed", "data.options.seed", "data.options.test_per_class"),
    *("model.name", "model.options.hidden", "model.options.dropout", "model.options.head", "model.options.width"),
    *("method.name", "method.options.tau", "method.options.strength", "method.options.memory_size", "name", "x.y"),
]


@st.composite
def recipe_texts(draw):
    """TOML of a small recipe with some settings that may be wrong, whole or damaged."""
    import tomli_w

    table = {
        "name": "fuzz",
        "data": {"source": "digits", "profile": "exponential", "ratio": 10.0, "options": {"test_per_class": 5}},
        "model": {"name": draw(st.sampled_from(["linear", "mlp"]))},
        "train": {"batch_size": 64},
        "method": {"name": draw(st.sampled_from(["cross_entropy", "logit_adjusted", "elm", "focal"]))},
    }
    for _ in range(draw(st.integers(0, 3))):
        place = table
        *parents, last = draw(st.sampled_from(SETTINGS)).split(".")
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place.get(parent, {}), dict) else {}
        place[last] = draw(values())
    try:
        content = tomli_w.dumps(table).encode("utf-8", "replace")
    except (TypeError, ValueError):
        content = repr(table).encode("utf-8", "replace")
    for damage in draw(st.lists(damages(), max_size=1)):
        content = damage_bytes(content, damage)
    return content


@st.composite
def arguments(draw):
    """A command with options, of which any may be wrong; nothing that trains for long or downloads."""
    text = st.one_of(NAMES, NUMBERS.map(str), st.sampled_from(["digits", "labels.csv", "scores.csv", "1", "nan"]))
    command = draw(st.sampled_from(sorted(OPTIONS)))
    chosen = [command]
    for option in draw(st.lists(st.sampled_from(OPTIONS[command]), max_size=4)):
        chosen += [option] if option in FLAGS else [option, draw(text)]
    for _ in range(draw(st.integers(0, 2))):
        chosen.insert(draw(st.integers(1, len(chosen))), draw(text))
    return [part.replace("\0", "") for part in chosen]


FLAGS = {"--json", "--force", "--multilabel", "--tune", "--nothing"}
OPTIONS = {
    "list": ["--family", "--json", "--nothing"],
    "show": ["--json", "--nothing"],
    "inspect": ["--label", "--json", "--nothing"],
    "adjust": [
        *("--train-labels", "--counts", "--tau", "--output", "--label", "--labels", "--columns", "--force"),
        *("--target-prior", "--multilabel", "--thresholds", "--nothing"),
    ],
    "report": ["--output", "--title", "--force"],
    "embed": ["--output", "--accelerator", "--force"],
    "explain": ["--sampling", "--weighting", "--json", "--nothing"],
}
