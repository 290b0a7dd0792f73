"""What was done about class frequencies, kept with a model, so that it is never done twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longtail.prior import ClassPrior, check_prior

__all__ = ["Correction", "read_correction", "record_correction", "refuse_second_correction"]

FORMAT = 1
ATTRIBUTE = "longtail_correction"
"""Where a module, and a configuration that is written with it, has the record."""
FITTED = "correction_"
"""Where an estimator that is fitted has it."""
WRAPPERS = ("module", "_orig_mod")
"""Where what ``DistributedDataParallel`` and ``torch.compile`` wrap is."""


@dataclass(frozen=True)
class Correction:
    """The record of a model: the prior it learned from, and what was done about it.

    >>> record = Correction(ClassPrior.from_counts([90, 10]), "logit_adjusted", tau=1.0, is_corrected=True)
    >>> Correction.from_json(record.to_json()) == record
    True
    """

    prior: ClassPrior
    """Class counts of the training data."""
    method: str = "cross_entropy"
    """What it was trained with, or adjusted by."""
    tau: float | None = None
    """The strength, where the method has one."""
    is_corrected: bool = False
    """Whether class frequencies are taken out already, in training or afterwards."""

    def __post_init__(self) -> None:
        check_prior(self.prior)

    @property
    def cause(self) -> str:
        """The method, and its strength where it has one, as a message names them."""
        return self.method if self.tau is None else f"{self.method} with tau {self.tau:g}"

    def to_json(self) -> dict[str, Any]:
        """Numbers and text alone, for the metadata of a file."""
        return {
            "format": FORMAT,
            "method": self.method,
            "tau": self.tau,
            "is_corrected": self.is_corrected,
            "counts": self.prior.counts.tolist(),
            "num_samples": self.prior.num_samples,
            "pseudocount": self.prior.pseudocount,
        }

    @classmethod
    def from_json(cls, value: Any) -> Correction:
        """Read what :meth:`to_json` made; anything else is a ValueError."""
        if not isinstance(value, Mapping):
            raise ValueError(f"a correction must be what longtail wrote. Got {type(value).__name__}.")
        if value.get("format") != FORMAT:
            raise ValueError(f"a correction must be of format {FORMAT}. Got {value.get('format')!r}.")
        try:
            return cls(_read_prior(value), str(value["method"]), _read_tau(value["tau"]), _read_flag(value))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"a correction must be what longtail wrote. Got: {error}.") from None


def record_correction(model: Any, correction: Correction) -> None:
    """Keep the record with a model: as an attribute, and in ``model.config`` where there is one to be saved.

    >>> model = torch.nn.Linear(3, 2)
    >>> record_correction(model, Correction(ClassPrior.from_counts([90, 10])))
    >>> read_correction(model).is_corrected
    False
    """
    model = _unwrap(model)
    setattr(model, ATTRIBUTE, correction)
    config = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):  # Hugging Face's, which save_pretrained writes to config.json
        setattr(config, ATTRIBUTE, correction.to_json())


def read_correction(model: Any) -> Correction | None:
    """The record of a model, an estimator, or a checkpoint of Lightning; None where there is none."""
    model = _unwrap(model)
    found = model.get(ATTRIBUTE) if isinstance(model, Mapping) else getattr(model, ATTRIBUTE, None)
    if found is None:
        found = getattr(model, FITTED, getattr(getattr(model, "config", None), ATTRIBUTE, None))
    return found if found is None or isinstance(found, Correction) else Correction.from_json(found)


def refuse_second_correction(model: Any) -> None:
    """Raise if a model's record says that it is corrected already."""
    record = read_correction(model)
    if record is not None and record.is_corrected:
        raise ValueError(
            f"the model must not be corrected yet. Got one that is, by {record.cause}; "
            "a second correction would make it prefer rare classes: use it as it is."
        )


def _unwrap(model: Any) -> Any:
    for name in WRAPPERS:
        inner = getattr(model, "_modules", {}).get(name)
        if inner is not None and not hasattr(model, ATTRIBUTE):
            return _unwrap(inner)
    return model


def _read_prior(value: Mapping[str, Any]) -> ClassPrior:
    num_samples, pseudocount = value["num_samples"], value["pseudocount"]
    if type(num_samples) is not int or not (math.isfinite(pseudocount) and pseudocount >= 0):
        raise TypeError(f"{num_samples!r} samples and a pseudocount of {pseudocount!r}")
    prior = ClassPrior.from_counts(value["counts"])
    return dataclasses.replace(prior, num_samples=num_samples, pseudocount=float(pseudocount))


def _read_tau(tau: Any) -> float | None:
    if tau is not None and not math.isfinite(tau):
        raise TypeError(f"tau {tau!r}")
    return None if tau is None else float(tau)


def _read_flag(value: Mapping[str, Any]) -> bool:
    if not isinstance(value["is_corrected"], bool):
        raise TypeError(f"is_corrected {value['is_corrected']!r}")
    return value["is_corrected"]
