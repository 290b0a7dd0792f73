"""Files of fitted scikit-learn estimators by skops: numbers and names, no pickle, and nothing foreign is loaded."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from inspect import isfunction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from longtail import estimators, margins, posthoc
from longtail._core.files import replacing
from longtail.errors import DamagedFileError
from longtail.estimators import ExtremeClassifier

__all__ = ["load_estimator", "save_estimator"]

PathLike = str | os.PathLike[str]

FORMAT = 1
"""Goes up when an older reader would misunderstand a file."""
NOTE = "longtail.json"
FOR_LOOKING_AT = ("tau_search_", "margins_")
"""What predictions do not need, and skops can't keep."""


def save_estimator(estimator: BaseEstimator, path: PathLike) -> None:
    """Write a fitted estimator of scikit-learn, or of this library around one, with skops.

    Beside what skops keeps, the file has a checksum, and prior, tau and target where the estimator corrects. What a
    search for tau found beside tau, ``tau_search_``, and the ``margins_`` of training are not kept. Needs
    ``pip install "longtail[export]"``.

    Args:
        estimator: fitted; an ``ExtremeClassifier`` has its own ``save``.
        path: the file, which is replaced if it exists.
    """
    io = _import_skops()
    if isinstance(estimator, ExtremeClassifier):
        raise TypeError("save_estimator: an ExtremeClassifier is tensors; use its save and load.")
    check_is_fitted(estimator)
    kept = copy.copy(estimator)
    for name in FOR_LOOKING_AT:
        if hasattr(kept, name):
            setattr(kept, name, None)
    content = BytesIO(io.dumps(kept))
    with zipfile.ZipFile(content, "a") as archive:
        note = {"format": FORMAT, "digest": _digest_members(archive), "correction": _describe(estimator)}
        archive.writestr(NOTE, json.dumps(note))
    with replacing(Path(path)) as file:
        file.write(content.getbuffer())


def load_estimator(path: PathLike, trusted: Sequence[str] = ()) -> Any:
    """The estimator that ``save_estimator`` wrote; a damaged file, or another's, is a ``DamagedFileError``.

    Types of NumPy, SciPy and scikit-learn that skops trusts are loaded, and those of this library; any other is
    refused by name.

    Args:
        path: the file.
        trusted: names of other types that you know and trust, such as ``my_package.MyTransformer``. Boosters need
            those of their library; the message lists them.
    """
    io = _import_skops()
    try:
        with zipfile.ZipFile(path) as archive:
            note = _read_note(archive)
            if note["digest"] != _digest_members(archive):
                raise ValueError("content that does not fit its checksum")
        foreign = sorted(set(io.get_untrusted_types(file=path)) - _own_types() - set(trusted))
        if foreign:
            raise ValueError(
                f"types that are not trusted: {', '.join(foreign)}; if you trust them, name them in trusted"
            )
        return io.load(path, trusted=sorted(_own_types() | set(trusted)))
    except OSError:
        raise
    except Exception as error:  # whatever skops raises for what it can't read
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DamagedFileError(f"{path} must be a file that save_estimator wrote. Got: {reason}.") from error


def _import_skops() -> Any:
    try:
        import skops.io
    except ModuleNotFoundError:
        message = 'files of estimators need skops; get it with: pip install "longtail[export]"'
        raise ModuleNotFoundError(message, name="skops") from None
    return skops.io


def _own_types() -> set[str]:
    """Estimators of this library, and the functions that they take as objectives and margins."""
    own = [getattr(estimators, name) for name in estimators.__all__]
    own += [getattr(posthoc, name) for name in posthoc.__all__ if name.endswith("_shares")]
    own += [value for name in margins.__all__ if isfunction(value := getattr(margins, name))]
    return {f"{value.__module__}.{value.__qualname__}" for value in own}


def _read_note(archive: zipfile.ZipFile) -> dict[str, Any]:
    assert archive.filename is not None
    size = Path(archive.filename).stat().st_size
    if any(member.file_size > size for member in archive.infolist()):  # skops stores, and does not compress
        raise ValueError("a part that is larger than the file")
    try:
        note = json.loads(archive.read(NOTE))
    except KeyError:
        raise ValueError("a file of another program") from None
    if not isinstance(note, dict) or note.get("format") != FORMAT:
        found = note.get("format") if isinstance(note, dict) else note
        raise ValueError(f"format {found!r}, and this version of longtail reads {FORMAT}")
    return note


def _digest_members(archive: zipfile.ZipFile) -> str:
    """SHA-256 of names and content of all but the note."""
    hashed = hashlib.sha256()
    for name in sorted(archive.namelist()):
        if name != NOTE:
            hashed.update(f"{name}\n".encode() + hashlib.sha256(archive.read(name)).digest())
    return hashed.hexdigest()


def _describe(estimator: Any) -> dict[str, Any] | None:
    """Method, prior, target and tau of an estimator that corrects the prior; None of others."""
    if not getattr(estimator, "corrects_prior", False):
        return None
    prior, target = (np.asarray(getattr(estimator, name, None)).tolist() for name in ("class_prior_", "target_"))
    tau = getattr(estimator, "tau_", None)
    return {"method": type(estimator).__name__, "prior": prior, "target": target, "tau": tau, "is_corrected": True}
