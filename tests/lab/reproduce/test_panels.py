"""Figures of plotly as panels of a page."""

import re

import plotly.graph_objects
import pytest
from plotly.subplots import make_subplots

from longtail.lab.reproduce import balms, gaussians, moons
from longtail.lab.reproduce._schemes import COLORS
from longtail.lab.reproduce._writing import draw_table, page, plots
from longtail.lab.reproduce.figures import COLORS as SERIES_COLORS
from longtail.lab.reproduce.panels import PALETTE, to_panels


@pytest.fixture
def figure():
    drawn = make_subplots(cols=2, subplot_titles=["a < b<br>now", "second"], shared_yaxes="all")
    for column in (1, 2):
        for name, color in (("one", "#0072b2"), ("two", "#c44e00")):
            drawn.add_trace(
                plotly.graph_objects.Scatter(
                    x=[1, 2],
                    y=[3.0 * column, 4.0],
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    line={"color": color},
                ),
                row=1,
                col=column,
            )
    drawn.add_hline(y=1, line={"color": "#59636f"}, row=1, col=2)
    drawn.update_xaxes(title="x<sub>1</sub>", type="log", col=2)
    drawn.update_yaxes(title="loss")
    return drawn


def test_every_pair_of_axes_is_a_panel(figure):
    first, second = to_panels(figure, "figure-0").figures
    assert [first.key, second.key] == ["figure-0-0", "figure-0-1"]
    assert [len(panel.traces) for panel in (first, second)] == [2, 2]
    assert not any("xaxis" in trace or "yaxis" in trace for trace in (*first.traces, *second.traces))
    assert first.layout["title"]["text"] == "<b>a < b<br>now</b>"
    assert second.layout["xaxis"]["type"] == "log"
    assert "domain" not in second.layout["xaxis"]
    assert "shapes" not in first.layout
    assert second.layout["shapes"][0]["yref"] == "y"
    # What shared an axis has one range still.
    assert first.layout["yaxis"]["range"] == second.layout["yaxis"]["range"] == pytest.approx([2.85, 6.15])


def test_a_panel_says_what_it_shows(figure):
    _, second = to_panels(figure, "figure-0").figures
    assert second.summary == "Second: loss against x1, for one and two."
    figure.update_layout(meta="losses").update_yaxes(title="")
    assert to_panels(figure, "figure-0").figures[1].summary == "Losses: second against x1, for one and two."
    assert second.table.rows[0] == ("one", "1", "6")


def test_series_have_names_marks_and_colors_of_the_page(figure):
    panels = to_panels(figure, "figure-0")
    assert [(series.label, series.color, series.symbol) for series in panels.legend] == [
        ("one", "method-1", "circle"),
        ("two", "method-2", "square"),
    ]
    assert {trace["meta"] for panel in panels.figures for trace in panel.traces} == {
        series.key for series in panels.legend
    }
    assert panels.figures[0].traces[0]["line"]["color"] == "@method-1"


def test_experiments_use_the_colors_of_the_page():
    used = {*SERIES_COLORS, *COLORS.values(), *moons.COLORS.values(), *gaussians.COLORS.values()}
    assert used <= PALETTE.keys()
    assert len(set(balms.POINT_COLORS)) == 3


def test_the_page_loads_nothing_and_can_be_read_without_pictures(figure):
    text = page("A & B", f"<p>Words.</p>{plots([figure])[0]}")
    assert "<h1>A &amp; B</h1>" in text
    head, _, _ = text.partition("plotly.js v")
    assert "default-src 'none'; script-src 'sha256-" in head
    assert not re.search(r"<(?:script|link|img)\b[^>]*(?:src|href)=", head)
    assert len(re.findall(r'role="img" aria-labelledby="caption-figure-0-\d"', head)) == 2
    assert head.count("<figcaption") == 2
    assert ">A &lt; b now: loss, for one and two.<" in head


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_draws_the_panels(browser, figure, tmp_path, width, scheme):
    path = tmp_path / "page.html"
    path.write_text(page("Panels", plots([figure])[0]))
    browser.open(path, width=width, scheme=scheme, touch=width < 500)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    tops = browser.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.getBoundingClientRect().top)")
    assert (tops[0] == tops[1]) == (width > 500)
    drawn = "document.querySelectorAll('.plot .scatterlayer .trace path').length"
    assert browser.evaluate(drawn) >= 4
    browser.evaluate("document.querySelector('[data-series=figure-0-series-0]').click()")
    browser.wait_for("document.querySelectorAll('.plot .scatterlayer .trace').length === 2")
    assert browser.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_wide_table_scrolls_in_its_box_and_breaks_no_number(browser, tmp_path, width):
    path = tmp_path / "page.html"
    headings = ["row", *(f"quantity {place}" for place in range(10)), "protocol"]
    words = "1 seed; a note about the paper of more than thirty letters"
    rows = [["a name of several words", *["12.34 ± 5.67"] * 10, words]]
    path.write_text(page("Table", f"{draw_table(headings, rows, 'Numbers')}"))
    browser.open(path, width=width, scheme="light", touch=width < 500)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    count_lines = """(cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      return range.getClientRects().length;
    }"""
    lines = browser.evaluate(f"[...document.querySelectorAll('td')].map({count_lines})")
    assert lines[:-1] == [1] * 10
    box = "document.querySelector('.scroll')"
    assert browser.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    assert browser.evaluate(f"{box}.tabIndex") == 0
