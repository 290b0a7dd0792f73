"""What mkdocs calls to build the site; ``site_pages`` makes its tables. An undocumented public name stops it."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from site_pages import ROOT, methods, reference, tables

from longtail import METHODS

FOREIGN_SCRIPT, OWN_SCRIPT = "https://unpkg.com/iframe-worker/shim", "javascripts/file-worker.js"
"""What the theme loads to search on file:// pages, and what stands in for it."""


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
    pages = {
        "Methods": ["methods/index.md", *by_family],
        "Reference": [f"reference/{module.name}.md" for module in reference.public_modules(package)],
    }
    assert config.nav is not None
    config.nav = [{title: pages.get(title, content) for title, content in entry.items()} for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that exist only in the built site."""
    contents = {"methods/index.md": methods.methods_index(), "changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    contents |= {f"methods/{method.name}.md": methods.method_page(method) for method in METHODS.values()}
    contents |= {
        f"reference/{module.name}.md": reference.reference_page(module)
        for module in reference.public_modules(reference.load_package())
    }
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables that come from code or from measured rows."""
    return tables.fill_alone(markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Search on file:// pages without the network: the theme would fetch a script for it from elsewhere."""
    return output.replace(FOREIGN_SCRIPT, get_relative_url(OWN_SCRIPT, page.url))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which has no place of its own."""
    return output_content.replace(FOREIGN_SCRIPT, f"/{OWN_SCRIPT}")
