"""The docs are true: code on the pages runs and prints what they say, and undocumented names stop the build."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from longtail import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def hooks():
    """docs/hooks.py, which mkdocs and mkdocstrings load by its path too."""
    pytest.importorskip("mkdocs", reason='the docs need pip install "longtail[docs]"')
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up annotations
    spec.loader.exec_module(module)
    return module


def assert_same_output(printed, shown):
    """Equal text; numbers may differ as much as other processors make them differ."""
    printed, shown = (" ".join(text.split()) for text in (printed, shown))
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.02)


def run_python(code, name, namespace, capsys):
    exec(compile(code, name, "exec"), namespace)
    return capsys.readouterr().out


def run_console(text):
    """Run each ``$ longtail ...`` and compare with what is shown below it; nothing shown: it must succeed."""
    from typer.testing import CliRunner

    from longtail.lab.commands import app

    for part in re.split(r"^\$ longtail ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "80"})
        if shown.strip():
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
        if block[1] == "console":
            run_console(block[2])
        if block[1] == "python":
            printed = run_python(block[2], page.name, namespace, capsys)
            is_output = (
                following is not None and following[1] == "text" and not text[block.end() : following.start()].strip()
            )
            if is_output:
                assert_same_output(printed, following[2])
            else:
                assert not printed, "a block that prints is followed by a text block with what it prints"


def test_the_readme_tells_which_methods_are_consistent(hooks):
    rows = re.findall(r"^\| `(\w+)`.*\| (yes|no)[^|]*\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) > 5
    assert dict(rows) == {name: hooks.consistency(METHODS[name]) for name, _ in rows}


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
        assert hooks.undocumented(hooks.load_package()) == []

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
            problems = hooks.undocumented(package)
        assert any(found.startswith(problem) for found in problems), problems

    def test_a_documented_package_has_no_problems(self, hooks):
        import griffe

        part = "__all__ = ['A', 'f']\nclass A:\n  'Doc.'\n  def _m(self): ...\ndef f():\n  'Doc.'"
        files = {"__init__.py": "from fake.part import f\n__all__ = ['f']", "part.py": part, "_private.py": "x = 1"}
        with griffe.temporary_visited_package("fake", modules=files) as package:
            assert hooks.undocumented(package) == []

    def test_the_build_stops_at_an_undocumented_name(self, hooks, monkeypatch):
        from mkdocs.config.defaults import MkDocsConfig
        from mkdocs.exceptions import PluginError

        monkeypatch.setattr(hooks, "undocumented", lambda package: ["longtail.f has no docstring"])
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
        sections = hooks.card_sections(card)
        assert [section.title for section in sections] == [
            "", "Formula", "Args", "Use when", "", "Example", "Deviates",
        ]  # fmt: skip
        assert sections[1].text == "a[y] = 1\n  + 2"
        assert hooks.arguments(sections[2].text) == [("x", "one and more."), ("y", "two.")]
        assert sections[4].text == "Some prose: with a colon."
        assert sections[5].text == ">>> 1 + 1\n2\n\n>>> 2\n2"
        assert hooks.card_section(card, "Deviates") == "In nothing."
        assert hooks.card_section(card, "Reference") == ""

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_a_method_page_has_the_whole_card_and_its_code_runs(self, hooks, method, capsys):
        page = hooks.method_page(method)
        for section in hooks.card_sections(method.card.__doc__):
            assert section.text.split()[-1].strip("`.") in page
        for block in BLOCK.finditer(page):
            if block[1] == "python":
                assert not run_python(block[2], method.name, {}, capsys)

    def test_every_method_is_in_the_table(self, hooks):
        index = hooks.methods_index()
        assert all(f"({name}.md)" in index for name in METHODS)

    def test_method_names_become_links_but_not_on_their_own_page(self, hooks):
        text = "``adaptive`` and ``effective_number``, not ``tau``; :meth:`smoothed`"
        assert hooks.linked(text, "adaptive") == (
            "`adaptive` and [`effective_number`](class_balanced.md), not `tau`; `smoothed`"
        )

    def test_benchmark_rows_become_tables(self, hooks, tmp_path):
        assert "make bench" in hooks.benchmark_tables(tmp_path)
        rows = ["size,method,ratio,torch", "1 x 2,a,1.0,2.13", "1 x 2,b,1.256,2.13", "3 x 4,a,1.0,2.13"]
        (tmp_path / "many_sizes.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / "one_size.csv").write_text("size,method,ratio,peak\n9,a,1.0,7.5\n9,b,2.0,8.5\n")
        shown = hooks.benchmark_tables(tmp_path)
        assert "torch 2.13" in shown
        assert "| `b` | 1.26 |  |" in shown
        assert "| b | 2.0 | 8.5 |" in shown

    def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(self, hooks, tmp_path):
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
        assert {f"methods/{name}.html" for name in METHODS} <= pages.keys()
        assert 'id="longtail.posthoc.tune_tau"' in pages["reference/posthoc.html"]
        foreign = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=\"?https?:")
        assert [name for name, html in pages.items() if foreign.search(html)] == []
