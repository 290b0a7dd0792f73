"""Frozen encoders of others, from files on disk: nothing is downloaded, and no code comes with the weights.

``hf:FOLDER``                a vision model that transformers saved, with safetensors
``timm:NAME@FILE``           a model of timm with the weights in a file
``torchvision:NAME@FILE``    a model of torchvision with the weights in a file

Weights are read from safetensors, or by PyTorch with ``weights_only``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.suggestions import look_up

__all__ = ["ENCODERS", "FrozenEncoder", "load_encoder"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class FrozenEncoder(nn.Module):
    """Bytes of images in, embeddings out: scales and normalizes as the encoder was trained with.

    Args:
        encoder: floats [N, 3, size, size] -> [N, D], or an output of transformers.
        size: side of the images that it takes.
        mean: of each channel, in units of 0 to 1.
        std: of each channel.

    >>> FrozenEncoder(nn.Flatten(), size=2)(torch.zeros(1, 1, 4, 4, dtype=torch.uint8)).shape
    torch.Size([1, 12])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        size: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        self.encoder = encoder.eval().requires_grad_(False)
        self.size = size
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """[N, D] embeddings of uint8 images [N, 1 or 3, H, W]."""
        if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"images must be uint8 [N, 1 or 3, H, W] for this encoder. Got {images.dtype} {tuple(images.shape)}."
            )
        x = images.float().div(255).expand(-1, 3, -1, -1)
        x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        embeddings = _pool(self.encoder((x - self.mean) / self.std))
        return embeddings


def load_encoder(reference: str) -> FrozenEncoder:
    """An encoder by where it comes from and where its weights are: ``hf:FOLDER``, ``timm:NAME@FILE``.

    Args:
        reference: as the head of this file has it.
    """
    origin, colon, rest = reference.partition(":")
    if not colon or not rest:
        raise ValueError(f"an encoder must be hf:FOLDER, timm:NAME@FILE or torchvision:NAME@FILE. Got {reference!r}.")
    return look_up(ENCODERS, origin, "encoder")(rest)


def _load_transformers(folder: str) -> FrozenEncoder:
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"encoder hf:{folder}: there is no {path / 'config.json'}; download the model there first."
        )
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise ImportError("an encoder hf:FOLDER needs transformers, which is not installed.") from error
    model = AutoModel.from_pretrained(path, local_files_only=True, trust_remote_code=False, use_safetensors=True)
    vision = getattr(model, "vision_model", model)  # of models for images and text
    config = getattr(vision, "config", model.config)
    settings = _read_json(path / "preprocessor_config.json")
    size = getattr(config, "image_size", 224)
    size = size if isinstance(size, int) else max(size)
    mean, std = settings.get("image_mean", IMAGENET_MEAN), settings.get("image_std", IMAGENET_STD)
    return FrozenEncoder(vision, size, mean, std)


def _load_timm(rest: str) -> FrozenEncoder:
    name, file = _split_file("timm", rest)
    try:
        import timm
    except ImportError as error:
        raise ImportError("an encoder timm:NAME@FILE needs timm, which is not installed.") from error
    model = timm.create_model(name, pretrained=False, num_classes=0)
    _load_weights(model, file)
    config = model.pretrained_cfg
    return FrozenEncoder(model, config["input_size"][-1], config["mean"], config["std"])


def _load_torchvision(rest: str) -> FrozenEncoder:
    name, file = _split_file("torchvision", rest)
    try:
        from torchvision import models
    except ImportError as error:
        raise ImportError("an encoder torchvision:NAME@FILE needs torchvision, which is not installed.") from error
    model: nn.Module = models.get_model(name, weights=None)
    _load_weights(model, file)
    path = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return FrozenEncoder(model, 224)


ENCODERS: Mapping[str, Callable[[str], FrozenEncoder]] = MappingProxyType(
    {"hf": _load_transformers, "timm": _load_timm, "torchvision": _load_torchvision}
)
"""Where an encoder comes from -> a function of the rest of its name."""


def _split_file(origin: str, rest: str) -> tuple[str, Path]:
    name, separator, file = rest.partition("@")
    if not separator or not Path(file).is_file():
        raise FileNotFoundError(f"encoder {origin}:{rest} must be {origin}:NAME@FILE with a file of weights.")
    return name, Path(file)


def _load_weights(model: nn.Module, file: Path) -> None:
    """Weights of a file; those of a classifier's last layer, which the encoder lacks, are left out."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = load_file(file)
    else:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    missing, _ = model.load_state_dict(weights, strict=False)
    if missing:
        raise ValueError(f"{file} must have all weights of the model. Got none for {missing[0]!r}.")


def _pool(output: Any) -> Tensor:
    """[N, D] of what an encoder returns: a tensor, or an output of transformers."""
    if not isinstance(output, Tensor):
        pooled = getattr(output, "pooler_output", None)
        output = pooled if pooled is not None else output.last_hidden_state[:, 0]
    embeddings: Tensor = output.flatten(1) if output.ndim == 4 else output
    return embeddings


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
