"""The losses of ExtremeClassifier: over all labels, or over drawn negatives; of pairs of labels, or of each."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.labels import NO_LABEL
from longtail.estimators.extreme.data import LabelBatch
from longtail.estimators.extreme.network import Network
from longtail.losses.pick_all import multilabel_margin_cross_entropy
from longtail.margins import Margins, none
from longtail.negatives.distributions import LabelDistribution, WithinBatch
from longtail.negatives.head import SampledLinear
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss
from longtail.negatives.weightings import implied_margins
from longtail.prior import ClassPrior

__all__ = ["Criterion", "DrawnNegatives", "FullDecoupled", "FullSoftmax"]


class FullSoftmax:
    """The margin loss over all labels, or all but the sample's others, for every label of every sample."""

    loss = CROSS_ENTROPY

    def __init__(self, margins: Margins, class_weights: Tensor | None, excludes_other_labels: bool) -> None:
        self.margins, self.class_weights = margins, class_weights
        self.excludes_other_labels = excludes_other_labels

    def implied_margins(self, prior: ClassPrior) -> Margins:
        """The margins that it trains with, in full precision."""
        return self.margins.to("cpu", torch.float64)

    def __call__(self, network: Network, embeddings: Tensor, batch: LabelBatch, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch."""
        losses = multilabel_margin_cross_entropy(
            network.logits(batch.rows, embeddings),
            batch.samples,
            batch.labels,
            self.margins,
            self.class_weights,
            excludes_other_labels=self.excludes_other_labels,
        )
        return _mean(losses, batch)


class FullDecoupled:
    """A loss that scores each label by itself, over all labels, for every label of every sample.

    Formula:
        l[p] = alpha[y] * (phi(f[y]) + exp(positive[y]) sum_{y'} exp(negative[y']) psi(f[y'])), y = labels[p], y' is
        not y or, with ``excludes_other_labels``, none of the sample's labels; phi and psi are those of ``loss``
    """

    def __init__(
        self, loss: SampledLoss, margins: Margins, class_weights: Tensor | None, excludes_other_labels: bool
    ) -> None:
        self.loss, self.margins, self.class_weights = loss, margins, class_weights
        self.excludes_other_labels = excludes_other_labels

    def implied_margins(self, prior: ClassPrior) -> Margins:
        """The margins that it trains with, in full precision."""
        return self.margins.to("cpu", torch.float64)

    def __call__(self, network: Network, embeddings: Tensor, batch: LabelBatch, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch."""
        logits = network.logits(batch.rows, embeddings)
        margins = self.margins.to(logits)
        samples, labels, log_weights = batch.samples, batch.labels, margins.negative.expand_as(logits)
        positive = logits[samples, labels]
        if self.excludes_other_labels:
            log_weights = log_weights.index_put((samples, labels), logits.new_tensor(-torch.inf))
            total = self.loss.total(logits, log_weights)[samples]
        else:
            own = self.loss.total(positive[:, None], margins.negative[labels][:, None])
            total = self.loss.total(logits, log_weights)[samples] - own
        losses = self.loss.finish(positive, margins.positive.exp()[labels] * total)
        return _mean(losses if self.class_weights is None else losses * self.class_weights[labels], batch)


class DrawnNegatives:
    """The loss over drawn negatives, on the network's own label vectors."""

    def __init__(self, head: SampledLinear, class_weights: Tensor | None) -> None:
        self.head, self.class_weights, self.loss = head, class_weights, head.loss

    def share(self, network: Network) -> None:
        """Train the network's label vectors."""
        self.head.weight = network.weight

    def implied_margins(self, prior: ClassPrior) -> Margins:
        """The margins that sampling and weighting amount to; none where the negatives follow the model."""
        distribution = self.head.distribution
        if isinstance(distribution, LabelDistribution | WithinBatch):
            return implied_margins(distribution, self.head.weighting, self.head.num_negatives)
        return none(prior)

    def __call__(self, network: Network, embeddings: Tensor, batch: LabelBatch, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch."""
        counts = torch.bincount(batch.samples, minlength=len(embeddings))
        place = torch.arange(len(batch.labels), device=counts.device) - (counts.cumsum(0) - counts)[batch.samples]
        target = batch.labels.new_full((len(embeddings), int(counts.max())), NO_LABEL)
        target[batch.samples, place] = batch.labels
        losses = self.head.losses(embeddings, target, generator)
        return _mean(losses if self.class_weights is None else losses * self.class_weights[batch.labels], batch)


Criterion = FullSoftmax | FullDecoupled | DrawnNegatives


def _mean(losses: Tensor, batch: LabelBatch) -> Tensor:
    """The mean over pairs, each times the weight of its sample."""
    return (losses if batch.weights is None else losses * batch.weights[batch.samples]).mean()
