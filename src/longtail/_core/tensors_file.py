"""The one kind of file that the library keeps tensors in: safetensors, sealed with a checksum of the whole file.

The format holds numbers and text alone, so a stranger's file can't run code. Its metadata have one entry, "longtail",
with JSON: the digest, the version of this layout, the kind of file, and what the writer adds. The digest is SHA-256
of all bytes of the file with zeros in the place of the digest, so that no bit can change unnoticed, header included.
It finds damage; it is no signature, since whoever changes a file on purpose can compute it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from longtail._core.files import replacing
from longtail.errors import DamagedFileError

__all__ = ["load_tensors", "pack_state", "pack_text", "save_tensors", "unpack_state", "unpack_text"]

FORMAT = 1
"""Goes up when an older reader would misunderstand a file."""

NO_DIGEST = "0" * 64
LARGEST_HEADER = 100_000_000
"""Bytes; the same limit as safetensors has."""

PathLike = str | os.PathLike[str]


def save_tensors(
    path: PathLike,
    tensors: Mapping[str, Tensor],
    kind: str,
    metadata: Mapping[str, Any] | None = None,
    not_finite: Sequence[str] = (),
) -> None:
    """Write tensors and what is to be known of them, whole or not at all.

    Args:
        path: the file, which is replaced if it exists.
        tensors: by name, on any device; dense, and finite where they are floating-point.
        kind: of file, such as "checkpoint"; whoever reads another kind gets an error.
        metadata: what JSON can hold, such as method, prior and tau.
        not_finite: how the names of tensors begin in which NaN or infinity has a meaning.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    content: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        if not _is_finite(tensor) and not name.startswith(tuple(not_finite)):
            raise ValueError(f"{path}: {name!r} must be finite. Got NaN or infinity; look for a diverged model.")
        content[name] = _as_stored(tensor, places)
        places.add(content[name].data_ptr())
    note = {"digest": NO_DIGEST, "format": FORMAT, "kind": kind, "not_finite": list(not_finite)}
    note["metadata"] = dict(metadata or {})
    with replacing(Path(path)) as file:
        partial = Path(file.name)
        try:
            save_file(content, partial, {"longtail": json.dumps(note)})
        except SafetensorError as error:
            raise OSError(f"{path} can't be written: {error}.") from error
        with partial.open("r+b") as written:
            digest, place = _compute_digest(written, NO_DIGEST)
            written.seek(place)
            written.write(digest.encode())


def load_tensors(path: PathLike, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the metadata that ``save_tensors`` wrote, or a ``DamagedFileError``.

    Sizes are checked against the file's before memory is taken, and all of the file against its digest.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with Path(path).open("rb") as file:
            note = _read_note(file)
            _check_note(note, kind)
            if _compute_digest(file, note["digest"])[0] != note["digest"]:
                raise DamagedFileError("content that does not fit its checksum")
        # Copies: what is mapped from the file would change, or end the process, with the file.
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        for name, tensor in tensors.items():
            if not _is_finite(tensor) and not name.startswith(tuple(note["not_finite"])):
                raise DamagedFileError(f"NaN or infinity in {name!r}")
    except (SafetensorError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DamagedFileError(f"{path} must be longtail's file of kind {kind!r}. Got {reason}.") from error
    return tensors, note["metadata"]


def pack_state(value: Any) -> tuple[dict[str, Tensor], Any]:
    """What a ``state_dict`` of any depth holds, as named tensors, and a tree of plain values that names them.

    >>> pack_state({"step": 3, "m": (torch.zeros(2), None)})
    ({'m.0': tensor([0., 0.])}, {'items': [['step', 3], ['m', {'tuple': [{'tensor': 'm.0'}, None]}]]})
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(value, "", tensors)


def unpack_state(tensors: Mapping[str, Tensor], tree: Any) -> Any:
    """What ``pack_state`` packed."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "channels_last":  # what is added up in another order ends in other bits
        return tensors[content].contiguous(memory_format=torch.channels_last)
    if kind == "items":
        return {key: unpack_state(tensors, part) for key, part in content}
    parts = [unpack_state(tensors, part) for part in content]
    return tuple(parts) if kind == "tuple" else parts


def pack_text(lines: tuple[str, ...]) -> Tensor:
    """Names, of which there may be millions, as a tensor of bytes.

    >>> unpack_text(pack_text(("cat", "dog")))
    ('cat', 'dog')
    """
    return torch.frombuffer(bytearray(json.dumps(lines).encode()), dtype=torch.uint8)


def unpack_text(packed: Tensor) -> tuple[str, ...]:
    """The names that ``pack_text`` packed."""
    return tuple(json.loads(packed.numpy().tobytes()))


def _as_stored(tensor: Tensor, used: set[int]) -> Tensor:
    """The tensor as safetensors takes it: on the CPU, contiguous, and in memory that is its own alone."""
    stored = tensor.detach().cpu().contiguous()
    is_shared = stored.untyped_storage().nbytes() != stored.nbytes or stored.data_ptr() in used
    return stored.clone() if is_shared else stored


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist()))  # no copy of the size of the tensor


def _read_header(file: BinaryIO) -> bytes:
    """The first bytes of a safetensors file: the length of its header, and the header."""
    file.seek(0, os.SEEK_END)
    size = file.tell()
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
        raise DamagedFileError("no safetensors file, or a part of one")
    return start + file.read(length)


def _read_note(file: BinaryIO) -> dict[str, Any]:
    try:
        note = json.loads(json.loads(_read_header(file)[8:])["__metadata__"]["longtail"])
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
        raise DamagedFileError("a header that is damaged, or another program's") from None
    if not isinstance(note, dict) or not isinstance(note.get("digest"), str):
        raise DamagedFileError("no checksum")
    return note


def _check_note(note: Mapping[str, Any], kind: str) -> None:
    if note.get("format") != FORMAT:
        raise DamagedFileError(f"format {note.get('format')!r}, and this version of longtail reads {FORMAT}")
    if note.get("kind") != kind:
        raise DamagedFileError(f"kind {note.get('kind')!r}")
    if not isinstance(note.get("metadata"), dict) or not isinstance(note.get("not_finite"), list):
        raise DamagedFileError("no metadata")


def _compute_digest(file: BinaryIO, digest: str) -> tuple[str, int]:
    """The digest of a file that has ``digest`` in its header, and where in the file that is."""
    header = _read_header(file)
    place = header.index(digest.encode())
    hashed = hashlib.sha256(header[:place] + NO_DIGEST.encode() + header[place + len(digest) :])
    while chunk := file.read(1 << 20):
        hashed.update(chunk)
    return hashed.hexdigest(), place


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = f"{name}~{len(tensors)}" if name in tensors else name  # "a.b" may be a key, or the b of a
        tensors[name] = value
        is_turned = value.ndim == 4 and not value.is_contiguous()
        return {"channels_last" if is_turned else "tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _pack(part, f"{name}.{key}".lstrip("."), tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_pack(part, f"{name}.{number}", tensors) for number, part in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} must be tensors and plain values. Got {type(value).__name__}.")
