"""Models: an encoder that makes embeddings and a head that makes logits of them.

Weights are drawn from PyTorch's global generator, as everywhere in PyTorch: call ``torch.manual_seed`` before
``build_model`` to get the same ones again.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.row_sums import sum_rows
from longtail._core.suggestions import check_option_types, suggest
from longtail.heads import CosineLinear, linear_form
from longtail.lab.data.sparse_rows import SparseRows
from longtail.lab.training.sequence_models import gru, transformer

__all__ = [
    "HEADS",
    "MODELS",
    "BagOfFeatures",
    "Classifier",
    "SmallResNet",
    "build_model",
    "keep_embeddings",
    "linear",
    "mlp",
    "resnet12",
]


class Classifier(nn.Module):
    """An encoder and a head.

    Args:
        encoder: inputs -> [N, D] embeddings.
        head: [N, D] embeddings -> [N, C] logits.

    ``compile_encoder`` makes training compiled; evaluation never is.

    >>> model = Classifier(nn.Flatten(), nn.Linear(4, 3))
    >>> model(torch.zeros(2, 1, 2, 2)).shape, model.embed(torch.zeros(2, 1, 2, 2)).shape
    (torch.Size([2, 3]), torch.Size([2, 4]))
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._compiled: Callable[[nn.Module, Any], Tensor] | None = None
        self._compiled_size = 0
        self._kept: list[Tensor] | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether ``compile_encoder`` was called."""
        return self._compiled is not None

    def compile_encoder(self, batch_size: int) -> None:
        """Compile the encoder for training batches of this size, when the first one comes."""
        self._compiled, self._compiled_size = torch.compile(_encode, dynamic=False), batch_size

    def embed(self, inputs: Any) -> Tensor:
        """[N, D] embeddings."""
        if self._compiled is None:
            return _encode(self.encoder, inputs)
        # The last batch of an epoch may be smaller: another size would be compiled anew, for one step.
        is_compiled = self.encoder.training and len(inputs) == self._compiled_size
        embeddings = self._run_compiled(inputs) if is_compiled else _encode(self.encoder, inputs)
        if self._kept is not None:
            self._kept.append(embeddings)
        return embeddings

    def _run_compiled(self, inputs: Any) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException  # slow to import, and only needed here

        assert self._compiled is not None
        try:
            return self._compiled(self.encoder, inputs)
        except TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"train.compile: the model can't be compiled here ({reason}); leave it out.") from error

    def forward(self, inputs: Any, head_loss: nn.Module | None = None, target: Tensor | None = None) -> Tensor:
        """[N, C] logits; or, given a loss that takes embeddings and the head's weight, the loss for ``target``.

        The loss is taken in here so that a wrapper that spreads the model over processes sees all that is used.
        """
        embeddings = self.embed(inputs)
        if head_loss is None:
            logits: Tensor = self.head(embeddings)
            return logits
        x, linear_weight = linear_form(self.head, embeddings)
        loss: Tensor = head_loss(x, linear_weight, target, getattr(self.head, "bias", None))
        return loss


def _encode(encoder: nn.Module, inputs: Any) -> Tensor:
    """Encode by a frame of our own: PyTorch compiles none of its own, so ``nn.Sequential.compile`` does nothing."""
    embeddings: Tensor = encoder(inputs)
    return embeddings


@contextmanager
def keep_embeddings(model: Classifier) -> Iterator[list[Tensor]]:
    """The embeddings that the model makes in this block, call by call, with their gradient.

    It works however the model is called, also inside a wrapper that spreads it over processes.

    >>> model = Classifier(nn.Flatten(), nn.Linear(4, 3))
    >>> with keep_embeddings(model) as embeddings:
    ...     logits = model(torch.zeros(2, 1, 2, 2))
    >>> [tuple(kept.shape) for kept in embeddings]
    [(2, 4)]
    """
    kept: list[Tensor] = []
    if model.is_compiled:  # a hook would be compiled into it, anew in each block
        model._kept = kept
        try:
            yield kept
        finally:
            model._kept = None
        return
    # The encoder's output, not the head's input: a loss that takes embeddings does not call the head.
    handle = model.encoder.register_forward_hook(lambda encoder, inputs, output: kept.append(output))
    try:
        yield kept
    finally:
        handle.remove()


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut without parameters (option A of He et al.).

    Where the size halves, the shortcut takes every second pixel and fills the new channels with zeros.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = out_channels - in_channels
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[N, out_channels, H / stride, W / stride]."""
        # In place where nothing else needs the value: activations are most of what a step reads and writes.
        out = F.relu_(self.norm1(self.conv1(x)))
        return F.relu_(self.norm2(self.conv2(out)).add_(self._shortcut(x)))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1 and self.new_channels == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class SmallResNet(nn.Module):
    """The residual network for small images: 16, 32 and 64 channels, halved twice in size, then the mean of pixels.

    Args:
        blocks: residual blocks in each of the three stages; layers are 2 * sum(blocks) + 2, with the head.
        in_channels: channels of the images.
        width: channels of the first stage.
        branches: how many last stages there are, side by side: one for each of several experts.
        final_norm: whether values go through one more batch normalization before the mean of pixels, as in the
            network of Menon et al.; that of He et al. has none.

    Weights of convolutions are Kaiming normal (fan in), batch normalization starts as the identity.

    >>> SmallResNet((3, 3, 3))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])

    Reference:
        He et al. (2016), "Deep residual learning for image recognition", section 4.2, shortcuts of option A;
        He et al. (2015), "Delving deep into rectifiers", eq. (10), for the weights.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        in_channels: int = 3,
        width: int = 16,
        branches: int = 1,
        final_norm: bool = False,
    ) -> None:
        super().__init__()
        if branches < 1:
            raise ValueError(f"branches must be at least 1. Got {branches}.")
        self.out_features = 4 * width * branches
        self.conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(blocks):
            for position in range(depth):
                out_channels = width * 2**stage
                stride = 2 if stage > 0 and position == 0 else 1
                layers.append(ResidualBlock(channels, out_channels, stride))
                channels = out_channels
        self.blocks = nn.Sequential(*layers)
        shared = sum(blocks[:2])
        self.others = nn.ModuleList(deepcopy(self.blocks[shared:]) for _ in range(branches - 1))
        self.final_norm = nn.BatchNorm2d(self.out_features) if final_norm else None
        self.shared = shared
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """[N, 4 * width * branches] embeddings of images [N, channels, H, W]."""
        trunk = self.blocks[: self.shared](F.relu_(self.norm(self.conv(images))))
        branches = (self.blocks[self.shared :], *self.others)
        maps = [branch(trunk) for branch in branches]
        if self.final_norm is not None:
            maps = [self.final_norm(torch.cat(maps, dim=1))]
        return torch.cat([each.mean(dim=(2, 3)) for each in maps], dim=1)


class BagOfFeatures(nn.Module):
    """Sparse features: the weighted sum of the features' vectors, then a hidden layer.

    Formula:
        h = relu(b + sum_j x[j] v[j]), embedding = relu(W h + c)

    Args:
        num_features: how many features there are.
        width: length of a feature's vector.
        out_features: length of the embedding.
        dropout: share of h that is dropped in training.

    Takes ``SparseRows``, or a dense [N, num_features] tensor. Feature vectors start small, so that a rare feature
    says little until it is learned.

    >>> from scipy.sparse import csr_array
    >>> rows = SparseRows.from_scipy(csr_array([[0.0, 2.0], [1.0, 0.0]]))
    >>> BagOfFeatures(2, width=8, out_features=4)(rows).shape
    torch.Size([2, 4])
    """

    def __init__(self, num_features: int, width: int = 256, out_features: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        self.out_features = out_features
        self.vectors = nn.Parameter(torch.empty(num_features, width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.is_row_sparse = False
        """Whether gradients of the vectors have only the rows of a batch's features."""
        self.dropout = nn.Dropout(dropout)
        self.hidden = _kaiming_linear(width, out_features)
        nn.init.normal_(self.vectors, std=0.1)

    def forward(self, rows: SparseRows | Tensor) -> Tensor:
        """[N, out_features] embeddings."""
        if isinstance(rows, Tensor):
            summed = rows @ self.vectors
        else:
            values = rows.values.to(self.vectors.dtype)
            summed = sum_rows(rows.columns, values, rows.offsets, self.vectors, self.is_row_sparse)
        return F.relu(self.hidden(self.dropout(F.relu(summed + self.bias))))


def resnet12(input_shape: Sequence[int], width: int = 16) -> SmallResNet:
    """ResNet-12 for small images, with as many channels as they have: 1 for MultiMNIST.

    Five blocks of two layers, the first convolution and the head are 12 layers.

    Args:
        input_shape: channels, height and width of an image.
        width: channels of the first stage.

    Deviates:
        The paper names ResNet-12, cites He et al. and gives nothing else; its images are 32 x 32 with one channel.
        12 is no depth of He et al.'s section 4.2 (6n + 2), so the five blocks are split 1, 2, 2 over its three stages
        here.

    Reference:
        Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification", section 3.1 and
        appendix C.
    """
    return SmallResNet((1, 2, 2), _image_channels(input_shape), width)


def mlp(input_shape: Sequence[int], hidden: Sequence[int] = (256, 256), dropout: float = 0.0) -> nn.Sequential:
    """Fully connected layers with ReLU; inputs of any shape are flattened.

    Args:
        input_shape: the shape of one sample.
        hidden: outputs of each layer; the last one is the length of the embedding.
        dropout: share of each layer's outputs that is dropped in training.

    >>> mlp((1, 8, 8), hidden=(32,))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 32])
    """
    layers: list[nn.Module] = [nn.Flatten()]
    size = math.prod(input_shape)
    for width in hidden:
        layers += [_kaiming_linear(size, width), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        size = width
    return nn.Sequential(*layers)


def linear(input_shape: Sequence[int]) -> nn.Flatten:
    """No encoder: the flattened inputs are the embedding, so the model is its head. For features made elsewhere."""
    return nn.Flatten()


def _resnet(blocks_per_stage: int) -> Callable[..., SmallResNet]:
    def build(
        input_shape: Sequence[int], width: int = 16, branches: int = 1, final_norm: bool = False
    ) -> SmallResNet:
        return SmallResNet((blocks_per_stage,) * 3, _image_channels(input_shape), width, branches, final_norm)

    return build


def _bag_of_features(
    input_shape: Sequence[int], width: int = 256, out_features: int = 128, dropout: float = 0.0
) -> BagOfFeatures:
    return BagOfFeatures(math.prod(input_shape), width, out_features, dropout)


MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "resnet20": _resnet(3),
        "resnet32": _resnet(5),
        "resnet44": _resnet(7),
        "resnet56": _resnet(9),
        "resnet12": resnet12,
        "mlp": mlp,
        "bag_of_features": _bag_of_features,
        "linear": linear,
        "transformer": transformer,
        "gru": gru,
    }
)
"""Encoders by name: input_shape, **options -> module."""

HEADS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"linear": nn.Linear, "cosine": CosineLinear})
"""Heads by name: in_features, num_classes, **options -> module."""


def build_model(
    name: str,
    num_classes: int,
    input_shape: Sequence[int],
    head: str | None = None,
    head_options: Mapping[str, Any] | None = None,
    default_head: Callable[[int, int], nn.Module] | None = None,
    **options: Any,
) -> Classifier:
    """A classifier by the name of its encoder.

    Args:
        name: a key of ``MODELS``; or ``torchvision:NAME`` for a backbone of torchvision, untrained, without its last
            layer; or ``package.module:callable``, which is called with ``input_shape`` and the options and returns a
            ``Classifier``, or a module that makes embeddings [N, D].
        num_classes: C.
        input_shape: the shape of one sample, as ``Dataset.input_shape`` has it.
        head: a key of ``HEADS``; default: the one that the method needs, or else "linear", without bias where the
            encoder has ``class_vectors``: these are the head's then.
        head_options: options of the head.
        default_head: the head that the method needs, if any.
        options: options of the encoder.

    The initial weights come from PyTorch's global generator; call ``torch.manual_seed`` before.

    >>> model = build_model("mlp", num_classes=3, input_shape=(8,), hidden=[16])
    >>> model.head
    Linear(in_features=16, out_features=3, bias=True)
    """
    check_option_types(build_model, {"head": head, "head_options": head_options}, "model.options")
    encoder = _encoder(name, input_shape, options)
    if isinstance(encoder, Classifier):
        return encoder
    in_features = _embedding_size(name, encoder, input_shape)
    vectors: nn.Parameter | None = getattr(encoder, "class_vectors", None)
    if head is None and not head_options:
        if default_head is None and vectors is not None:
            default_head = partial(nn.Linear, bias=False)
        if default_head is not None:
            return Classifier(encoder, _share_vectors(default_head(in_features, num_classes), vectors))
    head = head or "linear"
    build_head = _look_up(HEADS, head, "head")
    head_options = dict(head_options or {})
    _check_options(build_head, head_options, f"head {head!r}")
    check_option_types(build_head, head_options, "model.options.head_options")
    return Classifier(encoder, _share_vectors(build_head(in_features, num_classes, **head_options), vectors))


def _share_vectors(head: nn.Module, vectors: nn.Parameter | None) -> nn.Module:
    """The head with the encoder's vectors of items as its class vectors, if it has some."""
    if vectors is not None:
        weight = getattr(head, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.shape != vectors.shape:
            raise ValueError(
                f"a model of sequences shares its item vectors {tuple(vectors.shape)} with the head, which must have "
                f"class vectors of that shape. Got {type(head).__name__}."
            )
        head.weight = vectors
    return head


def _encoder(name: str, input_shape: Sequence[int], options: Mapping[str, Any]) -> nn.Module:
    package, colon, attribute = name.partition(":")
    if not colon:
        build = _look_up(MODELS, name, "model")
        _check_options(build, options, f"model {name!r}")
        check_option_types(build, options, "model.options")
        try:
            return build(input_shape, **options)
        except (RuntimeError, TypeError, OverflowError) as error:  # of sizes that no tensor has
            reason = str(error).partition("\n")[0]
            raise ValueError(f"model {name!r} can't be built with model.options {options}: {reason}") from error
    if package == "torchvision":
        return _torchvision_backbone(attribute, options)
    build = _imported(package, attribute)
    try:
        inspect.signature(build).bind(input_shape=tuple(input_shape), **options)
    except ValueError:
        pass  # of what has no signature
    except TypeError as error:
        raise ValueError(
            f"model {name!r} does not take input_shape and model.options {dict(options)}: {error}; set model.options."
        ) from None
    module = build(input_shape=tuple(input_shape), **options)
    if not isinstance(module, nn.Module):
        raise TypeError(f"model {name!r} must return a torch.nn.Module. Got {type(module).__name__}.")
    return module


def _imported(module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        function: Any = getattr(importlib.import_module(module_name), attribute, None)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"model '{module_name}:{attribute}' must be package.module:callable. Got: {error}."
        ) from error
    if not callable(function):
        raise ValueError(f"model '{module_name}:{attribute}': {module_name} has no function {attribute!r}.")
    return function  # type: ignore[no-any-return]


def _torchvision_backbone(name: str, options: Mapping[str, Any]) -> nn.Module:
    """A torchvision model whose last linear layer passes its inputs on."""
    try:
        from torchvision import models
    except ImportError as error:
        raise ImportError(f"model 'torchvision:{name}' needs torchvision, which is not installed.") from error
    if name not in models.list_models():
        raise ValueError(f"torchvision has no model named {name!r}; {suggest(name, models.list_models())}")
    backbone: nn.Module = models.get_model(name, weights=None, **options)
    _drop_last_linear(backbone)
    return backbone


def _drop_last_linear(model: nn.Module) -> None:
    path = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())


@torch.no_grad()
def _embedding_size(name: str, encoder: nn.Module, input_shape: Sequence[int]) -> int:
    """D: what the encoder says as ``out_features``, else what it makes of two samples of zeros."""
    stated = getattr(encoder, "out_features", None)
    if isinstance(stated, int):
        return stated
    was_training = encoder.training
    embeddings = encoder.eval()(torch.zeros(2, *input_shape))
    encoder.train(was_training)
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        got = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ValueError(f"model {name!r}: the encoder must make embeddings [N, D]. Got {got}.")
    return embeddings.shape[1]


def _look_up(table: Mapping[str, Callable[..., nn.Module]], name: str, kind: str) -> Callable[..., nn.Module]:
    if name not in table:
        raise ValueError(f"there is no {kind} named {name!r}; {suggest(name, table)}")
    return table[name]


def _check_options(build: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    parameters = inspect.signature(build).parameters.values()
    known = [p.name for p in parameters if p.default is not inspect.Parameter.empty]
    for option in options:
        if option not in known:
            raise ValueError(f"{where} has no option {option!r}; {suggest(option, known)}")


def _image_channels(input_shape: Sequence[int]) -> int:
    if len(input_shape) != 3:
        raise ValueError(f"input_shape must be channels, height and width. Got {tuple(input_shape)}.")
    return input_shape[0]


def _kaiming_linear(in_features: int, out_features: int) -> nn.Linear:
    layer = nn.Linear(in_features, out_features)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer
