"""Pages and tables of the named methods, from the rows of METHODS and their cards."""

from __future__ import annotations

import inspect
import re
from typing import Any

from torch import Tensor

from longtail import METHODS, ClassPrior, Method
from longtail.lab.cli.cards import Section, card_section, card_sections
from longtail.methods import Phase
from site_pages.markdown import admonition, fenced, one_line, table
from site_pages.method_figures import show_margins, show_results
from site_pages.papers_links import link_papers
from site_pages.typeset import place_formula

EXAMPLE_COUNTS = (500, 50, 5)
"""Samples per class where a method page shows numbers and where consistency is asked for."""


def methods_table(folder: str) -> str:
    """One line for every row of METHODS, with links to the method pages in ``folder``."""
    header = ["method", "family", "consistent", "what it is", "options"]
    return table(
        header,
        [
            [
                f"[`{method.name}`]({folder}{method.name}.md)",
                method.family,
                consistency(method),
                method.summary.replace("``", "`"),
                ", ".join(f"`{name}={default!r}`" for name, default in method.options.items()),
            ]
            for method in METHODS.values()
        ],
    )


def consistency(method: Method) -> str:
    """Whether the method is Fisher consistent for the balanced error with its default options."""
    answer = method.is_consistent(ClassPrior.from_counts(EXAMPLE_COUNTS))
    return {True: "yes", False: "no", None: "not known"}[answer]


def margins_table(folder: str = "methods/") -> str:
    """Which terms have a margin, for the methods that are a loss of logits, of embeddings, or of both."""
    header = ["method", "long tail?", "logit margin?", "embedding loss?", "embedding margin?"]
    methods = [method for family in ("margin", "embedding") for method in families()[family]]
    return table(
        header,
        [
            [
                f"[`{method.name}`]({folder}{method.name}.md)",
                *("✓" if kept else "×" for kept in kinds_of_terms(method)),
            ]
            for method in methods
        ],
    )


def kinds_of_terms(method: Method) -> tuple[bool, bool, bool, bool]:
    """Whether class counts change it, its logits have a margin, and it has a loss, and a margin, on embeddings."""
    skewed = method.plan(ClassPrior.from_counts(EXAMPLE_COUNTS)).phases[0]
    uniform = method.plan(ClassPrior.from_counts([1] * len(EXAMPLE_COUNTS))).phases[0]
    return (
        _numbers(skewed) != _numbers(uniform),
        "positive" in skewed.loss.state_dict(),
        skewed.regularizer is not None,
        hasattr(skewed.regularizer, "margin"),
    )


def _numbers(phase: Phase) -> list[list[float]]:
    """What a phase's loss and regularizer were built with."""
    modules = [module for module in (phase.loss, phase.regularizer) if module is not None]
    return [value.tolist() for module in modules for value in module.state_dict().values()]


def families() -> dict[str, list[Method]]:
    """The methods by family, in the order of the table."""
    groups: dict[str, list[Method]] = {}
    for method in METHODS.values():
        groups.setdefault(method.family, []).append(method)
    return groups


def methods_index() -> str:
    """The page that lists all methods, with their formulas by family."""
    parts = [
        "---\nhide: [toc]\n---",
        "# Methods",
        "Every named method of the library, from its table `longtail.METHODS`; its page shows the method card, which "
        "is the function's docstring. *Consistent* means Fisher consistent for the balanced error with the default "
        "options, by [Theorem 1 and Lemma 2](../idea.md#consistency). *Not known* means that they do not cover it.",
        methods_table(folder=""),
        "## Formulas",
    ]
    for family, methods in families().items():
        formulas = {method.name: one_line(_formula(method)) for method in methods}
        rows = [[f"[`{name}`]({name}.md)", place_formula(formula)] for name, formula in formulas.items() if formula]
        if rows:
            parts += [f"### {family.capitalize()}", table(["method", "formula"], rows)]
    return "\n\n".join(parts) + "\n"


def _formula(method: Method) -> str:
    return card_section(method.card.__doc__ or "", "Formula")


def method_page(method: Method) -> str:
    """The page of one method: how to call it, its card, and what it does to three classes."""
    sections = card_sections(method.card.__doc__ or "")
    parts = [
        f"# {method.name}",
        linked(method.summary, method.name),
        table(
            ["family", "consistent for the balanced error", "function"],
            [[method.family, consistency(method), f"[`{_path(method.card)}`][{_path(method.card)}]"]],
        ),
        fenced(usage(method), "python"),
    ]
    parts += [_section_markdown(section, method) for section in sections[1:]]
    parts += ["## Margins", show_margins(method)]
    if method.family in ("margin", "weight"):
        parts += ["## In numbers", _in_numbers(method)]
    parts += ["## Measured", show_results(method)]
    return "\n\n".join(parts) + "\n"


def _section_markdown(section: Section, method: Method) -> str:
    text = linked(section.text, method.name)
    match section.title:
        case "":
            return text
        case "Formula":
            return f"## Formula\n\n{place_formula(section.text)}"
        case "Example":
            return f"## Example\n\n{fenced(section.text, 'pycon')}"
        case "Reference":
            return f"## Reference\n\n{link_papers(text)}"
        case "Args":
            return f"## Arguments\n\n{_arguments_table(text, method.card)}"
        case "Use when":
            return admonition("success", section.title, text)
        case "Avoid when":
            return admonition("warning", section.title, text)
        case "Deviates":
            return f"## Deviates from the paper\n\n{text}"
        case _:
            return f"## {section.title}\n\n{text}"


def linked(text: str, page: str = "") -> str:
    """Markdown of a docstring's text: a method's name in double backticks becomes a link, but on its own page."""
    text = re.sub(r":\w+:`([^`]+)`", r"``\1``", text)
    page_of = {method.card.__name__: method.name for method in reversed([*METHODS.values()])} | {
        n: n for n in METHODS
    }

    def link(match: re.Match[str]) -> str:
        target = page_of.get(match[1].removeprefix("margins.").removeprefix("weights."))
        return f"`{match[1]}`" if target in (None, page) else f"[`{match[1]}`]({target}.md)"

    return re.sub(r"``([^`]+)``", link, text)


def _arguments_table(text: str, function: Any) -> str:
    parameters = inspect.signature(function).parameters
    rows = []
    for name, meaning in arguments(text):
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        rows.append([f"`{name}`", "" if default is inspect.Parameter.empty else f"`{default!r}`", meaning])
    return table(["argument", "default", "meaning"], rows)


def arguments(text: str) -> list[tuple[str, str]]:
    """Names and meanings from the text of an Args section."""
    items = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    pairs = (item.partition(":") for item in items if item.strip())
    return [(name.strip(), one_line(meaning)) for name, _, meaning in pairs]


def usage(method: Method) -> str:
    """Code that makes the method's loss, or applies it to a trained model."""
    options = "".join(f", {name}={default!r}" for name, default in method.options.items())
    prior = f"prior = ClassPrior.from_counts({list(EXAMPLE_COUNTS)})"
    if method.family in ("margin", "weight"):
        part, keyword = ("margins", "") if method.family == "margin" else ("weights", "class_weights=")
        call = f"loss = MarginCrossEntropy({keyword}{part}.{method.card.__name__}(prior{options}))"
        return f"from longtail import ClassPrior, MarginCrossEntropy, {part}\n\n{prior}\n{call}"
    plan = method.plan(ClassPrior.from_counts(EXAMPLE_COUNTS))
    if method.is_posthoc:
        what, shape = ("logits", "8, 3") if plan.adjust_logits is not None else ("weight", "3, 16")
        module, _, function = _path(method.card).rpartition(".")
        return (
            f"import torch\n\nfrom longtail import ClassPrior\nfrom {module} import {function}\n\n"
            f"{prior}\n{what} = torch.randn({shape})  # of your trained model\n"
            f"{what} = {function}({what}, prior{options})"
        )
    result = "loss" if len(plan.phases) == 1 else "phases"
    call = f'{result} = get_method("{method.name}").plan(prior{options}).{result}'
    return f"from longtail import ClassPrior, get_method\n\n{prior}\n{call}"


def _path(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _in_numbers(method: Method) -> str:
    """Delta and alpha for three classes."""
    prior = ClassPrior.from_counts(EXAMPLE_COUNTS)
    names = [f"{count} samples" for count in EXAMPLE_COUNTS]
    plan = method.plan(prior)
    parts = []
    if plan.margins is not None:
        dense = plan.margins.dense()
        header = ["true class", *(f"against {name}" for name in names)]
        rows = [[name, *_signed(row, skip=index)] for index, (name, row) in enumerate(zip(names, dense, strict=True))]
        parts += [
            "Delta[y, y'], how far the true class's logit must lead, with the default options:",
            table(header, rows),
        ]
    if plan.class_weights is not None:
        alpha = [f"{value:.3g}" for value in plan.class_weights.tolist()]
        parts += ["alpha[y], how much a sample counts, with the default options:", table(names, [alpha])]
    return "\n\n".join(parts)


def _signed(row: Tensor, skip: int) -> list[str]:
    return ["" if index == skip else f"{value:+.2f}".replace("-", "−") for index, value in enumerate(row.tolist())]
