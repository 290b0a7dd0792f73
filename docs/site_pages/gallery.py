"""The gallery: every script in ``examples/gallery`` is run when the site is built; picture and code make a page.

A script that fails, warns, or draws nothing stops the build. Pictures are kept in ``build/gallery`` under a hash of
the script and of the library, so that a second build runs only what changed.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import html
import io
import runpy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from site_pages import ROOT
from site_pages.markdown import fenced, one_line

SCRIPTS, KEPT = ROOT / "examples" / "gallery", ROOT / "build" / "gallery"
SECTIONS = {
    "First steps": (
        "prior", "adjust_logits", "scikit_learn", "change_the_loss", "decision_boundary", "profiles", "report",
    ),
    "A trained model": (
        "choose_tau", "target_prior", "unknown_prior", "calibration", "threshold", "gradient_boosting",
        "nearest_mean",
        "conformal_sets",
    ),
    "Losses, weights and samplers": (
        "margins_compared", "margins_add", "class_weights", "losses_compared", "focal_loss", "samplers",
        "oversampling", "correct_once", "elm_embeddings",
    ),
    "Many labels": ("multilabel_thresholds", "partial_label_masking", "implied_loss", "sampled_softmax"),
}  # fmt: skip
"""The order of the gallery."""


class GalleryError(ValueError):
    """A script that makes no picture."""


@dataclass(frozen=True)
class Example:
    """A script and what it says of itself."""

    path: Path

    @property
    def name(self) -> str:
        """The script's name, and the page's."""
        return self.path.stem

    @functools.cached_property
    def source(self) -> str:
        """The script."""
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def docstring(self) -> str:
        """What it shows."""
        return ast.get_docstring(ast.parse(self.source)) or ""

    @property
    def title(self) -> str:
        """The first line."""
        return self.docstring.partition("\n")[0]

    @property
    def text(self) -> str:
        """What follows the first line."""
        return self.docstring.partition("\n")[2].strip()

    @property
    def code(self) -> str:
        """The script without its docstring."""
        return self.source.rpartition('"""')[2].strip()


def list_examples() -> dict[str, list[Example]]:
    """The examples by section; a script that is in none, or is missing, is an error."""
    found = {path.stem: Example(path) for path in sorted(SCRIPTS.glob("*.py"))}
    listed = [name for names in SECTIONS.values() for name in names]
    if set(listed) != set(found):
        raise GalleryError(f"examples/gallery and SECTIONS differ in: {', '.join(sorted(set(listed) ^ set(found)))}.")
    return {section: [found[name] for name in names] for section, names in SECTIONS.items()}


def draw_example(example: Example) -> bytes:
    """The script's picture as SVG, drawn now or kept from an earlier build."""
    kept = KEPT / f"{example.name}-{_hash_sources(example.source)}.svg"
    if not kept.is_file():
        picture = run_script(example.path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in kept.parent.glob(f"{example.name}-*.svg"):
            old.unlink()
        kept.write_bytes(picture)
    return kept.read_bytes()


def run_script(path: Path) -> bytes:
    """Run a script as a user would, and take the picture that it drew last."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from site_pages.drawing import SCHEMES, styled, to_svg

    with _drawing_of(path), styled(SCHEMES["light"]):
        plt.close("all")
        plt.rcParams.update({"figure.figsize": (6.6, 3.8), "savefig.facecolor": "white", "legend.frameon": True})
        plt.rcParams.update({"legend.framealpha": 0.85, "legend.edgecolor": "none", "legend.facecolor": "white"})
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
        figure = plt.gcf()
        if not any(axes.has_data() for axes in figure.axes):
            raise GalleryError("it draws nothing")
        figure.set_layout_engine("constrained")
        picture = to_svg(figure, path.name)
        plt.close("all")
    return picture


@contextlib.contextmanager
def _drawing_of(path: Path) -> Iterator[None]:
    """Errors and warnings within name the script."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Creating legend")  # a slow machine's
            yield
    except Exception as error:
        raise GalleryError(f"{path.relative_to(ROOT)} fails: {type(error).__name__}: {error}") from error


@functools.cache
def _library_hash() -> str:
    sources = sorted((ROOT / "src" / "longtail").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources if "lab" not in path.parts)).hexdigest()


def _hash_sources(script: str) -> str:
    drawing = Path(__file__).read_text() + (Path(__file__).parent / "drawing.py").read_text()
    return hashlib.sha256((script + drawing + _library_hash()).encode()).hexdigest()[:16]


def gallery_index() -> str:
    """The page of thumbnails."""
    parts = [
        "---\nhide: [toc]\n---",
        "# Gallery",
        "Short scripts, each with a picture, from `examples/gallery`. All of them are run when this site is built.",
    ]
    for section, examples in list_examples().items():
        cards = [
            f'<a class="card" href="{example.name}.html"><img src="{example.name}.svg" alt="" loading="lazy">'
            f"<span>{example.title}</span></a>"
            for example in examples
        ]
        parts += [f"## {section}", f'<div class="gallery">{"".join(cards)}</div>']
    return "\n\n".join(parts) + "\n"


def example_page(example: Example) -> str:
    """The page of one example."""
    words = html.escape(one_line(f"{example.title}: {example.text}").replace("`", ""))
    picture = f'<img class="picture drawn" src="{example.name}.svg" alt="{words}">'
    parts = [f"# {example.title}", example.text, picture, fenced(example.code, "python")]
    return "\n\n".join([*parts, f"This script is `examples/gallery/{example.name}.py`."]) + "\n"
