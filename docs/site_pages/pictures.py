"""What a built site must not lack: pictures that pages show, and formulas that are typeset."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

IMAGE = re.compile(r"<(?:img|source)\b[^>]*?(?:src|srcset)=\"?([^\">\s]+)")
RAW_FORMULA = re.compile(r"formula[0-9a-f]{12}placeholder|language-math|\$\$")
PICTURE = re.compile(r'<picture>\s*<source[^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>')


def split_schemes(text: str) -> str:
    """A picture that follows the reader's system as two, of which the style sheet shows the one of the page's scheme:
    a page may be light on a dark system.
    """
    return PICTURE.sub(
        r'<img class="picture only-light" alt="\2" src="\3"><img class="picture only-dark" alt="\2" src="\1">', text
    )


def find_problems(site: Path) -> list[str]:
    """One sentence for each picture that is missing and each formula that is not typeset."""
    problems = []
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(site).as_posix()
        for address in IMAGE.findall(text):
            if not address.startswith(("http", "data:", "/")) and not (page.parent / unquote(address)).is_file():
                problems.append(f"{name} shows {address}, which does not exist")
        if RAW_FORMULA.search(re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL)):
            problems.append(f"{name} has a formula that is not typeset")
    return problems
