"""Amazon reviews of sports articles and of toys: which article does a user review next?"""

from __future__ import annotations

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.events import Events, leave_one_out, read_events
from longtail.lab.data.locate import data_root, published_file

__all__ = ["load_amazon_sports", "load_amazon_toys", "read_amazon_sports", "read_amazon_toys"]


def load_amazon_sports(root: str | None = None, max_length: int = 50, evaluate_on: str = "test") -> Dataset:
    """Amazon Sports and Outdoors: 35,598 users, 18,357 items and 296,337 reviews, as S3-Rec prepared them.

    Args:
        root: folder with ``sequences/sports.txt[.gz]``; None is the variable LONGTAIL_DATA.
        max_length: how many of the last items a model sees.
        evaluate_on: "test", or "validation" to choose settings.

    Reference:
        McAuley et al. (2015), "Image-based recommendations on styles and substitutes", for the reviews; Zhou et al.
        (2020), "S3-Rec: self-supervised learning for sequential recommendation", section 5.1, for the preparation:
        users and items with at least five reviews.
    """
    return leave_one_out(read_amazon_sports(root), "Amazon Sports", max_length, evaluate_on)


def load_amazon_toys(root: str | None = None, max_length: int = 50, evaluate_on: str = "test") -> Dataset:
    """Amazon Toys and Games: 19,412 users, 11,924 items and 167,597 reviews; otherwise as ``load_amazon_sports``."""
    return leave_one_out(read_amazon_toys(root), "Amazon Toys", max_length, evaluate_on)


def read_amazon_sports(root: str | None = None) -> Events:
    """The reviews of ``load_amazon_sports``, before they are split."""
    return read_events(published_file("Amazon Sports", data_root(root), "sequences/sports.txt"))


def read_amazon_toys(root: str | None = None) -> Events:
    """The reviews of ``load_amazon_toys``, before they are split."""
    return read_events(published_file("Amazon Toys", data_root(root), "sequences/toys.txt"))
