"""Tables on pages, from code and from committed rows.

``<!-- NAME -->`` alone is filled in when the site is built. Between it and ``<!-- /NAME -->`` the table stands in the
file itself, where it can be read without a site; it is written there by

python -m site_pages.tables    # in docs/; ``make tables`` does it, and the pictures too

A name is one of TABLES, or ``KIND: ARGUMENT`` with a kind of KINDS: ``<!-- compare: digits -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from site_pages import (
    ROOT,
    comparisons,
    experiments,
    ingredients,
    lab,
    methods,
    papers,
    readme,
    recommendation,
    reference,
    speed,
    tabular,
)

RESULTS = ROOT / "benchmarks" / "results"
QUALITY, LABELS, RETRIEVAL = RESULTS / "quality", RESULTS / "quality" / "labels", RESULTS / "retrieval"
PAIR = re.compile(r"<!-- (?P<name>[\w-]+(?:: [^>]+?)?) -->.*?<!-- /(?P=name) -->", re.DOTALL)
ALONE = re.compile(r"<!-- (?P<name>[\w-]+(?:: [^>]+?)?) -->")

TABLES: Mapping[str, Callable[[], str]] = {
    "commands": lab.commands,
    "settings": lab.settings_tables,
    "recipes": lab.recipes_table,
    "sources": lab.sources_table,
    "profiles": lab.profiles_table,
    "models": lab.models_table,
    "optimizers": lab.optimizers_table,
    "schedules": lab.schedules_table,
    "samplers": lab.samplers_table,
    "deviations": reference.deviations,
    "embedding-margins": methods.margins_table,
    "benchmarks": lambda: speed.benchmark_tables(RESULTS),
    "compactness": lambda: comparisons.compactness_tables(QUALITY),
    "extreme-sets": lambda: experiments.extreme_tables(RESULTS / "extreme" / "sets.csv"),
    "extreme-held-out": lambda: experiments.held_out_table(RESULTS / "extreme" / "held_out.csv"),
    "extreme-index": lambda: experiments.index_table(RESULTS / "extreme_index.csv"),
    "sharded": lambda: experiments.sharded_table(RESULTS / "sharded.csv"),
    "sharded-needs": lambda: experiments.sharded_needs(RESULTS / "sharded.csv"),
    "extreme-stream": lambda: experiments.stream_table(RESULTS / "extreme_stream.csv"),
    "delicious": lambda: experiments.slices_table(RETRIEVAL / "delicious.csv"),
    "tiny_imagenet_lt_features": lambda: experiments.slices_table(RETRIEVAL / "tiny_imagenet_lt_features.csv"),
    "gowalla": lambda: experiments.recommendation_table(RETRIEVAL / "gowalla.csv"),
    "sequence-optimizers": recommendation.optimizers_table,
    "masking": lambda: experiments.masking_table(LABELS / "plm_multimnist.csv"),
    "masking-digits": lambda: experiments.masking_table(LABELS / "plm_digits.csv"),
    "masking-settings": lambda: experiments.masking_settings_table(LABELS / "plm_digits.csv"),
    "reuters": lambda: experiments.label_losses_table(LABELS / "reuters90.csv"),
    "processes": lambda: experiments.processes_table(RESULTS / "processes" / "steps.csv"),
    "corrections": lambda: tabular.correction_tables(RESULTS / "tabular" / "rows.csv"),
    "coverage": lambda: tabular.coverage_tables(RESULTS / "conformal"),
    "strong": lambda: ingredients.published_table(QUALITY / "ingredients"),
    "conformal-peers": lambda: tabular.peers_table(RESULTS / "conformal_peers.csv"),
    "strong-recipes": lambda: ingredients.strong_sentence(QUALITY / "ingredients"),
    "gain": readme.gain_sentence,
    "real-data": readme.real_data_table,
    "extreme-data": readme.extreme_table,
}
"""Name -> what stands in its place."""

KINDS: Mapping[str, Callable[[str], str]] = {
    "compare": lambda name: comparisons.comparison_table(QUALITY / f"{name}.csv"),
    "ingredients": lambda name: ingredients.ingredients_table(QUALITY / "ingredients" / f"{name}.csv"),
    "sequences": recommendation.trade_off_table,
    "paper": lambda name: papers.paper_tables(QUALITY / name),
}
"""Kind -> what stands in the place of ``KIND: ARGUMENT``."""


def make_table(name: str) -> str:
    """The table of this name."""
    kind, separator, argument = name.partition(": ")
    return KINDS[kind](argument) if separator else TABLES[name]()


def fill(text: str) -> str:
    """A page with the tables between its pairs of marks."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n\n{make_table(name)}\n\n<!-- /{name} -->"

    return PAIR.sub(replace, text)


def fill_alone(text: str) -> str:
    """A page with tables in place of the marks that have no end: for the site."""
    paired = {match["name"] for match in PAIR.finditer(text)}

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        is_table = name in TABLES or name.partition(": ")[0] in KINDS
        return make_table(name) if is_table and name not in paired else match[0]

    return ALONE.sub(replace, text)


def list_pages() -> list[Path]:
    """Pages that tables are written into."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Write the tables into all pages, and draw the pictures of the results."""
    from site_pages import before_after, overview

    for path in list_pages():
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            path.write_text(filled)
            print(f"Wrote {path.relative_to(ROOT)}.")
    overview.main()
    before_after.main()
    recommendation.main()


if __name__ == "__main__":
    main()
