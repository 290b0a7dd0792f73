"""Scikit-learn's metadata routing for estimators around another one."""

from __future__ import annotations

from typing import Any, NamedTuple

import sklearn
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import has_fit_parameter

from longtail.estimators._common import Array, select_rows

__all__ = ["FitParameters", "build_router", "route_fit", "select_parameters"]


class FitParameters(NamedTuple):
    """What goes to ``fit`` of the estimator inside, and to ``split`` of the splitter."""

    fit: dict[str, Any]
    split: dict[str, Any]


def build_router(model: Any, base: Any, cv: Any = None) -> MetadataRouter:
    """Who gets what of the arguments of ``fit``: the model, the estimator inside, and a splitter if there is one."""
    fit_to_fit = MethodMapping().add(caller="fit", callee="fit")
    router = MetadataRouter(owner=model).add_self_request(model).add(estimator=base, method_mapping=fit_to_fit)
    if hasattr(cv, "split"):
        router.add(splitter=cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
    return router


def route_fit(model: Any, base: Any, sample_weight: Any, parameters: dict[str, Any]) -> FitParameters:
    """Share out the arguments of ``fit``. Without metadata routing only ``sample_weight`` is taken.

    The weight that the estimator inside does not get is no weight for the model around it either: it stands for what
    was learned.
    """
    given = {} if sample_weight is None else {"sample_weight": sample_weight}
    if sklearn.get_config()["enable_metadata_routing"]:
        routed = process_routing(model, "fit", **given, **parameters)
        split = routed.get("splitter", {})
        return FitParameters(dict(routed["estimator"]["fit"]), dict(split.get("split", {})))
    if parameters:
        raise ValueError(
            f"fit must get X, y and sample_weight alone. Got {', '.join(sorted(parameters))}; others need "
            "sklearn.set_config(enable_metadata_routing=True), and estimators that request them."
        )
    if given and not has_fit_parameter(base, "sample_weight"):
        raise TypeError(
            f"sample_weight needs an estimator whose fit takes it. Got {type(base).__name__}; of a pipeline, "
            "wrap the last step instead, or enable scikit-learn's metadata routing."
        )
    return FitParameters(given, {})


def select_parameters(parameters: dict[str, Any], rows: Array, num_samples: int) -> dict[str, Any]:
    """The parameters of some rows: those with a value per sample, and the others as they are."""
    return {
        name: select_rows(value, rows) if _has_rows(value, num_samples) else value
        for name, value in parameters.items()
    }


def _has_rows(value: Any, num_samples: int) -> bool:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return len(shape) > 0 and shape[0] == num_samples
    return isinstance(value, list | tuple) and len(value) == num_samples
