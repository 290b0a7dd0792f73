"""What the library raises beside Python's own errors; each is a kind of one of those."""

from __future__ import annotations

__all__ = ["DamagedFileError"]


class DamagedFileError(ValueError):
    """A file that the library wrote is damaged, cut off, or of another kind or version; the message names it.

    >>> raise DamagedFileError("model.safetensors is damaged: its checksum is another.")
    Traceback (most recent call last):
        ...
    longtail.errors.DamagedFileError: model.safetensors is damaged: its checksum is another.
    """
