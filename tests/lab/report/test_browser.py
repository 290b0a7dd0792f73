"""What a browser makes of the page."""

import base64
import re

import pytest

from longtail.lab.report import write_report

STATE = """({
  width: document.documentElement.scrollWidth,
  title: document.title,
  figures: [...document.querySelectorAll("[data-figure]")].map((plot) => ({
    key: plot.dataset.figure,
    traces: [...plot.querySelectorAll(".main-svg .trace")].filter((trace) => trace.querySelector("path")).length,
    width: plot.querySelector(".main-svg")?.getBoundingClientRect().width,
    room: plot.getBoundingClientRect().width,
  })),
})"""


@pytest.mark.parametrize(
    ("width", "scheme", "touch"), [(1280, "light", False), (375, "dark", True)], ids=["desktop", "phone"]
)
def test_figures_are_drawn(browser, page, width, scheme, touch, figures_of):
    browser.open(page, width=width, scheme=scheme, touch=touch)
    state = browser.evaluate(STATE)
    wanted = figures_of(page.read_text())
    assert len(state["figures"]) == len(wanted) == 20
    for figure in state["figures"]:
        assert figure["traces"] == len(wanted[figure["key"]]["data"]), figure
        assert figure["width"] <= figure["room"] + 1, figure
    assert state["width"] <= width
    assert browser.complaints == []


def test_names_of_others_do_nothing_in_a_browser(browser, hostile_page):
    browser.open(hostile_page, width=375, touch=True)
    state = browser.evaluate(STATE)
    assert state["title"].startswith("</script><img")
    assert browser.evaluate("document.images.length") == 0
    assert state["width"] <= 375
    assert all(figure["traces"] for figure in state["figures"])
    # Plotly shows the name itself, as text.
    assert "</script><im" in browser.evaluate(
        "document.querySelector('[data-figure=label-distribution]').textContent"
    )
    assert browser.complaints == []


def test_a_method_is_hidden_in_all_figures(browser, page):
    browser.open(page)
    count = "document.querySelectorAll('[data-figure=class-accuracy] .scatterlayer .trace').length"
    assert browser.evaluate(count) == 4
    browser.evaluate("document.querySelector('#groups [data-series=method-1]').click()")
    browser.wait_for(f"{count} === 3")
    pressed = "[...document.querySelectorAll('[data-series=method-1]')].map((b) => b.getAttribute('aria-pressed'))"
    assert set(browser.evaluate(pressed)) == {"false"}
    browser.evaluate("document.querySelector('#classes [data-series=method-1]').click()")
    browser.wait_for(f"{count} === 4")
    assert browser.complaints == []


def test_page_is_printed_light_and_narrow(browser, page, color_schemes):
    browser.open(page, scheme="dark")
    browser.evaluate(
        """addEventListener("beforeprint", () => {
          const plot = document.querySelector("[data-figure=groups]");
          window.printed = [plot.layout.width, plot.layout.font.color];
        })"""
    )
    assert len(base64.b64decode(browser.call("Page.printToPDF")["data"])) > 50_000
    assert browser.evaluate("window.printed") == [325, color_schemes()["light"]["ink"]]
    assert (
        browser.evaluate("document.querySelector('[data-figure=groups]').layout.font.color")
        == (color_schemes()["dark"]["ink"])
    )
    assert browser.complaints == []


@pytest.fixture(scope="module")
def crowded_page(tmp_path_factory, make_comparison):
    """Twelve methods whose two seeds differ much: long legends, and intervals that end at 0 and 100."""
    folder = tmp_path_factory.mktemp("crowded")
    names = [f"method_with_a_name_{letter}" for letter in "abcdefghijk"]
    methods = {name: {"bias": 0.1 * place} for place, name in enumerate(["cross_entropy", *names])}
    path = folder / "page.html"
    write_report(make_comparison(folder / "runs", methods=methods, seeds=(0, 1), num_samples=60), path)
    assert re.search(r'class="ends">\(', path.read_text())
    return path


SPILLED = """[...document.querySelectorAll(".methods th, .methods td, .legend, figcaption")]
  .filter((element) => element.scrollWidth > element.clientWidth + 1).map((element) => element.textContent)"""


@pytest.mark.parametrize("width", [1280, 1000, 800, 390])
def test_nothing_spills_whatever_the_width(browser, crowded_page, width):
    browser.open(crowded_page, width=width, touch=width < 500)
    assert browser.evaluate(STATE)["width"] <= width
    assert browser.evaluate(SPILLED) == []


@pytest.mark.parametrize("name", ["page", "crowded_page"])
def test_paper_has_no_folded_parts_and_is_not_shrunk(browser, request, name):
    page = request.getfixturevalue(name)
    browser.open(page, width=688)
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "(key) => getComputedStyle(document.getElementById(key)).display !== 'none'"
    assert browser.evaluate(f"['methods', 'training', 'settings'].map({shown})") == [True, True, False]
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.wait_for("document.querySelector('[data-figure=groups]').layout.width === 325")
    # A page as wide as A4 between its margins: what is wider, a browser would shrink.
    assert browser.evaluate("document.documentElement.scrollWidth") <= 688
    printed = base64.b64decode(browser.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
    assert 3 <= len(re.findall(rb"/Type /Page\b", printed)) <= 8
    browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_all_of_it_reached(browser, crowded_page, scheme):
    browser.open(crowded_page, scheme=scheme)
    assert browser.evaluate(f"({FIND_PALE})()") == []
    assert browser.evaluate("[...document.querySelectorAll('.scroll')].every((part) => part.tabIndex === 0)")


FIND_PALE = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    const color = parse(getComputedStyle(element).backgroundColor);
    return color[3] === 0 ? behind(element.parentElement) : color;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const pale = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("noscript")) continue;
    const style = getComputedStyle(element);
    const [one, two] = [parse(element.closest("svg") ? style.fill : style.color), behind(element)].map(light);
    if ((Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05) < 4.5) pale.push(texts.currentNode.textContent);
  }
  return pale;
}"""
