"""What a browser makes of the page."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

AT_3_AND_4 = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, spoken to in its debugging protocol over a pipe."""

    def __init__(self, program, folder):
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        # The protocol wants its pipes at 3 and 4, which may be taken here but not in a new process.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, *map(str, ends), *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._received = b""
        self._last_id = 0
        self._session = None
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next_message(self):
        while b"\0" not in self._received:
            part = os.read(self._input, 2**20)
            assert part, "Chromium ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        parameters = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(parameters["args"])
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"])
        elif event["method"] == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:")):
                self.complaints.append(url)

    def open(self, path, width=1280, height=900, scheme="light", touch=False):
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.documentElement?.dataset.figures === 'drawn'")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.complaints}"
            time.sleep(0.05)

    def screenshot(self, path, whole=True):
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        os.close(self._output)
        os.close(self._input)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"needs one of {', '.join(names)} to open the page")
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


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
