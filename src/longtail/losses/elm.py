"""ELM's pull: a margin on embeddings that draws each class together, rare ones tighter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longtail._core.checks import check_class_range, check_positive
from longtail._core.numerics import squared_distances
from longtail.losses._embeddings import EmbeddingLoss, check_pairs, log_one_plus_sum, no_autocast
from longtail.losses._terms import register_constant
from longtail.losses.memory import ClassMemory, Remembered
from longtail.prior import ClassPrior

__all__ = ["probability_margin", "count_margin", "pull", "Pull"]


def probability_margin(prior: ClassPrior, scale: float = 1.0, exponent: float = 1.0) -> Tensor:
    """A margin for each class from its share of the samples.

    Formula:
        alpha[y] = scale * pi[y]^exponent

    Args:
        prior: the class counts.
        scale: a number above 0.
        exponent: above 0 a rare class has the smaller margin, as ``pull`` wants it.

    Returns:
        [C] float64.

    >>> probability_margin(ClassPrior.from_counts([75, 25]), scale=4.0).tolist()
    [3.0, 1.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", section 3.1.
    """
    return _power_margin(prior.probs, scale, exponent)


def count_margin(prior: ClassPrior, scale: float = 1.0, exponent: float = 0.5) -> Tensor:
    """A margin for each class from the number of its samples.

    Formula:
        alpha[y] = scale * n[y]^exponent

    Args:
        prior: the class counts.
        scale: a number above 0.
        exponent: above 0 a rare class has the smaller margin (``pull``), below 0 the larger one (``dro_lt``).

    Returns:
        [C] float64.

    Special cases:
        ``probability_margin`` with the scale times (number of samples)^exponent.

    >>> count_margin(ClassPrior.from_counts([100, 25])).tolist()
    [10.0, 5.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", appendix A.2.
    """
    return _power_margin(prior.counts.double(), scale, exponent)


def pull(
    embeddings: Tensor,
    target: Tensor,
    margin: Tensor,
    memory: Remembered | None = None,
    class_weights: Tensor | None = None,
) -> Tensor:
    """ELM's embedding margin: a sample pays for those of its class that are farther from it than the margin.

    Formula:
        Omega = w[y] * log(1 + sum_{x+} exp(||x - x+||^2 - alpha[y])), x+ the other samples of class y

    Args:
        embeddings: [N, D], any floating dtype.
        target: [N] class indices.
        margin: [C] alpha, squared distances; see ``probability_margin`` and ``count_margin``.
        memory: more samples of each class, which pull but are not pulled: they get no gradient. None: there are none.
        class_weights: [C] w; None is 1, as in the paper. In the mean over a batch, a rare class counts as little
            as it has samples; with ``weights.balanced`` it counts as much as a frequent one.

    Returns:
        [N] values; 0, with no gradient, for a sample that is alone in its class.

    Time and memory are of the order of same-class pairs. Samples are sorted by class, and classes of similar size go
    through one batched matrix product, their mean taken off first so that large norms cancel nothing.

    Use when:
        Embeddings of rare classes are diffuse, and a margin loss on the logits separates the classes.
    Avoid when:
        It is the only term: embeddings in one point have the smallest value. Where most classes have one sample in a
        batch, give it a ``memory``.
    Special cases:
        ``center`` around the batch's class means, doubled and shifted, is a lower bound (Proposition 1).

    >>> x, y = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1])
    >>> pull(x, y, margin=torch.tensor([4.0, 1.0])).exp()
    tensor([2., 2., 1.])

    Deviates:
        The sum is over the batch (and the memory), not over the training set. A memory may hold an older embedding
        of the sample itself. The paper has neither memory nor weights.

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", eq. (4).
    """
    wide, target = check_pairs("pull", embeddings, target)
    if margin.ndim != 1:
        raise ValueError(f"pull: margin must be [C], one number per class. Got {tuple(margin.shape)}.")
    check_class_range(target, len(margin))
    if class_weights is not None and class_weights.shape != margin.shape:
        raise ValueError(f"pull: class_weights must be [{len(margin)}]. Got {tuple(class_weights.shape)}.")
    if memory is not None:
        _check_memory(memory, len(margin), wide.shape[1])
    values = wide.sum(dim=1) * 0  # in the graph also where nobody has a partner
    with no_autocast(wide):
        for block in _class_blocks(target, smallest=1 if memory is not None else 2):
            x = wide.index_select(0, block.rows.flatten()).view(*block.rows.shape, wide.shape[1])
            found = _pull_block(x, block, margin.to(wide), memory)
            values = values.index_add(0, block.rows.flatten(), torch.where(block.is_real, found, 0).flatten())
    return values if class_weights is None else values * class_weights.to(values)[target]


class Pull(EmbeddingLoss):
    """The mean of ``pull``, with a memory of recent embeddings if wanted.

    Args:
        margin: [C] alpha.
        memory_size: how many recent embeddings of each class pull as well; 0 is the batch alone. The memory is
            written in training mode, after the value is taken.
        class_weights: [C] w; None is 1.

    >>> Pull(torch.ones(2))(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    margin: Tensor
    class_weights: Tensor | None

    def __init__(self, margin: Tensor, memory_size: int = 0, class_weights: Tensor | None = None) -> None:
        super().__init__()
        register_constant(self, "margin", margin)
        register_constant(self, "class_weights", class_weights)
        self.memory = ClassMemory(len(margin), memory_size) if memory_size else None

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``pull``, with the memory."""
        memory = None if self.memory is None else self.memory.recall()
        return pull(embeddings, target, self.margin, memory, self.class_weights)

    def observe(self, embeddings: Tensor, target: Tensor) -> None:
        """Put the batch into the memory."""
        if self.memory is not None:
            self.memory.keep(embeddings, target)


class _Block(NamedTuple):
    """Classes of similar size, their samples padded to the largest."""

    classes: Tensor
    """[G]."""
    rows: Tensor
    """[G, W] indices of their samples; a padded place repeats the first one."""
    is_real: Tensor
    """[G, W] False where padded."""


def _class_blocks(target: Tensor, smallest: int) -> Iterator[_Block]:
    """The classes with at least ``smallest`` samples; those of a block differ in size by less than a factor of 2.

    Classes of up to 15 samples share a block: what padding costs there is less than another round of calls.
    """
    order = target.argsort(stable=True)
    classes, counts = torch.unique_consecutive(target[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    sizes: dict[int, list[int]] = {}
    counted = counts.tolist()
    for position, count in enumerate(counted):
        if count >= smallest:
            sizes.setdefault(max(count.bit_length(), 4), []).append(position)
    for positions in sizes.values():
        group = torch.tensor(positions, device=target.device)
        steps = torch.arange(max(counted[position] for position in positions), device=target.device)
        is_real = steps < counts[group, None]
        yield _Block(classes[group], order[starts[group, None] + steps * is_real], is_real)


def _pull_block(x: Tensor, block: _Block, margin: Tensor, memory: Remembered | None) -> Tensor:
    """[G, W] values of embeddings x [G, W, D]; those of padded places mean nothing."""
    # Distances do not change when all embeddings of a class move by the same vector, so neither do gradients.
    middle = x.detach().mean(dim=1, keepdim=True)
    x = x - middle
    partners, is_partner = x, block.is_real
    if memory is not None:
        remembered = memory.embeddings[block.classes].to(x) - middle
        filled = torch.arange(remembered.shape[1], device=x.device)
        partners = torch.cat([x, remembered], dim=1)
        is_partner = torch.cat([is_partner, filled < memory.counts[block.classes, None]], dim=1)
    places = torch.arange(partners.shape[1], device=x.device)
    itself = places[: x.shape[1], None] == places
    exponents = squared_distances(x, partners) - margin[block.classes, None, None]
    return log_one_plus_sum(exponents.masked_fill(itself | ~is_partner[:, None, :], -math.inf))


def _check_memory(memory: Remembered, num_classes: int, width: int) -> None:
    kept = memory.embeddings
    if kept.ndim != 3 or (kept.shape[0], kept.shape[2]) != (num_classes, width):
        raise ValueError(f"pull: memory must hold [{num_classes}, K, {width}]. Got {tuple(kept.shape)}.")


def _power_margin(sizes: Tensor, scale: float, exponent: float) -> Tensor:
    check_positive(scale, "margin: scale")
    if not math.isfinite(exponent):
        raise ValueError(f"margin: exponent must be a finite number. Got {exponent}.")
    if exponent < 0 and not sizes.all():
        empty = int((sizes == 0).nonzero()[0])
        raise ValueError(f"margin: class {empty} has no samples, so its margin is infinite; drop it.")
    return scale * sizes**exponent
