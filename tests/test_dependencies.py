"""The check of dependencies: which licenses fit, and that it does without a network."""

import importlib.util
import subprocess
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "check_dependencies.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="only in a checkout")


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("check_dependencies", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(**headers):
    metadata = Message()
    for name, value in headers.items():
        metadata[name.replace("_", "-")] = value
    return SimpleNamespace(name="other", version="1", metadata=metadata)


@pytest.mark.parametrize(
    ("headers", "fits"),
    [
        ({"License_Expression": "Apache-2.0"}, True),
        ({"License_Expression": "MIT AND Zlib"}, True),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, True),
        ({"License": "BSD 3-Clause\n\nlong text with the word GPL in it"}, True),
        ({"License_Expression": "LGPL-3.0-only"}, True),
        ({"License_Expression": "GPL-3.0-only"}, False),
        ({"License_Expression": "MIT AND AGPL-3.0-only"}, False),
        ({"License": "Proprietary, Apache-like"}, False),
        ({}, False),
    ],
)
def test_which_licenses_fit(script, monkeypatch, headers, fits):
    monkeypatch.setattr(script, "find_requirements", lambda name, extras: iter([made(**headers)]))
    assert (script.check_licenses() == []) == fits


def test_our_own_dependencies_fit(script):
    pytest.importorskip("packaging")
    assert len(list(script.find_requirements("longtail", frozenset({"lab"})))) > 10
    assert script.check_licenses() == []


def answer(monkeypatch, script, **result):
    """What pip-audit is made to answer."""
    done = subprocess.CompletedProcess([], **{"returncode": 1, "stdout": "", "stderr": ""} | result)
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: done)


def test_without_a_network_one_line_says_so(script, monkeypatch, capsys):
    answer(monkeypatch, script, stderr="WARNING: retrying\nConnectionError: no route\n")
    script.report_vulnerabilities()
    expected = "Vulnerabilities: not checked, for pip-audit says: ConnectionError: no route\n"
    assert capsys.readouterr().out == expected


def test_an_index_that_never_answers_is_one_line(script, monkeypatch, capsys):
    def stall(*_, **__):
        raise subprocess.TimeoutExpired("pip_audit", 60)

    monkeypatch.setattr(script.subprocess, "run", stall)
    script.report_vulnerabilities()
    assert capsys.readouterr().out == "Vulnerabilities: not checked, for there was no answer within 60 s.\n"


def test_a_known_vulnerability_is_shown(script, monkeypatch, capsys):
    answer(monkeypatch, script, stdout="Name Version ID\nold 1.0 X-1\n", stderr="Found 1 known vulnerability\n")
    script.report_vulnerabilities()
    assert capsys.readouterr().out == "Vulnerabilities: Found 1 known vulnerability\nName Version ID\nold 1.0 X-1\n"
