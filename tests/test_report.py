"""The report: what it computes, what it refuses, and what a browser makes of it."""

import base64
import contextlib
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import time

import numpy as np
import plotly.graph_objects
import pytest
import torch

from longtail import ClassPrior
from longtail.lab.report import read_runs, write_report
from longtail.lab.report.digest import compare, estimate
from longtail.lab.runs import Predictions, append_metrics, environment, load_run, write_json
from longtail.posthoc import adjust_logits

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">%{x}<b>&amp;</b>\n\u202e'"


def long_tail_counts(num_classes, largest, ratio):
    steps = np.arange(num_classes) / (num_classes - 1)
    return np.floor(largest * ratio**-steps).astype(np.int64)


def make_predictions(counts, bias=1.0, seed=0, num_samples=400, names=None, signal=3.0, posthoc=False):
    """Gaussian logits: a signal for the true class, a weaker one for a similar class, and ``bias`` times log pi."""
    generator = np.random.default_rng(seed)
    num_classes = len(counts)
    prior = ClassPrior.from_counts(np.maximum(counts, 1))
    labels = np.arange(num_samples) % num_classes
    logits = generator.standard_normal((num_samples, num_classes), dtype=np.float32)
    rows = np.arange(num_samples)
    logits[rows, labels] += signal
    logits[rows, (labels + 1) % num_classes] += signal / 2
    logits += np.float32(bias) * prior.log_probs.numpy().astype(np.float32)
    return Predictions(
        logits=logits,
        scores=adjust_logits(logits, prior) if posthoc else logits,
        labels=labels.astype(np.int64),
        train_counts=counts,
        class_names=tuple(names or (f"class {index}" for index in range(num_classes))),
        weight_norms=(1 + bias * 0.1 * np.log(np.maximum(counts, 1))).astype(np.float32),
    )


def make_run(folder, method, seed, predictions, epochs=12, settings=None):
    """A run folder as training leaves it."""
    folder.mkdir(parents=True)
    lines = ['name = "example"', "[data]", 'source = "gaussians"', "[train]", f"epochs = {epochs}", f"seed = {seed}"]
    lines += ["[method]", f"name = {json.dumps(method)}", *(settings or [])]
    (folder / "recipe.toml").write_text("\n".join(lines) + "\n")
    for epoch in range(1, epochs + 1):
        row = {"epoch": epoch, "phase": 1, "learning_rate": 0.1 * (1 - epoch / epochs), "seconds": 1.2}
        row["train_loss"] = 2.0 / epoch + 0.01 * seed
        if epoch % 2 == 0:
            row["balanced_accuracy"] = 0.5 + 0.03 * epoch
        append_metrics(folder / "metrics.jsonl", row)
    write_json(folder / "environment.json", environment())
    predictions.save(folder / "predictions.npz")
    write_json(folder / "summary.json", {"method": method, "seed": seed, "seconds": 14.4 + seed, "metrics": {}})
    return load_run(folder)


COUNTS = long_tail_counts(10, 400, 50)
METHODS = {
    "cross_entropy": {"bias": 1.0},
    "posthoc_adjusted": {"bias": 1.0, "posthoc": True},
    "logit_adjusted": {"bias": 0.1, "signal": 3.2},
    "class_balanced": {"bias": 0.6},
}


def make_comparison(folder, counts=COUNTS, methods=METHODS, seeds=(0, 1, 2), **more):
    return [
        make_run(folder / f"{method}-{seed}", method, seed, make_predictions(counts, seed=seed, **(options | more)))
        for method, options in methods.items()
        for seed in seeds
    ]


class Browser:
    """Headless Chromium, spoken to in its debugging protocol over a pipe."""

    def __init__(self, program, folder):
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        # The protocol wants its pipes at 3 and 4; a shell puts them there without a fork of this process's threads.
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        moved = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", moved, *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
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
