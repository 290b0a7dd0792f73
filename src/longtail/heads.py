"""Heads: from an embedding to one logit per class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import check_positive
from longtail._core.numerics import unit_vectors

__all__ = [
    "CosineLinear",
    "ExpertHead",
    "ScaledLinear",
    "class_mean_head",
    "cosine_logits",
    "fresh_head",
    "linear_form",
    "scaled_head",
]


def cosine_logits(x: Tensor, linear_weight: Tensor, scale: float = 30.0) -> Tensor:
    """Scaled cosines between embeddings and class vectors.

    Formula:
        f[y] = scale * <x, w[y]> / (|x| |w[y]|)

    Args:
        x: [N, D] embeddings. Half precision is normalized in float32.
        linear_weight: [C, D] class vectors.
        scale: largest possible logit; the inverse of a softmax temperature.

    Returns:
        [N, C] logits in [-scale, scale].

    Use when:
        Norms of class vectors grow with class frequency, and that favors frequent classes; or with
        ``max_scaled_adaptive``, whose margins are meant for cosines.
    Avoid when:
        The length of an embedding means something, such as how sure the model is.
    Special cases:
        A linear head without bias, where embeddings and class vectors have length 1 and scale is 1.

    >>> cosine_logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), scale=10.0).tolist()
    [[10.0, 0.0]]

    Reference:
        Cao et al. (2019), "Learning imbalanced datasets with label-distribution-aware margin loss", section 3.2;
        scale 30 as in the authors' code.
    """
    logits = F.linear(scale * unit_vectors(x), unit_vectors(linear_weight))
    return logits if torch.is_autocast_enabled(x.device.type) else logits.to(x.dtype)


class CosineLinear(nn.Module):
    """A head whose logits are scaled cosines: ``cosine_logits`` with class vectors to learn.

    Args:
        in_features: D, the length of an embedding.
        num_classes: C.
        scale: largest possible logit.

    The direction of each class vector starts uniform on the sphere, by PyTorch's global generator.

    >>> CosineLinear(4, 3)(torch.randn(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, in_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__()
        if in_features < 1 or num_classes < 1:
            raise ValueError(
                f"CosineLinear: in_features and num_classes must be at least 1. Got {in_features} and {num_classes}."
            )
        check_positive(scale, "CosineLinear: scale")
        self.in_features, self.num_classes, self.scale = in_features, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class vectors."""
        # Length about 1, so that a learning rate turns them about as fast as those of a linear head.
        nn.init.normal_(self.weight, std=self.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] logits of embeddings [N, D]."""
        return cosine_logits(x, self.weight, self.scale)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"in_features={self.in_features}, num_classes={self.num_classes}, scale={self.scale:g}"


class ScaledLinear(nn.Module):
    """A linear head whose class vectors keep their direction and learn their length.

    Formula:
        f[y] = scale[y] * (w[y] . x + b[y]), with w and b fixed

    Args:
        linear: the trained head.

    >>> head = ScaledLinear(nn.Linear(4, 3))
    >>> [name for name, p in head.named_parameters() if p.requires_grad]
    ['scale']

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 4.2 (LWS).
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(linear.weight[:, 0]))

    @property
    def weight(self) -> Tensor:
        """[C, D], the scaled class vectors."""
        return self.linear.weight * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] logits of embeddings x [N, D]."""
        logits: Tensor = self.linear(x)
        return logits * self.scale


class ExpertHead(nn.Module):
    """A head per expert. In training it gives the logits of each, [N, E, C]; in evaluation their mean, [N, C].

    Args:
        in_features: D, the length of an embedding.
        num_classes: C.
        num_experts: E.
        scale: of cosine heads; 0 is linear heads.
        is_split: whether each expert sees its own D / E numbers of an embedding; else all see all of it.

    >>> head = ExpertHead(6, 4, num_experts=3, is_split=True)
    >>> head(torch.zeros(2, 6)).shape, head.eval()(torch.zeros(2, 6)).shape
    (torch.Size([2, 3, 4]), torch.Size([2, 4]))

    Reference:
        Wang et al. (2021), "Long-tailed recognition by routing diverse distribution-aware experts", section 3.1.
    """

    def __init__(
        self, in_features: int, num_classes: int, num_experts: int = 3, scale: float = 0.0, is_split: bool = False
    ) -> None:
        super().__init__()
        if num_experts < 1 or (is_split and in_features % num_experts):
            raise ValueError(
                f"ExpertHead: embeddings of length {in_features} must split into {num_experts} experts; give the "
                "encoder as many branches, or let all see all of it."
            )
        self.num_experts, self.is_split = num_experts, is_split
        size = in_features // num_experts if is_split else in_features
        self.experts = nn.ModuleList(
            CosineLinear(size, num_classes, scale) if scale else nn.Linear(size, num_classes)
            for _ in range(num_experts)
        )

    def each(self, x: Tensor) -> Tensor:
        """[N, E, C] logits of every expert."""
        parts = x.chunk(self.num_experts, dim=1) if self.is_split else [x] * self.num_experts
        return torch.stack([expert(part) for expert, part in zip(self.experts, parts, strict=True)], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, E, C] in training, [N, C] in evaluation."""
        return self.each(x) if self.training else self.each(x).mean(dim=1)


def class_mean_head(embeddings: Tensor, labels: Tensor, num_classes: int, scale: float = 30.0) -> CosineLinear:
    """A cosine head whose class vectors are the mean directions of each class's embeddings: a good first guess.

    Formula:
        w[c] = sum over samples of class c of x / |x|, scaled to length 1

    Args:
        embeddings: [N, D] of training samples.
        labels: [N] class indices.
        num_classes: C.
        scale: largest possible logit.

    Use when:
        Embeddings come from a good encoder that stays frozen, and rare classes have few samples to learn from.
    Avoid when:
        The encoder is trained from scratch: its first embeddings mean nothing yet.

    A class without samples gets a random direction, by PyTorch's global generator.

    >>> head = class_mean_head(torch.eye(2), torch.tensor([0, 1]), num_classes=2, scale=5.0)
    >>> head(torch.tensor([[3.0, 0.0]])).tolist()
    [[5.0, 0.0]]

    Reference:
        Shi et al. (2024), "Long-tail learning with foundation model: heavy fine-tuning hurts", section 4.
    """
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"embeddings must be [N, D] with labels [N]. Got {tuple(embeddings.shape)} and {tuple(labels.shape)}."
        )
    head = CosineLinear(embeddings.shape[1], num_classes, scale).to(embeddings)
    sums = torch.zeros_like(head.weight).index_add_(0, labels, unit_vectors(embeddings))
    is_known = sums.norm(dim=1) > 0
    with torch.no_grad():
        head.weight[is_known] = unit_vectors(sums[is_known])
    return head


def linear_form(head: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings [N, D] and class vectors [C, D] whose inner products, with the head's bias, are its logits.

    >>> linear_form(CosineLinear(4, 3, scale=2.0), torch.ones(1, 4))[0].norm().round()
    tensor(2.)
    """
    if isinstance(head, CosineLinear):
        return head.scale * unit_vectors(x), unit_vectors(head.weight)
    if isinstance(head, nn.Linear | ScaledLinear):
        return x, head.weight
    raise TypeError(f"a loss on embeddings needs a linear or a cosine head. Got {type(head).__name__}.")


def fresh_head(head: nn.Module) -> nn.Module:
    """A new, randomly initialized head of the same kind; randomness is PyTorch's global generator's.

    >>> fresh_head(nn.Linear(4, 3)).weight.shape
    torch.Size([3, 4])
    """
    if not isinstance(head, nn.Linear):
        raise TypeError(f"fresh_head: the head must be nn.Linear. Got {type(head).__name__}.")
    return nn.Linear(head.in_features, head.out_features, bias=head.bias is not None, device=head.weight.device).to(
        head.weight.dtype
    )


def scaled_head(head: nn.Module) -> nn.Module:
    """The same head with lengths to learn."""
    if not isinstance(head, nn.Linear):
        raise TypeError(f"scaled_head: the head must be nn.Linear. Got {type(head).__name__}.")
    return ScaledLinear(head)
