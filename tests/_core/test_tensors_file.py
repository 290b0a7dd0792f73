"""Files of tensors: numbers alone, and no bit that can change unnoticed."""

import json
import random
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail._core.tensors_file import load_tensors, pack_state, save_tensors, unpack_state
from longtail.errors import DamagedFileError

TENSORS = {
    "weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "counts": torch.tensor([2**62, 0, -1]),
    "mask": torch.tensor([[True, False]]),
    "step": torch.tensor(3.0, dtype=torch.float64),
    "nothing": torch.zeros(0, 4),
}
METADATA = {"method": "elm", "prior": [5, 3], "tau": 0.1, "name": 'é "quoted" \\'}


@pytest.fixture
def path(tmp_path):
    save_tensors(tmp_path / "a.safetensors", TENSORS, "test", METADATA)
    return tmp_path / "a.safetensors"


def rewrite_note(path, **changes):
    """The file with other entries beside its tensors, and the old digest."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["longtail"] = json.dumps(json.loads(header["__metadata__"]["longtail"]) | changes)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + size :])


def test_what_is_written_is_read_bit_for_bit(path):
    tensors, metadata = load_tensors(path, "test")
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_the_same_content_makes_the_same_file(path):
    before = path.read_bytes()
    save_tensors(path, TENSORS, "test", METADATA)
    assert path.read_bytes() == before


def test_others_can_read_it(path):
    from safetensors.torch import load_file

    assert torch.equal(load_file(path)["weight"], TENSORS["weight"])


def test_every_flipped_bit_is_refused_in_one_line_that_names_the_file(path, one_line):
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << random.Random(place).randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError) as caught:
            load_tensors(path, "test")
        assert one_line(caught).startswith(f"{path} must be longtail's file of kind 'test'. Got ")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 2000))
def test_any_other_bytes_are_refused(path, inserted, start, stop):
    content = path.read_bytes()
    changed = content[:start] + inserted + content[stop:]
    other = path.with_name("other")
    other.write_bytes(changed)
    if changed != content:
        with pytest.raises(DamagedFileError, match="other must be longtail's file of kind 'test'"):
            load_tensors(other, "test")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "format 2, and this version of longtail reads 1"),
        ({"kind": "head"}, "kind 'head'"),
        ({"metadata": 3}, "no metadata"),
        ({"metadata": {}}, "does not fit its checksum"),
        ({"digest": None}, "no checksum"),
        ({"digest": "0" * 64}, "does not fit its checksum"),
        ({"digest": ""}, "does not fit its checksum"),
    ],
)
def test_another_kind_version_or_note_is_refused(path, changes, reason):
    rewrite_note(path, **changes)
    with pytest.raises(DamagedFileError, match=reason):
        load_tensors(path, "test")


def test_another_program_s_file_and_no_file(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(DamagedFileError, match="a header that is damaged, or another program's"):
        load_tensors(tmp_path / "other", "test")
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "nothing", "test")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(DamagedFileError, match="no safetensors file, or a part of one"):
        load_tensors(tmp_path / "long", "test")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_that_are_not_finite_are_neither_written_nor_read(path, value, dtype, monkeypatch):
    before = path.read_bytes()
    wrong = {"weight": torch.tensor([0.0, value, 1.0], dtype=dtype)}
    with pytest.raises(ValueError, match=r"'weight' must be finite\. Got NaN or infinity"):
        save_tensors(path, wrong, "test")
    assert path.read_bytes() == before
    with monkeypatch.context() as patched:
        patched.setattr("longtail._core.tensors_file._is_finite", lambda _: True)
        save_tensors(path, wrong, "test")
    with pytest.raises(DamagedFileError, match="NaN or infinity in 'weight'"):
        load_tensors(path, "test")


def test_what_may_be_undefined_is_said(path):
    tensors = {"loss.ratio": torch.tensor([0.5, float("nan")]), "weight": torch.ones(1)}
    save_tensors(path, tensors, "test", not_finite=["loss."])
    assert load_tensors(path, "test")[0]["loss.ratio"][1].isnan()


def test_parts_and_shared_tensors_are_written_as_if_each_were_alone(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "same": whole, "row": whole[1], "turned": whole.T}
    save_tensors(tmp_path / "a", tensors, "test")
    assert (tmp_path / "a").stat().st_size < 2000
    read, _ = load_tensors(tmp_path / "a", "test")
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_a_full_disk_leaves_the_old_file(path, monkeypatch):
    import safetensors.torch

    before = path.read_bytes()

    def fail(*_):
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="can't be written: I/O error: No space left"):
        save_tensors(path, TENSORS, "test")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_optimizer_s_state_comes_back_with_its_layout(tmp_path):
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "a": {"b": torch.ones(1)}, "a.b": torch.zeros(2), "none": None}
    tensors, tree = pack_state(state)
    save_tensors(tmp_path / "s", tensors, "test", {"tree": tree})
    read, metadata = load_tensors(tmp_path / "s", "test")
    again = unpack_state(read, metadata["tree"])
    assert again["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    for number, values in state["optimizer"]["state"].items():
        for name, value in values.items():
            found = again["optimizer"]["state"][number][name]
            assert torch.equal(found, value)
            assert found.stride() == value.stride()
    assert torch.equal(again["a"]["b"], torch.ones(1))
    assert torch.equal(again["a.b"], torch.zeros(2))
    assert again["none"] is None


def test_what_is_no_tensor_and_no_plain_value_is_not_packed():
    with pytest.raises(TypeError, match=r"a\.0 must be tensors and plain values. Got set"):
        pack_state({"a": [set()]})
