"""SampledLinearLoss: the sampled loss of a linear layer as a loss module, for a training loop that has the layer."""

from __future__ import annotations

from torch import Tensor, nn

from longtail._core.checks import at_least
from longtail.negatives.distributions import Distribution
from longtail.negatives.linear import sampled_linear_losses
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss
from longtail.negatives.weightings import Weighting

__all__ = ["SampledLinearLoss"]


class SampledLinearLoss(nn.Module):
    """The mean of ``sampled_linear_losses`` for a layer that is kept elsewhere, such as a model's own head.

    Args:
        distribution: q, such as ``negatives.uniform(C)`` or ``negatives.WithinBatch(prior)``.
        weighting: w, such as ``negatives.importance`` or ``negatives.targeting(margins)``.
        num_negatives: m.
        loss: what to do with the logits of the positive and the negatives.
        sparse: whether the gradients of weight and bias are row-sparse, for ``RowwiseAdam`` and the like.

    Negatives are drawn with PyTorch's global generator.

    >>> head = nn.Linear(8, 100)
    >>> loss = SampledLinearLoss(uniform(100), importance, num_negatives=20)
    >>> loss(torch.randn(4, 8), head.weight, torch.tensor([3, 1, 4, 1]), head.bias).shape
    torch.Size([])
    """

    takes_embeddings = True
    takes_label_lists = True

    def __init__(
        self,
        distribution: Distribution,
        weighting: Weighting,
        num_negatives: int,
        loss: SampledLoss = CROSS_ENTROPY,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.distribution, self.weighting, self.loss, self.sparse = distribution, weighting, loss, sparse
        self.num_negatives = at_least(num_negatives, 1, "SampledLinearLoss: num_negatives")

    def forward(self, x: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """The mean loss of embeddings [N, D] under a layer's weight [C, D] and bias [C]: a scalar.

        ``target`` is [N], or [N, L] with up to L labels per sample; -100 stands for none.
        """
        losses = sampled_linear_losses(
            x,
            linear_weight,
            target,
            self.distribution,
            self.weighting,
            self.num_negatives,
            bias=bias,
            loss=self.loss,
            sparse=self.sparse,
        )
        return losses.sum() / max(1, len(losses))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"num_negatives={self.num_negatives}"
