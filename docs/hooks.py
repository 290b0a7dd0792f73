"""What mkdocs calls to build the site; ``site_pages`` makes its tables, formulas, pictures and gallery.

An undocumented public name, a formula that cannot be typeset, an example that fails and a picture that is missing
stop it.
"""

from __future__ import annotations

import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from site_pages import ROOT, gallery, methods, pictures, reference, tables, typeset

from longtail import METHODS, __version__

REPOSITORY = "LONGTAIL_REPOSITORY"
"""The environment variable that may hold the address of the repository."""
FOREIGN_SCRIPT, OWN_SCRIPT = "https://unpkg.com/iframe-worker/shim", "javascripts/file-worker.js"
"""What the theme loads to search on file:// pages, and what stands in for it."""
ANSWERS = {"faq.md": 4.0, "install.md": 4.0, "getting-started.md": 3.0}
"""Pages that a search finds first, and by how much."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Stop at undocumented names, and put the generated pages where the navigation names their folder."""
    package = reference.load_package()
    problems = reference.undocumented(package)
    if problems:
        raise PluginError("Every public name needs documentation: " + "; ".join(problems) + ".")
    by_family = [
        {family.capitalize(): [f"methods/{method.name}.md" for method in members]}
        for family, members in methods.families().items()
    ]
    examples = [
        {section: [f"gallery/{example.name}.md" for example in members]}
        for section, members in gallery.list_examples().items()
    ]
    modules = [f"reference/{module.name}.md" for module in reference.public_modules(package)]
    pages = {
        "Gallery": ["gallery/index.md", *examples],
        "Methods": ["methods/index.md", *by_family],
        "Reference": ["reference/index.md", *modules],
    }
    config.copyright = f"longtail {__version__}, Apache-2.0"
    if REPOSITORY in os.environ:  # the site is built from any checkout; an edit link needs to know where that is kept
        config.repo_url = os.environ[REPOSITORY].rstrip("/")
        config.edit_uri = "edit/main/docs/"
    assert config.nav is not None
    config.nav = [{title: pages.get(title, content) for title, content in entry.items()} for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that exist only in the built site."""
    contents: dict[str, str | bytes] = {
        "methods/index.md": methods.methods_index(),
        "gallery/index.md": gallery.gallery_index(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
    }
    contents |= {f"methods/{method.name}.md": methods.method_page(method) for method in METHODS.values()}
    for example in (one for members in gallery.list_examples().values() for one in members):
        contents[f"gallery/{example.name}.md"] = gallery.example_page(example)
        contents[f"gallery/{example.name}.svg"] = gallery.draw_example(example)
    package = reference.load_package()
    contents["reference/index.md"] = reference.reference_index(package)
    contents |= {
        f"reference/{module.name}.md": reference.reference_page(module)
        for module in reference.public_modules(package)
    }
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables that come from code or from measured rows, and typeset formulas."""
    page.meta["search"] = {"boost": _rank_page(page.file.src_uri)}
    try:
        return typeset.place_fences(tables.fill_alone(markdown))
    except typeset.FormulaError as error:
        raise PluginError(f"{page.file.src_uri}: a formula {error}") from error


def _rank_page(path: str) -> float:
    """How far up a search has the page: answers first, then guides, then what is made from the code."""
    return ANSWERS.get(path, 2.0 if (ROOT / "docs" / path).is_file() else 1.0)


def on_page_content(output: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put formulas and pictures where Markdown can no longer change them; say which file the page is made from."""
    output = pictures.split_schemes(typeset.insert_formulas(output))
    source = ROOT / "docs" / page.file.src_uri
    if source.is_file():
        output += f'<p class="source">This page is <code>docs/{page.file.src_uri}</code>.</p>'
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Stop where a page shows a picture that is not there, or a formula that was left as it was written."""
    problems = pictures.find_problems(Path(config.site_dir))
    if problems:
        raise PluginError("; ".join(problems) + ".")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Search on file:// pages without the network: the theme would fetch a script for it from elsewhere."""
    return output.replace(FOREIGN_SCRIPT, get_relative_url(OWN_SCRIPT, page.url))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which has no place of its own."""
    return output_content.replace(FOREIGN_SCRIPT, f"/{OWN_SCRIPT}")
