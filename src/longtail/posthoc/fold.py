"""fold_adjustment: the adjustment as a part of the model, so that whatever runs the model is corrected."""

from __future__ import annotations

from copy import deepcopy

from torch import Tensor, nn

from longtail.correction import Correction, read_correction, record_correction, refuse_second_correction
from longtail.posthoc._inputs import PriorLike, logit_shift
from longtail.prior import ClassPrior

__all__ = ["fold_adjustment"]

PASSES_LOGITS = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten, nn.Softmax, nn.LogSoftmax)
"""What may come after the layer that makes the logits."""


def fold_adjustment(
    model: nn.Module,
    prior: ClassPrior | None = None,
    tau: float = 1.0,
    target_prior: PriorLike | None = None,
    *,
    layer: str | None = None,
) -> nn.Module:
    """Post-hoc logit adjustment as a bias of the last layer: the model itself then gives adjusted logits.

    Formula:
        b[y] - tau * (log pi[y] - log pi_target[y])

    Args:
        model: trained with plain cross-entropy. One whose record says that it is corrected already is refused.
        prior: the training prior; None takes that of the model's record.
        tau: strength, as of ``adjust_logits``.
        target_prior: the prior to predict for; None is uniform.
        layer: the name of the last layer, as ``model.named_modules`` has it. None looks for the one linear layer with
            as many outputs as there are classes.

    Returns:
        A copy of the model, with a record that says what was done.

    Use when:
        The model is to be exported or served: nothing that comes after needs to know of the adjustment.
    Avoid when:
        tau or the target prior are to be changed where it runs: keep the model, and use ``adjust_logits``.
    Special cases:
        ``adjust_logits`` of the model's logits.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> prior = ClassPrior.from_counts([90, 10])
    >>> x = torch.randn(5, 4)
    >>> torch.allclose(fold_adjustment(model, prior)(x), adjust_logits(model(x), prior), atol=1e-6)
    True

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (9).
    """
    refuse_second_correction(model)
    record = read_correction(model)
    if prior is None:
        if record is None:
            raise ValueError(
                "fold_adjustment: the model has no record of its prior; pass prior if training made no correction."
            )
        prior = record.prior
    shift = logit_shift(prior, tau, target_prior, prior.num_classes)
    folded = deepcopy(model)
    name = _find_last_layer(folded, prior.num_classes) if layer is None else layer
    parent, _, child = name.rpartition(".")
    shifted = _shift_layer(folded.get_submodule(name), shift)
    if not name:
        folded = shifted
    else:
        setattr(folded.get_submodule(parent), child, shifted)
    record_correction(folded, Correction(prior, "posthoc_adjusted", float(tau), is_corrected=tau > 0))
    return folded


class ShiftedLogits(nn.Module):
    """A head without a bias of its own kind, and what is added to its logits."""

    shift: Tensor

    def __init__(self, head: nn.Module, shift: Tensor) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] shifted logits of embeddings x [N, D]."""
        logits: Tensor = self.head(x)
        return logits + self.shift


def _shift_layer(layer: nn.Module, shift: Tensor) -> nn.Module:
    """The layer with shifted logits; a linear one stays what it is."""
    like = next(layer.parameters())
    if not isinstance(layer, nn.Linear):
        return ShiftedLogits(layer, shift.to(like))
    if layer.out_features != len(shift):
        raise ValueError(f"prior is for {len(shift)} classes, but the last layer has {layer.out_features} outputs.")
    bias = shift if layer.bias is None else shift + layer.bias.detach().to(shift)
    layer.bias = nn.Parameter(bias.to(like), requires_grad=like.requires_grad)
    return layer


def _find_last_layer(model: nn.Module, num_classes: int) -> str:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found: list[str] = [name for name, module in linear.items() if module.out_features == num_classes]
    if len(found) != 1:
        names = ", ".join(repr(name) for name in (found or linear)) or "none"
        raise ValueError(
            f"fold_adjustment: one linear layer must have {num_classes} outputs, or layer must name the last one. "
            f"Got {len(found)}; linear layers: {names}."
        )
    _check_is_last(model, found[0])
    return found[0]


def _check_is_last(model: nn.Module, name: str) -> None:
    """Raise where something comes after the layer in its sequence, so that its outputs are not the logits."""
    parent, _, child = name.rpartition(".")
    sequence = model.get_submodule(parent) if name else None
    if not isinstance(sequence, nn.Sequential):
        return
    children = dict(sequence.named_children())
    after = list(children.values())[list(children).index(child) + 1 :]
    other = [type(module).__name__ for module in after if not isinstance(module, PASSES_LOGITS)]
    if other:
        raise ValueError(
            f"fold_adjustment: the last layer must make the logits. Got {name!r}, whose outputs go through "
            f"{other[0]}; name the last one by layer."
        )
