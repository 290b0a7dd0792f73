"""Class vectors in a file: float32, float16 or int8, read a part at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._core.files import replacing
from longtail.errors import DamagedFileError
from longtail.negatives.head import TopK, best_labels

__all__ = ["VectorFile", "quantize_rows", "save_vectors"]

PathLike = str | os.PathLike[str]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
ROWS_AT_ONCE = 2**17
"""Vectors that a file is read in."""


def quantize_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """[C, D] int8 and [C] float32 scales, whose product is each row within half a step of its largest number / 127.

    >>> whole, scales = quantize_rows(torch.tensor([[1.0, -0.5, 0.0]]))
    >>> whole.tolist(), round(float(scales[0]) * 127, 6)
    ([[127, -64, 0]], 1.0)
    """
    wide = vectors.detach().float()
    scales = wide.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (wide / scales[:, None]).round().to(torch.int8), scales


def save_vectors(path: PathLike, vectors: Tensor, dtype: str = "float16") -> None:
    """Export class vectors as a safetensors file: "vectors" [C, D] and, for int8, "scales" [C].

    Args:
        path: the file, which is replaced if it exists.
        vectors: [C, D], such as ``SampledLinear.weight`` or ``ExtremeClassifier.label_vectors()``.
        dtype: "float32", "float16", half as large, or "int8", a quarter.

    The names are all that is special about the file: any tool that reads safetensors reads it.
    """
    from safetensors.torch import save

    if dtype not in DTYPES:
        raise ValueError(f"save_vectors: dtype must be one of {', '.join(DTYPES)}. Got {dtype!r}.")
    if vectors.ndim != 2 or not vectors.is_floating_point() or not bool(vectors.isfinite().all()):
        raise ValueError(f"save_vectors: vectors must be finite numbers [C, D]. Got {tuple(vectors.shape)}.")
    content: dict[str, Tensor] = {}
    if dtype == "int8":
        content["vectors"], content["scales"] = quantize_rows(vectors.cpu())
    else:
        content["vectors"] = vectors.detach().cpu().to(DTYPES[dtype]).contiguous()
        if not bool(content["vectors"].isfinite().all()):
            raise ValueError("save_vectors: vectors must fit into float16. Got larger ones; use float32 or int8.")
    with replacing(Path(path)) as file:
        file.write(save(content))


class VectorFile:
    """Class vectors in a file of ``save_vectors``, of which only what is asked for is read.

    Args:
        path: the file.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> save_vectors(f"{folder.name}/vectors.safetensors", torch.eye(4), "int8")
    >>> stored = VectorFile(f"{folder.name}/vectors.safetensors")
    >>> stored.shape, stored.rows(1, 3).tolist()[0]
    ((4, 4), [0.0, 1.0, 0.0, 0.0])
    >>> folder.cleanup()
    """

    def __init__(self, path: PathLike) -> None:
        from safetensors import SafetensorError, safe_open

        opened: Any = safe_open
        try:
            file = opened(path, framework="pt")
            self._vectors = file.get_slice("vectors")
            shape = tuple(self._vectors.get_shape())
            self._scales = file.get_tensor("scales") if "scales" in file.keys() else None  # noqa: SIM118
        except SafetensorError as error:
            raise DamagedFileError(f"{path} must be a file that save_vectors wrote. Got: {error}.") from error
        if len(shape) != 2 or (self._scales is not None and tuple(self._scales.shape) != shape[:1]):
            raise DamagedFileError(f"{path} must have vectors [C, D] and scales [C]. Got {shape}.")
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))

    def rows(self, start: int, end: int) -> Tensor:
        """[end - start, D] float32: the vectors of these labels."""
        part: Tensor = self._vectors[start:end].float()
        return part if self._scales is None else part * self._scales[start:end, None]

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> TopK:
        """The k labels with the largest inner products with embeddings [N, D], exactly, in bounded memory."""
        if not 1 <= k <= self.shape[0]:
            raise ValueError(f"VectorFile.topk: k must be in 1..{self.shape[0]}. Got {k}.")
        found: TopK | None = None
        for start, part in self._parts():
            best = best_labels(x.float(), part, min(k, len(part)))
            best = TopK(best.values, best.indices + start)
            if found is not None:
                values, labels = (torch.cat(pair, dim=1) for pair in zip(found, best, strict=True))
                order = values.topk(min(k, values.shape[1]), dim=1)
                best = TopK(order.values, labels.gather(1, order.indices))
            found = best
        assert found is not None
        return found

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, self.shape[0], ROWS_AT_ONCE):
            yield start, self.rows(start, min(start + ROWS_AT_ONCE, self.shape[0]))
