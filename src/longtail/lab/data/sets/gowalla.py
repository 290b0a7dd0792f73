"""Gowalla: users and the places they checked in at."""

from __future__ import annotations

from longtail.lab.data.formats.interactions import Interactions, read_interactions
from longtail.lab.data.locate import PathLike, data_root, not_found

__all__ = ["read_gowalla"]


def read_gowalla(root: PathLike | None = None) -> Interactions:
    """Gowalla: 29,858 users' check-ins at 40,981 places, as split by the authors of LightGCN.

    Args:
        root: folder with ``gowalla/gowalla.npz``; None is the variable LONGTAIL_DATA.

    Returns:
        810,128 pairs to train on and 217,242 to test on.

    Reference:
        Cho et al. (2011), "Friendship and mobility"; He et al. (2020), "LightGCN", section 4.1, for the split.
    """
    folder = data_root(root)
    path = folder / "gowalla" / "gowalla.npz"
    if not path.is_file():
        raise not_found("Gowalla", folder, "gowalla/gowalla.npz")
    return read_interactions(path)
