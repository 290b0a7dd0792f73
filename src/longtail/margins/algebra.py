"""The algebra of margins: two vectors, and at most a third of factors, that add, subtract and scale."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Margins", "is_shift"]


@dataclass(frozen=True, eq=False, slots=True)
class Margins:
    """Delta[y, y'] = positive[y] + negative[y'] for y' != y, as two vectors of length C.

    Margins form a vector space: ``a + b``, ``a - b``, ``-a`` and ``a * t`` do what they do to Delta, and to the
    logarithm of ``scale``: factors multiply.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> margins = logit_adjusted(prior) + adaptive(prior)
    >>> margins.dense().shape
    torch.Size([2, 2])
    """

    positive: Tensor
    """[C], the part that depends on the true label."""
    negative: Tensor
    """[C], the part that depends on the other label."""
    scale: Tensor | None = None
    """[C] > 0, what the logit of each class is multiplied by before the margins; None is 1."""

    def __post_init__(self) -> None:
        if self.positive.ndim != 1 or self.positive.shape != self.negative.shape:
            raise ValueError(
                "Margins: positive and negative must be vectors of one length. "
                f"Got shapes {tuple(self.positive.shape)} and {tuple(self.negative.shape)}."
            )
        if self.scale is not None and self.scale.shape != self.positive.shape:
            raise ValueError(
                f"Margins: scale must be [{len(self.positive)}] as the other parts. Got {tuple(self.scale.shape)}."
            )

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.positive)

    def dense(self) -> Tensor:
        """[C, C], Delta itself: row y, column y'. The diagonal is 0, for it does not occur in the loss.

        ``scale`` is no part of it: it multiplies logits.
        """
        return (self.positive[:, None] + self.negative[None, :]).fill_diagonal_(0)

    def to(self, *args: object, **kwargs: object) -> Margins:
        """These margins with another device or dtype, as ``Tensor.to``."""
        parts = (self.positive, self.negative, self.scale)
        return Margins(*(None if part is None else part.to(*args, **kwargs) for part in parts))  # type: ignore[arg-type,call-overload]

    def check_additive(self, where: str) -> None:
        """Raise if logits are scaled, where that has no meaning."""
        if self.scale is not None:
            raise ValueError(
                f"{where}: margins must be additive. Got some that scale logits; use them with margin_cross_entropy."
            )

    def __add__(self, other: object) -> Margins:
        if not isinstance(other, Margins):
            return NotImplemented
        if other.num_classes != self.num_classes:
            raise ValueError(
                f"Margins: only margins over the same classes add. Got {self.num_classes} and {other.num_classes}."
            )
        scales = [each.scale for each in (self, other) if each.scale is not None]
        scale = scales[0] * scales[1] if len(scales) == 2 else scales[0] if scales else None
        return Margins(self.positive + other.positive, self.negative + other.negative, scale)

    def __neg__(self) -> Margins:
        return self * -1.0

    def __sub__(self, other: object) -> Margins:
        return self + -other if isinstance(other, Margins) else NotImplemented

    def __mul__(self, factor: object) -> Margins:
        if not isinstance(factor, int | float):
            return NotImplemented
        scale = None if self.scale is None else self.scale**factor
        return Margins(self.positive * factor, self.negative * factor, scale)

    __rmul__ = __mul__


def is_shift(margins: Margins) -> bool:
    """Whether the margins only shift logits, positive[y] = -negative[y]: the loss is cross-entropy on f + negative.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> is_shift(logit_adjusted(prior)), is_shift(adaptive(prior))
    (True, False)
    """
    if margins.scale is not None:
        return False
    scale = float(margins.positive.abs().max() + margins.negative.abs().max())
    return float((margins.positive + margins.negative).abs().max()) <= 1e-6 * scale
