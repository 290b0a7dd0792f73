"""ONNX and ``torch.export`` files of a model, with the record of its correction, checked against the model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from longtail._core.checks import at_least
from longtail._core.files import replacing
from longtail._core.labels import to_numpy
from longtail.correction import Correction, read_correction, record_correction
from longtail.errors import DamagedFileError

__all__ = ["OnnxModel", "export_onnx", "export_program", "load_onnx", "load_program"]

PathLike = str | os.PathLike[str]
Inputs = Tensor | npt.NDArray[Any] | tuple[Tensor | npt.NDArray[Any], ...]

FORMAT = 1
"""Goes up when an older reader would misunderstand a file."""
NOTE = "longtail.json"
"""The file inside a program that has the record."""
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
"""What onnxruntime calls the numbers of an input."""
NO_DIGEST = b"0" * 64
DIGEST = re.compile(rb'"digest": "([0-9a-f]{64})"')
LARGEST = 2**31 - 2**20
"""Bytes of a file: protobuf has no larger messages."""


def export_onnx(
    model: nn.Module,
    inputs: Inputs,
    path: PathLike,
    *,
    input_names: Sequence[str] = ("inputs",),
    output_names: Sequence[str] = ("logits",),
    tolerance: float = 1e-5,
) -> float:
    """Write a model as ONNX, once onnxruntime gives the same outputs for it.

    The file keeps the model's record (prior, tau, whether it is corrected), a digest of its weights, and a checksum:
    ``load_onnx`` refuses a changed file, and that of another model. Needs ``pip install "longtail[export]"``.

    Args:
        model: what is exported, in evaluation mode; ``fold_adjustment`` and the modules of ``longtail.serving`` make
            models that need nothing around them.
        inputs: a tensor or array to try it with, or a tuple of them, of two samples or more. Their first dimension
            may have any size later; an attribute ``dynamic_shapes`` of the model may free others, as
            ``torch.export`` has them.
        path: the file, which is replaced if it exists.
        input_names: of the inputs, in order.
        output_names: of the outputs, in order.
        tolerance: how far outputs may be apart, relative to the largest; farther, and nothing is written.

    Returns:
        How far they are apart.
    """
    onnx, _ = _import_runtime()
    tensors = _as_tensors(inputs)
    was_training = model.training
    model.eval()
    try:
        with _quiet_exporter(), torch.no_grad():
            program = torch.onnx.export(
                model,
                tensors,
                dynamo=True,
                dynamic_shapes=_free_sizes(model, tensors),
                input_names=list(input_names),
                output_names=list(output_names),
                verbose=False,
            )
            assert program is not None
            expected = _as_tuple(model(*tensors))
    finally:
        model.train(was_training)
    proto = program.model_proto
    note = {"digest": NO_DIGEST.decode(), "format": FORMAT, "weights": _digest_weights(model), "correction": None}
    record = read_correction(model)
    if record is not None:
        note["correction"] = record.to_json()
    onnx.helper.set_model_props(proto, {"longtail": json.dumps(note)})
    if proto.ByteSize() > LARGEST:
        raise ValueError(f"an ONNX file must be below 2 GB. Got a model of {proto.ByteSize():,} bytes.")
    content = _seal(proto.SerializeToString())
    found = _open_written(content, str(path)).run(*(tensor.numpy() for tensor in tensors))
    difference = max(map(_difference, found, expected))
    if not difference <= tolerance:
        raise ValueError(
            f"{path}: outputs of onnxruntime must equal the model's to {tolerance:g}. Got a difference of "
            f"{difference:g}; nothing was written. Export model.float(), or pass tolerance."
        )
    with replacing(Path(path)) as file:
        file.write(content)
    return difference


def export_program(model: nn.Module, inputs: Inputs, path: PathLike) -> None:
    """Write a model as a program of ``torch.export`` (.pt2), with its record as the extra file "longtail.json".

    ``load_program`` and ``torch.export.load`` read it, without the model's code. Read only files that you trust.

    Args:
        model: what is exported, in evaluation mode.
        inputs: a tensor or array to trace it with, or a tuple of them. Their first dimension may have any size later.
        path: the file, which is replaced if it exists.
    """
    tensors = _as_tensors(inputs)
    record = read_correction(model)
    was_training = model.training
    model.eval()
    try:
        with _quiet_exporter(), torch.no_grad():
            program = torch.export.export(model, tensors, dynamic_shapes=_free_sizes(model, tensors), strict=False)
    finally:
        model.train(was_training)
    extra = {NOTE: json.dumps(None if record is None else record.to_json())}
    with replacing(Path(path)) as file, _quiet_exporter():
        torch.export.save(program, file, extra_files=extra)


def load_program(path: PathLike) -> nn.Module:
    """The model that ``export_program`` wrote, with its record. Read only files that you trust.

    Args:
        path: the file.
    """
    extra = {NOTE: ""}
    model = torch.export.load(path, extra_files=extra).module()
    note = json.loads(extra[NOTE] or "null")
    if note is not None:
        record_correction(model, Correction.from_json(note))
    return model


def load_onnx(path: PathLike, model: nn.Module | None = None, num_threads: int = 0) -> OnnxModel:
    """Open a file that ``export_onnx`` wrote; anything else is a ``DamagedFileError``, in one line.

    Args:
        path: the file.
        model: if given, the file must be of this model: a file with other weights is a ValueError.
        num_threads: of onnxruntime; 0: as many as there are cores.
    """
    if Path(path).stat().st_size > LARGEST:
        raise DamagedFileError(f"{path} must be an ONNX file below 2 GB. Got {Path(path).stat().st_size:,} bytes.")
    opened = OnnxModel(Path(path).read_bytes(), str(path), num_threads)
    if model is not None and opened.weights != _digest_weights(model):
        raise ValueError(f"{path} must be the ONNX file of this model. Got that of another: its weights differ.")
    return opened


class OnnxModel:
    """A file of ``export_onnx`` in onnxruntime: call it with arrays, or what NumPy can make one of.

    Args:
        content: the bytes of the file.
        name: what messages call it.
        num_threads: of onnxruntime; 0: as many as there are cores.

    Attributes:
        correction: the record of the model; None where it had none.
        weights: the digest of its weights.
    """

    def __init__(self, content: bytes, name: str, num_threads: int = 0) -> None:
        _, runtime = _import_runtime()
        _check_seal(content, name)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = at_least(num_threads, 0, "num_threads")
        try:
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            note = json.loads(self.session.get_modelmeta().custom_metadata_map["longtail"])
            if note["format"] != FORMAT:
                raise ValueError(f"format {note['format']!r}, and this version of longtail reads {FORMAT}")
            record = note["correction"]
            self.correction = None if record is None else Correction.from_json(record)
            if self.correction is not None:
                record_correction(self, self.correction)
            self.weights = str(note["weights"])
        except Exception as error:  # onnxruntime raises kinds of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise DamagedFileError(f"{name} must be a file that export_onnx wrote. Got: {reason}.") from error
        self.name = name

    def run(self, *inputs: Any) -> list[npt.NDArray[Any]]:
        """All outputs for inputs as arrays, in order; numbers of another precision are converted."""
        wanted = self.session.get_inputs()
        shapes = [tuple(item.shape) for item in wanted]
        fits = len(inputs) == len(wanted) and all(map(_fits, inputs, shapes))
        if not fits:
            names = ", ".join(f"{item.name} {list(item.shape)}" for item in wanted)
            got = ", ".join(str(list(np.shape(array))) for array in inputs)
            raise ValueError(f"{self.name}: inputs must be {names}. Got {got}.")
        arrays = {item.name: self._convert(value, item) for item, value in zip(wanted, inputs, strict=True)}
        outputs: list[npt.NDArray[Any]] = self.session.run(None, arrays)
        return outputs

    def _convert(self, value: Any, item: Any) -> npt.NDArray[Any]:
        array, dtype = to_numpy(value), DTYPES.get(item.type)
        if dtype is None or array.dtype == dtype:
            return array
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(
                f"{self.name}: {item.name} must be {np.dtype(dtype)}. Got {array.dtype}; convert it first."
            )
        return array.astype(dtype)

    def __call__(self, *inputs: Any) -> npt.NDArray[Any]:
        """The first output, such as logits [N, C]."""
        return self.run(*inputs)[0]


def _import_runtime() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'ONNX needs {error.name}; get it with: pip install "longtail[export]"') from None
    return onnx, onnxruntime


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the warnings that the exporters of PyTorch cause in PyTorch."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _free_sizes(model: nn.Module, tensors: tuple[Tensor, ...]) -> Any:
    """Shapes for ``torch.export``: any number of samples, and what else the model says may vary."""
    samples = torch.export.Dim("samples")
    return getattr(model, "dynamic_shapes", tuple({0: samples} for _ in tensors))


def _as_tensors(inputs: Any) -> tuple[Tensor, ...]:
    """Inputs to try a model with, as tensors."""
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    wrong = next((part for part in parts if not isinstance(part, Tensor | np.ndarray)), None)
    if wrong is not None:
        raise TypeError(
            "inputs must be a tensor or an array, or a tuple of them in the order of the model's arguments. "
            f"Got {type(wrong).__name__}."
        )
    if any(len(part) == 0 for part in parts):
        raise ValueError("inputs must have two samples or more, to try the model with. Got none.")
    return tuple(torch.as_tensor(part) for part in parts)


def _as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    if isinstance(outputs, Mapping):  # of Hugging Face
        outputs = tuple(outputs.values())
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _open_written(content: bytes, name: str) -> OnnxModel:
    """The file that is about to be written, or why onnxruntime can't run it."""
    try:
        return OnnxModel(content, name)
    except DamagedFileError as error:
        reason = str(error).partition("Got: ")[2].rstrip(".")
        raise ValueError(
            f"{name}: onnxruntime must be able to run the model. Got: {reason}; nothing was written. Export "
            "model.float()."
        ) from error


def _difference(found: npt.NDArray[Any], expected: Tensor) -> float:
    """Largest distance, relative to the largest value where that is above 1; infinite for other shapes."""
    wanted = expected.numpy()
    if found.shape != wanted.shape:
        return float("inf")
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return float("inf")
    wide, other = wanted[finite].astype(np.float64), found[finite].astype(np.float64)
    return float(np.abs(wide - other).max(initial=0) / max(1.0, np.abs(wide).max(initial=0)))


def _fits(array: npt.NDArray[Any], shape: tuple[Any, ...]) -> bool:
    return np.ndim(array) == len(shape) and all(
        not isinstance(size, int) or size == actual for size, actual in zip(shape, np.shape(array), strict=True)
    )


def _digest_weights(model: nn.Module) -> str:
    """SHA-256 of names and values of the state; the same wherever the model is."""
    hashed = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        hashed.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        hashed.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return hashed.hexdigest()


def _seal(content: bytes) -> bytes:
    """The file with its checksum in place of zeros."""
    digest = hashlib.sha256(content).hexdigest().encode()
    start = _find_digest(content)
    return content[:start] + digest + content[start + 64 :]


def _check_seal(content: bytes, name: str) -> None:
    start = _find_digest(content)
    if start < 0:
        raise DamagedFileError(f"{name} must be a file that export_onnx wrote. Got another program's.")
    without = content[:start] + NO_DIGEST + content[start + 64 :]
    if hashlib.sha256(without).hexdigest().encode() != content[start : start + 64]:
        raise DamagedFileError(f"{name} must be a file that export_onnx wrote. Got one changed since: its checksum.")


def _find_digest(content: bytes) -> int:
    """Where the digest is; -1 where there is none. In a file as it was written, it is the only one."""
    found = DIGEST.search(content)
    return -1 if found is None else found.start(1)
