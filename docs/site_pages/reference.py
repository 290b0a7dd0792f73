"""Reference pages of the public modules, and what keeps them from being complete."""

from __future__ import annotations

import griffe

from longtail.lab.cli.cards import card_section
from site_pages import ROOT
from site_pages.markdown import one_line, table
from site_pages.methods import linked

PRIVATE_PARTS = frozenset({"lab"})
"""Modules that are no part of the library's programming interface."""


def load_package() -> griffe.Module:
    """The library as its sources say, not imported."""
    package = griffe.load("longtail", search_paths=[ROOT / "src"])
    assert isinstance(package, griffe.Module)
    return package


def public_modules(package: griffe.Module) -> list[griffe.Module]:
    """The modules that make up the programming interface; each has a reference page."""
    modules = [module for name, module in package.modules.items() if name not in PRIVATE_PARTS]
    return sorted((module for module in modules if not module.name.startswith("_")), key=lambda module: module.name)


def undocumented(package: griffe.Module) -> list[str]:
    """What keeps the public names from being documented: each entry names one of them and says what is missing."""
    modules = public_modules(package)
    on_pages = {module.path for module in modules}
    problems = []
    for module in [package, *modules]:
        if module.exports is None:
            problems.append(f"{module.path} has no __all__")
        for name in map(str, module.exports or ()):
            path = f"{module.path}.{name}"
            found = module.members.get(name)
            if found is None:
                problems.append(f"{path} is in __all__ and does not exist")
                continue
            try:
                target = found.final_target if isinstance(found, griffe.Alias) else found
            except griffe.AliasResolutionError:
                problems.append(f"{path} is in __all__ and cannot be found where it is imported from")
                continue
            home = target.path if target.is_module else target.path.rpartition(".")[0]
            if not any(home == page or home.startswith(f"{page}.") for page in on_pages):
                problems.append(f"{path} is on no reference page, for {home} has none")
            problems += [f"{path}{part} has no docstring" for part in _parts_without_docstring(target)]
    return problems


def _parts_without_docstring(target: griffe.Object) -> list[str]:
    """ "" for the object itself, ".name" for a public method or property of a class."""
    parts = [] if target.has_docstring else [""]
    if target.is_class:
        for name, member in target.members.items():
            is_callable = member.is_function or "property" in member.labels
            if is_callable and not name.startswith("_") and not member.has_docstring:
                parts.append(f".{name}")
    return parts


def reference_page(module: griffe.Module) -> str:
    """The page on which mkdocstrings shows a module."""
    return f"# {module.path}\n\n::: {module.path}\n"


def reference_index(package: griffe.Module) -> str:
    """One list of all public names, with what each is."""
    rows = []
    for module in public_modules(package):
        for name in map(str, module.exports or ()):
            found = module.members[name]
            target = found.final_target if isinstance(found, griffe.Alias) else found
            summary = target.docstring.value.partition("\n\n")[0] if target.docstring else ""
            where = f"[`{module.name}`]({module.name}.md)"
            shown = linked(one_line(summary)).replace("](", "](../methods/")
            rows.append([f"[`{name}`][{module.path}.{name}]", where, shown])
    rows.sort(key=lambda row: row[0].lower())
    intro = (
        f"All {len(rows)} public names, by letter. The most used ones can be imported from `longtail` itself, all "
        "others from their module."
    )
    return f"---\nhide: [toc]\n---\n\n# All names\n\n{intro}\n\n{table(['name', 'module', 'what it is'], rows)}\n"


def deviations() -> str:
    """Every Deviates section of the library, by the name it belongs to."""
    package = load_package()
    rows = []
    for module in public_modules(package):
        for name in module.exports or ():
            docstring = module[str(name)].docstring
            text = card_section(docstring.value, "Deviates") if docstring else ""
            if text:
                path = f"{module.path}.{name}"
                shown = linked(text).replace("](", "](methods/")
                rows.append([f"[`{path.removeprefix('longtail.')}`][{path}]", one_line(shown)])
    return table(["where", "what differs, and why"], rows)
