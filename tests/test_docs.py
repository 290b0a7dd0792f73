"""The docs are true: code on the pages runs and prints what they say, and undocumented names stop the build."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from itertools import zip_longest
from pathlib import Path
from urllib.parse import unquote

import pytest

from longtail import METHODS
from longtail.lab.cli.cards import card_section, card_sections
from longtail.lab.data.registry import SOURCES
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.recipe import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<file>[\w.]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SECONDS = re.compile(r"^(\w+ .*) +[\d.]+$", re.MULTILINE)


@pytest.fixture(scope="module")
def hooks():
    """docs/hooks.py with its modules, loaded as mkdocs loads it."""
    pytest.importorskip("mkdocs", reason='the docs need pip install "longtail[docs]"')
    from mkdocs.config import load_config

    return load_config(str(ROOT / "mkdocs.yml"))["hooks"]["docs/hooks.py"]


def assert_same_output(printed, shown, slack=0.02):
    """Equal text; numbers may differ as much as other processors make them differ."""
    printed, shown = (" ".join(text.split()) for text in (printed, shown))
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=slack)


def run_python(code, name, namespace, capsys):
    exec(compile(code, name, "exec"), namespace)
    return capsys.readouterr().out


def run_console(text):
    """Run each ``$ longtail ...`` and compare with what is shown below it; nothing shown: it must succeed."""
    from typer.testing import CliRunner

    from longtail.lab.cli.app import app

    for part in re.split(r"^\$ longtail ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "80"})
        if shown.strip() and command.startswith(("train ", "compare ")) and result.exit_code == 0:
            # The last column is seconds, and accuracies of small networks vary between processors by some points.
            assert_same_output(SECONDS.sub(r"\1", result.output), SECONDS.sub(r"\1", shown), slack=4)
        elif shown.strip():
            assert_same_output(result.output, shown)
        else:
            assert result.exit_code == 0, f"longtail {command}: {result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_a_page_prints_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    for block, following in zip_longest(blocks, blocks[1:]):
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
            if block["language"] == "toml":
                check_recipe(load_recipe(Path(block["file"])))
        if block["language"] == "console":
            run_console(block["text"])
        if block["language"] == "python" and not block["file"]:
            printed = run_python(block["text"], page.name, namespace, capsys)
            is_output = (
                following is not None
                and following["language"] == "text"
                and not text[block.end() : following.start()].strip()
            )
            if is_output:
                assert_same_output(printed, following["text"])
            else:
                assert not printed, "a block that prints is followed by a text block with what it prints"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_a_page_has_the_words_of_the_glossary(page):
    counted = r"(one|two|once|labels?|values?|vectors?|numbers?|lines?|images|folder|probability)"
    unit = rf"{counted}\s+an?\s+(sample|class|label|epoch|second|run)\b|samples\s+a\s+(class|second)\b"
    assert not re.search(rf"{unit}|skew|\bgo(es)? on\b", page.read_text())


def test_the_page_about_the_idea_tells_which_methods_are_consistent(hooks):
    text = (ROOT / "docs" / "idea.md").read_text()
    rows = re.findall(r"^\| \[.*?\]\(methods/(\w+)\.md\).*\| (yes|no)[^|]*\|$", text, re.MULTILINE)
    assert len(rows) > 5
    assert dict(rows) == {name: hooks.methods.consistency(METHODS[name]) for name, _ in rows}


class TestReadme:
    text = (ROOT / "README.md").read_text()

    def test_its_numbers_change_with_the_rows(self, hooks, tmp_path):
        from site_pages import readme

        rows = ["recipe,method,seed,balanced_accuracy,head,torso,tail", "clinc150,cross_entropy,0,0.5,0.9,0.4,"]
        rows += ["clinc150,posthoc_adjusted,0,0.75,0.8,0.7,"]
        (tmp_path / "clinc150.csv").write_text("\n".join(rows) + "\n")
        line = readme.real_data_table(tmp_path).splitlines()[-1]
        assert line.endswith("1 seed | 50.0 |  |  | **75.0** |  | +30.0 / −10.0 |")

    def test_its_numbers_of_many_labels_have_rivals(self, hooks, tmp_path):
        from site_pages import readme

        rows = [
            "set,model,seed,P@1",
            'a,"ours, defaults",0,60',
            'a,"ours, defaults",1,62',
            "a,one-vs-rest,0,59",
            "b,one-vs-rest,0,1",
        ]
        (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
        assert readme.extreme_table(tmp_path / "rows.csv").splitlines()[2:] == ["| a | 59.0 |  |  | **61.0** |"]

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_its_picture_is_made_of_the_rows(self, hooks, scheme):
        from site_pages import before_after

        path = before_after.picture_path(scheme)
        assert before_after.describe_rows() in path.read_text(), "make tables"
        assert path.relative_to(ROOT).as_posix() in self.text

    def test_its_badges_are_true(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        badges = [unquote(badge).replace("--", "-") for badge in re.findall(r"/badge/(.*?)-\w+\)", self.text)]
        wanted = {"python": project["requires-python"], "license": project["license"]}
        wanted |= dict(re.match(r"([\w-]+)(>=.*)", line).groups() for line in project["dependencies"])
        named = {"pytorch": "torch"}
        assert len(badges) == 4
        for badge in badges:
            name, _, value = badge.rpartition("-") if "Apache" not in badge else badge.partition("-")
            found = wanted[named.get(name, name)]
            assert found == (f">={value[:-1]}" if value.endswith("+") else value)

    def test_its_links_lead_somewhere(self):
        targets = re.findall(r"\]\(([^)#:]+)(?:#([\w-]+))?\)", self.text)
        assert len(targets) > 20
        for path, anchor in targets:
            assert (ROOT / path).exists(), path
            if anchor:
                headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


class TestTablesInPages:
    @pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
    def test_they_are_those_of_the_rows(self, hooks, page):
        text = page.read_text()
        assert hooks.tables.fill(text) == text, "make tables"

    def test_results_are_on_their_page(self, hooks):
        text = (ROOT / "docs" / "results.md").read_text()
        files = [path.stem for path in (ROOT / "benchmarks" / "results" / "quality").glob("*.csv")]
        assert {name for name in files if f"<!-- compare: {name} -->" not in text} == set()
        assert not re.search(r"^<!-- ([^/>]+) -->$(?!.*^<!-- /\1 -->$)", text, re.MULTILINE | re.DOTALL)

    def test_a_pair_is_filled_and_a_mark_alone_is_for_the_site(self, hooks, monkeypatch):
        tables = {"one": lambda: "| 1 |", "two": lambda: "| 2 |"}
        kinds = {"kind": lambda argument: f"| {argument} |"}
        monkeypatch.setattr(hooks.tables, "TABLES", tables)
        monkeypatch.setattr(hooks.tables, "KINDS", kinds)
        text = "<!-- one -->\nold\n<!-- /one -->\n<!-- two -->\n"
        text += "<!-- kind: a b/c -->\n<!-- /kind: a b/c --> <!-- other -->"
        filled = hooks.tables.fill(text)
        assert filled == (
            "<!-- one -->\n\n| 1 |\n\n<!-- /one -->\n<!-- two -->\n"
            "<!-- kind: a b/c -->\n\n| a b/c |\n\n<!-- /kind: a b/c --> <!-- other -->"
        )
        assert hooks.tables.fill(filled) == filled
        assert hooks.tables.fill_alone(filled) == filled.replace("<!-- two -->", "| 2 |")

    def test_rows_of_a_paper_become_its_tables(self, hooks, tmp_path):
        folder = tmp_path / "logit_adjustment"
        assert "longtail reproduce logit-adjustment --data" in hooks.tables.papers.paper_tables(folder)
        folder.mkdir()
        rows = ["recipe,table,row,seed,quantity,value,paper,note,protocol"]
        rows += [
            f"r,Table 2,{name},0,balanced_error,{value},{paper},,p"
            for name, value, paper in (("ERM", 30, 27.16), ("B", 20, ""))
        ]
        (folder / "r.csv").write_text("\n".join(rows) + "\n")
        (folder / "r_points.csv").write_text("recipe\n")
        shown = hooks.tables.papers.paper_tables(folder)
        assert shown.startswith("### `r`\n")
        assert shown.count("### ") == 1
        assert "| ERM | 27.16 | 30.00 | +2.84 | 1 seed |" in shown

    def test_headings_of_a_paper_say_in_what_a_recipe_was_changed(self, hooks):
        describe = hooks.tables.papers.describe_rows
        assert describe("cifar10_lt_fast") == "CIFAR-10-LT (`cifar10_lt_fast`)"
        name = "cifar100_lt_fast_ratio10_20epochs+weight_decay-1e-4"
        assert describe(name) == f"CIFAR-100-LT, ratio 10, 20 epochs, weight decay 1e-4 (`{name}`)"

    def test_findings_follow_the_tables_of_their_rows(self, hooks, tmp_path):
        folder = tmp_path / "sampling_bias"
        folder.mkdir()
        rows = ["recipe,table,row,seed,quantity,value,paper,note,protocol"]
        table = hooks.tables.papers.sampled_training.SOFTMAX
        rows += [
            f"r,{table},{name},0,tail_error,{value},,,p"
            for name, value in (("logit adjustment", 80), ("cross-entropy", 96))
        ]
        (folder / "r.csv").write_text("\n".join(rows) + "\n")
        shown = hooks.tables.papers.paper_tables(folder)
        assert "| Logit adjustment beats cross-entropy on the tail | tail error | -16.00 | 1 of 1 | yes |" in shown

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_picture_of_the_results_is_made_of_the_rows(self, hooks, scheme):
        from site_pages import overview

        path = overview.picture_path(scheme)
        assert overview.describe(overview.collect_errors()) in path.read_text(), "make tables"
        assert f"pictures/{path.name}" in (ROOT / "docs" / "results.md").read_text()

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_picture_of_recommendation_is_made_of_the_rows(self, hooks, scheme):
        from site_pages import recommendation

        path = recommendation.picture_path(scheme)
        assert recommendation.describe(recommendation.collect_points()) in path.read_text(), "make tables"
        assert f"pictures/{path.name}" in (ROOT / "docs" / "recommendation.md").read_text()

    def test_recorded_rows_are_drawn_before_those_of_comparisons(self, hooks, tmp_path):
        from site_pages import overview

        header = "recipe,method,seed,balanced_accuracy"
        methods = ("cross_entropy", "posthoc_adjusted", "logit_adjusted")
        (tmp_path / "digits.csv").write_text("\n".join([header, *(f"digits,{name},0,0.5" for name in methods)]))
        assert overview.collect_errors(tmp_path)["digits"]["cross_entropy"].mean == 50.0
        (tmp_path / "logit_adjustment").mkdir()
        rows = ["recipe,table,row,seed,quantity,value,paper,note,protocol"]
        names = ("ERM", "Post-hoc adjustment (tau = 1)", "Logit-adjusted loss")
        rows += [f"digits,Table 2,{name},0,balanced_error,{20 + place},,," for place, name in enumerate(names)]
        (tmp_path / "logit_adjustment" / "digits.csv").write_text("\n".join(rows))
        found = overview.collect_errors(tmp_path)["digits"]
        assert [round(value.mean, 9) for value in found.values()] == [20.0, 21.0, 22.0]


def test_the_demo_in_the_readme_agrees_with_the_comparison_in_the_docs():
    rows = [
        {
            line.split()[0]: line.split()[1:-1]
            for line in page.read_text().splitlines()
            if re.match(r"\w+ .*±.* [\d.]+$", line)
        }
        for page in (ROOT / "README.md", ROOT / "docs" / "comparing.md")
    ]
    assert len(rows[1]) == 3
    assert rows[1].items() <= rows[0].items()


def test_the_example_gains_what_the_readme_says():
    # One thread: steps this small are much slower on two where other programs keep a core busy.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "plain_pytorch.py")]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    plain, adjusted = map(float, re.findall(r"accuracy ([\d.]+)%", printed))
    assert adjusted > plain + 3
    readme = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(r"three rarest digits from (\d+) % to (\d+) %", readme)
    rarest = [float(share) for share in re.findall(r"digits ([\d.]+)%", printed)]
    assert rarest == pytest.approx([float(share) for share in said.groups()], abs=4)


class TestHooks:
    def test_the_library_is_documented(self, hooks):
        assert hooks.reference.undocumented(hooks.reference.load_package()) == []

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("__all__ = ['f']\ndef f(): ...", "fake.part.f has no docstring"),
            ("__all__ = ['f']", "fake.part.f is in __all__ and does not exist"),
            ("__all__ = ['A']\nclass A:\n  'Doc.'\n  def m(self): ...", "fake.part.A.m has no docstring"),
            (
                "__all__ = ['A']\nclass A:\n  'Doc.'\n  @property\n  def p(self): ...",
                "fake.part.A.p has no docstring",
            ),
            ("__all__ = ['LIMIT']\nLIMIT = 3", "fake.part.LIMIT has no docstring"),
            ("def f(): ...", "fake.part has no __all__"),
            ("from fake._private import f\n__all__ = ['f']", "fake.part.f is on no reference page"),
            ("from fake.gone import f\n__all__ = ['f']", "fake.part.f is in __all__ and cannot be found"),
        ],
    )
    def test_an_undocumented_name_is_a_problem(self, hooks, source, problem):
        files = {"__init__.py": "__all__ = []", "part.py": source, "_private.py": "def f():\n  'Doc.'"}
        import griffe

        with griffe.temporary_visited_package("fake", modules=files) as package:
            problems = hooks.reference.undocumented(package)
        assert any(found.startswith(problem) for found in problems), problems

    def test_a_documented_package_has_no_problems(self, hooks):
        import griffe

        part = "__all__ = ['A', 'f']\nclass A:\n  'Doc.'\n  def _m(self): ...\ndef f():\n  'Doc.'"
        files = {"__init__.py": "from fake.part import f\n__all__ = ['f']", "part.py": part, "_private.py": "x = 1"}
        with griffe.temporary_visited_package("fake", modules=files) as package:
            assert hooks.reference.undocumented(package) == []

    def test_a_picture_follows_the_scheme_of_the_page(self, hooks):
        text = (ROOT / "docs" / "results.md").read_text()
        shown = hooks.pictures.split_schemes(text)
        assert "<picture>" in text
        assert "<picture>" not in shown
        assert re.findall(r'class="picture (only-\w+)" alt="Balanced [^"]+" src="pictures/(\w+)', shown) == [
            ("only-light", "results_light"),
            ("only-dark", "results_dark"),
        ]

    def test_a_search_finds_answers_before_guides_before_code(self, hooks):
        ranks = [hooks._rank_page(path) for path in ("faq.md", "posthoc.md", "reference/losses.md")]
        assert ranks == sorted(ranks, reverse=True)
        assert len(set(ranks)) == 3
        assert all((ROOT / "docs" / path).is_file() for path in hooks.ANSWERS)

    @pytest.mark.parametrize(("scheme", "page"), [("default", "#ffffff"), ("slate", "#1e2129")])
    def test_colors_of_the_site_can_be_read(self, contrast, scheme, page):
        css = (ROOT / "docs" / "stylesheets" / "extra.css").read_text()
        block = re.search(rf'\[data-md-color-scheme="{scheme}"\] {{(.*?)}}', css, re.DOTALL).group(1)
        colors = dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        assert {"md-typeset-a-color", "md-default-fg-color--light", "md-code-hl-comment-color"} <= colors.keys()
        for name, color in colors.items():
            least = 3 if name in ("frequent", "rare") else 4.5  # lines of pictures, and text
            assert contrast(color, page) >= least, name

    def test_the_build_stops_at_an_undocumented_name(self, hooks, monkeypatch):
        from mkdocs.config.defaults import MkDocsConfig
        from mkdocs.exceptions import PluginError

        monkeypatch.setattr(hooks.reference, "undocumented", lambda package: ["longtail.f has no docstring"])
        with pytest.raises(PluginError, match=r"longtail\.f has no docstring"):
            hooks.on_config(MkDocsConfig())

    def test_sections_of_a_card(self, hooks):
        card = """What it is.

        Formula:
            a[y] = 1
              + 2

        Args:
            x: one
                and more.
            y: two.
        Use when:
            Always.

        Some prose: with a colon.

        >>> 1 + 1
        2

        >>> 2
        2

        Deviates:
            In nothing.
        """
        sections = card_sections(card)
        assert [section.title for section in sections] == [
            "", "Formula", "Args", "Use when", "", "Example", "Deviates",
        ]  # fmt: skip
        assert sections[1].text == "a[y] = 1\n  + 2"
        assert hooks.methods.arguments(sections[2].text) == [("x", "one and more."), ("y", "two.")]
        assert sections[4].text == "Some prose: with a colon."
        assert sections[5].text == ">>> 1 + 1\n2\n\n>>> 2\n2"
        assert card_section(card, "Deviates") == "In nothing."
        assert card_section(card, "Reference") == ""

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_a_method_page_has_the_whole_card_and_its_code_runs(self, hooks, method, capsys):
        page = hooks.methods.method_page(method)
        for section in card_sections(method.card.__doc__):
            if section.title == "Formula":
                assert 'class="formula"' in hooks.typeset.insert_formulas(page)
            else:
                assert section.text.split()[-1].strip("`.") in page
        shown = hooks.typeset.insert_formulas(page)
        assert '<svg class="margins"' in shown
        assert "## Measured" in shown
        for block in BLOCK.finditer(page):
            if block["language"] == "python":
                assert not run_python(block["text"], method.name, {}, capsys)

    def test_every_method_is_in_the_table(self, hooks):
        index = hooks.methods.methods_index()
        assert all(f"({name}.md)" in index for name in METHODS)

    def test_method_names_become_links_but_not_on_their_own_page(self, hooks):
        text = "``adaptive`` and ``effective_number``, not ``tau``; :meth:`smoothed`"
        assert hooks.methods.linked(text, "adaptive") == (
            "`adaptive` and [`effective_number`](class_balanced.md), not `tau`; `smoothed`"
        )

    def test_benchmark_rows_become_tables(self, hooks, tmp_path):
        assert "make bench" in hooks.tables.speed.benchmark_tables(tmp_path)
        rows = ["size,method,ratio,torch", "1 x 2,a,1.0,2.13", "1 x 2,b,1.256,2.13", "3 x 4,a,1.0,2.13"]
        (tmp_path / "many_sizes.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / "one_size.csv").write_text("size,method,ratio,peak\n9,a,1.0,7.5\n9,b,2.0,8.5\n")
        shown = hooks.tables.speed.benchmark_tables(tmp_path)
        assert "torch 2.13" in shown
        assert "| `b` | 1.26 |  |" in shown
        assert "| b | 2.0 | 8.5 |" in shown

    def test_rows_of_comparisons_become_tables(self, hooks, tmp_path):
        header = "recipe,method,seed,accuracy,balanced_accuracy,head,torso,tail,calibration_error,seconds"
        one_seed = ["cifar10_lt_fast,cross_entropy,0,0.7,0.7,0.9,,0.25,0.1,900.4"]
        two_seeds = [f"digits,logit_adjusted,{seed},0.8,{0.8 + seed / 100},1,1,0.5,0.1,1.25" for seed in (0, 1)]
        for stem, rows in (("cifar10_lt_fast", one_seed), ("digits", two_seeds)):
            (tmp_path / f"{stem}.csv").write_text("\n".join([header, *rows]) + "\n")
        shown = [
            hooks.tables.comparisons.comparison_table(tmp_path / f"{stem}.csv")
            for stem in ("cifar10_lt_fast", "digits")
        ]
        assert "| 30.00 (1 seed) | 90.0 |  | 25.0 | 900 |" in shown[0]
        assert (
            "| 19.50 ± 6.35 (2 seeds) | 100.0 | 100.0 | 50.0 | 1.2 |" in shown[1]
        )  # t(0.975, 1) = 12.706, times 0.5
        assert "longtail compare digits --seeds 2 \\\n    --methods logit_adjusted\n" in shown[1]
        assert "no rows yet" in hooks.tables.comparisons.comparison_table(tmp_path / "clinc150.csv")

    def test_rows_of_two_recipes_do_not_mix(self, hooks, tmp_path):
        from mkdocs.exceptions import PluginError

        (tmp_path / "digits.csv").write_text("recipe,method,balanced_accuracy,seconds\na,m,1,1\nb,m,1,1\n")
        with pytest.raises(PluginError, match="one recipe"):
            hooks.tables.comparisons.comparison_table(tmp_path / "digits.csv")

    def test_tables_of_the_lab_name_what_the_code_knows(self, hooks):
        shown = hooks.tables.lab.sources_table()
        assert all(f"| `{name}` |" in shown for name in SOURCES)
        assert "*Files:* its folder cifar-10-batches-bin (or" in shown
        assert "*Files:* tiny_imagenet_lt/features_pca256.npz." in shown
        assert "5000, 2997, 1796" in hooks.tables.lab.profiles_table()
        options = "*Options:* `width=16`, `branches=1`, `final_norm=False`. | 464,154 |"
        assert options in hooks.tables.lab.models_table()
        assert "| `digits` | Long-tailed handwritten digits" in hooks.tables.lab.recipes_table()
        assert "| `milestones` | `[0.8, 0.9]` | Of" in hooks.tables.lab.settings_tables()
        assert "| 0.04 | 1.00 | 0.75 | 0.25 | 0.00 |" in hooks.tables.lab.schedules_table()
        assert "| `adamw` | Adam" in hooks.tables.lab.optimizers_table()
        assert "[longtail.sampling.RepeatFactorSampler]" in hooks.tables.lab.samplers_table()

    def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(self, hooks, tmp_path):
        # Not --quiet: it hides warnings from --strict too.
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
        assert {f"methods/{name}.html" for name in METHODS} <= pages.keys()
        assert 'id="longtail.posthoc.tune_tau"' in pages["reference/posthoc.html"]
        examples = [path.stem for path in (ROOT / "examples" / "gallery").glob("*.py")]
        assert len(examples) >= 20
        assert all(
            f"gallery/{name}.html" in pages and (tmp_path / "gallery" / f"{name}.svg").is_file() for name in examples
        )
        assert 'class="katex"' in pages["idea.html"]
        assert "longtail 0." in pages["index.html"]
        assert "docs/idea.md" in pages["idea.html"]
        foreign = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=\"?https?:")
        assert [name for name, html in pages.items() if foreign.search(html)] == []


class TestTypesetting:
    @pytest.mark.parametrize(
        ("text", "tex"),
        [
            ("tau * log(pi[y'] / pi[y])", r"\tau \,\log (\pi _{y'}/\pi _{y})"),
            ("pi[y]^(-1/4)", r"\pi _{y}^{-1/4}"),
            ("beta^n[y]", r"\beta ^{n_{y}}"),
            ("sum_{y' != y} exp(f[y'])", r"\sum_{y'\neq y} \exp (f_{y'})"),
            ("||x - x+||^2", r"\lVert x-x^{+}\rVert ^{2}"),
            ("[1 - f[y]]_+", r"[1-f_{y}]_+"),
            ("pi_target[y]", r"\pi ^{\text{target}} _{y}"),
        ],
    )
    def test_names_of_the_code_become_latex(self, hooks, text, tex):
        assert hooks.typeset.translate(text) == tex

    def test_words_stay_words(self, hooks):
        parts = list(hooks.typeset.split_words("l = p^2, where p is the probability of the true label"))
        assert parts == [
            ("l=p^{2}", True),
            (",", False),
            ("where", False),
            ("p", True),
            ("is the probability of the true label", False),
        ]

    def test_a_formula_that_cannot_be_typeset_stops_the_build(self, hooks):
        from mkdocs.exceptions import PluginError

        page = types.SimpleNamespace(meta={}, file=types.SimpleNamespace(src_uri="idea.md"))
        with pytest.raises(PluginError, match=r"idea\.md: a formula cannot be typeset.*frca"):
            hooks.on_page_markdown("```math\n\\frca{1}{2}\n```", page, None, None)
        with pytest.raises(hooks.typeset.FormulaError, match="closing"):
            hooks.typeset.translate("log(1 + x")

    def test_every_formula_of_the_library_is_typeset(self, hooks):
        package = hooks.reference.load_package()
        cards = [module[str(name)] for module in hooks.reference.public_modules(package) for name in module.exports]
        formulas = [card_section(card.docstring.value, "Formula") for card in cards if card.docstring]
        found = [formula for formula in formulas if formula]
        assert len(found) > 60
        shown = [hooks.typeset.insert_formulas(hooks.typeset.place_formula(formula)) for formula in found]
        assert sum('class="katex"' in html for html in shown) > 0.9 * len(found)  # some are sentences
        assert not any("placeholder" in html for html in shown)


class TestGallery:
    def write(self, folder, code):
        path = folder / "example.py"
        path.write_text(f'"""Title\n\nText.\n"""\n\nimport matplotlib.pyplot as plt\n\n{code}\n')
        return path

    def test_a_script_becomes_a_picture_and_a_page(self, hooks, tmp_path, monkeypatch):
        monkeypatch.setattr(hooks.gallery, "ROOT", tmp_path)
        path = self.write(tmp_path, "plt.plot([1, 2])")
        assert b"<svg" in hooks.gallery.run_script(path)
        page = hooks.gallery.example_page(hooks.gallery.Example(path))
        assert page.startswith("# Title\n\nText.")
        assert 'src="example.svg"' in page
        assert "plt.plot([1, 2])" in page
        assert '"""' not in page

    @pytest.mark.parametrize(
        ("code", "problem"),
        [("1 / 0", "ZeroDivisionError"), ("plt.figure()", "draws nothing"), ("plt.plot([]).x", "AttributeError")],
    )
    def test_a_script_that_fails_or_draws_nothing_stops_the_build(self, hooks, tmp_path, monkeypatch, code, problem):
        monkeypatch.setattr(hooks.gallery, "ROOT", tmp_path)
        with pytest.raises(hooks.gallery.GalleryError, match=rf"example\.py fails: .*{problem}"):
            hooks.gallery.run_script(self.write(tmp_path, code))

    def test_a_script_that_no_section_has_stops_the_build(self, hooks, monkeypatch):
        monkeypatch.setattr(hooks.gallery, "SECTIONS", {"First": ("prior", "gone")})
        with pytest.raises(hooks.gallery.GalleryError, match=r"differ in: .*gone"):
            hooks.gallery.list_examples()

    def test_a_missing_thumbnail_and_a_raw_formula_are_problems(self, hooks, tmp_path):
        (tmp_path / "there.svg").touch()
        (tmp_path / "page.html").write_text('<img src="there.svg"><img class="a" src="gone.svg"><p>$$x$$</p>')
        found = hooks.pictures.find_problems(tmp_path)
        assert found == [
            "page.html shows gone.svg, which does not exist",
            "page.html has a formula that is not typeset",
        ]


def test_a_method_page_has_what_was_measured(hooks, tmp_path):
    from site_pages.method_figures import find_margins, show_results

    header = "recipe,method,seed,balanced_accuracy"
    (tmp_path / "digits.csv").write_text(f"{header}\ndigits,cross_entropy,0,0.5\ndigits,adaptive,0,0.625\n")
    assert "| `digits` | balanced accuracy | 62.5 | 50.0 | 1 |" in show_results(METHODS["adaptive"], tmp_path)
    assert "no committed rows" in show_results(METHODS["equalized"], tmp_path)
    assert float(find_margins(METHODS["logit_adjusted"]).dense()[-1, 0]) == pytest.approx(4.605, abs=1e-3)
    assert find_margins(METHODS["focal"]) is None


TABLE_1 = {
    # long tail, logit margin, embedding loss, embedding margin
    "cross_entropy": (False, False, False, False),
    "logit_adjusted": (True, True, False, False),
    "adaptive": (True, True, False, False),
    "elm": (True, True, True, True),
    "dro_lt": (True, False, True, True),
    "center_loss": (False, False, True, False),
    "spread_out": (False, False, True, False),
    "range_loss": (False, False, True, True),  # the paper: made for the long tail
    "supervised_contrastive": (False, False, True, False),
    "triplet": (False, False, True, True),
    "hybrid": (False, False, False, False),  # the paper: a loss of embeddings
}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_table_of_margins_is_the_paper_s_but_for_what_the_page_says(hooks, name):
    assert hooks.methods.kinds_of_terms(METHODS[name]) == TABLE_1[name]
    assert f"| [`{name}`](methods/{name}.md) |" in hooks.methods.margins_table()


def test_rows_with_distances_become_a_table(hooks, tmp_path):
    places = [f"{split}_{group}" for split in ("train", "test") for group in ("head", "tail")]
    names = [f"{place}_{measure}" for place in places for measure in ("raw", "by_norm", "by_class_means")]
    header = ["recipe", "method", "seed", "balanced_accuracy", "seconds", *names]
    first = ["digits_elm", "elm", "0", "0.9", "1.0", *(["1.0"] * len(names))]
    second = ["digits_elm", "elm", "1", "0.9", "1.0", *(["3.0"] * len(names))]
    (tmp_path / "digits_elm.csv").write_text("\n".join(",".join(row) for row in (header, first, second)) + "\n")
    (tmp_path / "other.csv").write_text("recipe,method\ndigits,elm\n")
    shown = hooks.tables.comparisons.compactness_tables(tmp_path)
    assert shown.count("###") == 1
    assert shown.count("2.00 / 2.00 / 2.00") == len(places)
    assert "10.00" in shown
