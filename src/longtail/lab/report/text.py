"""Numbers and names as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

from longtail.lab.runs.statistics import Estimate

__all__ = ["class_name", "clean", "count", "duration", "join_words", "percent", "points", "with_interval"]

MINUTE, HOUR = 60, 3600


def clean(text: str, most: int = 60) -> str:
    """One line that can be shown: no control or direction marks, of at most ``most`` characters.

    Escaping for HTML is the page's task, and comes after.

    >>> clean("a\\n b" + chr(0x202E)), clean("abcdef", most=4)
    ('a b\\ufffd', 'abc…')
    """
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def class_name(name: str, most: int = 60) -> str:
    """A class's name as part of a sentence, where a bare number would be read as an amount.

    >>> class_name("9"), class_name("cat")
    ('class 9', 'cat')
    """
    return clean(f"class {name}" if name.strip().isdecimal() else name, most)


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.9123), percent(math.nan)
    ('91.2%', '–')
    """
    return f"{100 * share:.1f}%" if math.isfinite(share) else "–"


def points(difference: float) -> str:
    """A difference of shares in signed percentage points.

    >>> points(0.053), points(-0.0121), points(0.0001)
    ('+5.3', '−1.2', '0.0')
    """
    rounded = round(100 * difference, 1)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else ""
    return f"{sign}{abs(rounded):.1f}"


def with_interval(value: Estimate) -> str:
    """A share and its 95% interval, in percent without the sign; its ends, where they stop at 0 or 100.

    >>> with_interval(Estimate(0.912, 0.004, 3)), with_interval(Estimate(0.912, math.nan, 1))
    ('91.2 ± 0.4', '91.2')
    >>> with_interval(Estimate(0.912, 0.2, 3))
    '91.2 (71.2 to 100.0)'
    """
    if not math.isfinite(value.mean):
        return "–"
    low, high = value.clip(0, 1)
    spread = ""
    if value.has_interval:
        is_whole = (low, high) == (value.low, value.high)
        spread = f" ± {100 * value.half_width:.1f}" if is_whole else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * value.mean:.1f}{spread}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(0.523), duration(75), duration(5400)
    ('0.52 s', '1.2 min', '1.5 h')
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < MINUTE:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.1f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


def count(number: float) -> str:
    """A whole number with its thousands apart.

    >>> count(12345)
    '12,345'
    """
    return f"{number:,.0f}"


def join_words(parts: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> join_words(["a"]), join_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
