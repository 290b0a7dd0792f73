"""Pages of one file each, with their style, their figures as JSON, and the scripts that draw them.

A page loads nothing, which its content security policy enforces: its two scripts are allowed by their hashes, and
nothing else may run or be fetched. Text of others (names of classes and methods, recipes, titles) reaches it escaped
only: the templates escape whatever is not marked as our own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import longtail
from longtail.lab.report.figures.drawing import Figure
from longtail.lab.report.text import clean

__all__ = ["dump_figures", "load_templates", "read_resource", "render_document"]

SCRIPT = "templates/page.js"


def render_document(template: str, plotly: str, **values: Any) -> str:
    """A whole page.

    Args:
        template: its name.
        plotly: the source of plotly.js, with all kinds of traces that the figures have.
        values: what the template names.
    """
    scripts = [_protect_script(source) for source in (plotly, read_resource(SCRIPT))]
    return (
        load_templates()
        .get_template(template)
        .render(
            version=longtail.__version__,
            policy=Markup(_build_policy(*scripts)),
            style=Markup(read_resource("templates/page.css")),
            scripts=[Markup(script) for script in scripts],
            **values,
        )
    )


@functools.cache
def load_templates() -> Environment:
    """The templates of pages and of their parts."""
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["clean"] = clean
    return environment


def dump_figures(figures: Iterable[Figure]) -> Markup:
    """The figures as JSON that can't end its script element, whatever its strings hold."""
    data = {figure.key: {"data": figure.traces, "layout": figure.layout} for figure in figures}
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def read_resource(name: str) -> str:
    """A text file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _build_policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def _protect_script(source: str) -> str:
    """JavaScript whose text can't end its script element; line ends as the parser of HTML makes them."""
    return source.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")
