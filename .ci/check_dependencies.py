"""Licenses of what `pip install "longtail[lab]"` brings, and known vulnerabilities where the network allows.

Licenses are read from what is installed, so that part needs no network. pip-audit asks the index of advisories; where
that can't be reached, one line says so and the check goes on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

SECONDS = 60.0
"""How long the index of advisories has to answer."""
ALLOWED = re.compile(
    r"Apache|BSD|MIT\b|MIT License|ISC|Python Software Foundation|PSF|MPL|Mozilla|HPND|Unlicense|Zlib|CC0",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(r"\bA?GPL|Affero|General Public|non-?commercial|proprietary", re.IGNORECASE)
LIBRARY_GPL = re.compile(r"LGPL|Lesser General Public|with GCC exception|GCC-exception", re.IGNORECASE)
"""May be linked to, and is."""


def find_requirements(name: str, extras: frozenset[str]) -> Iterator[Distribution]:
    """The distributions that a distribution with extras needs, at any depth, each once."""
    from packaging.requirements import Requirement

    seen: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        current, chosen = waiting.pop()
        try:
            found = distribution(current)
        except PackageNotFoundError:
            continue
        for text in found.requires or ():
            need = Requirement(text)
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*chosen, ""))
            if wanted and need.name.lower() not in seen:
                seen.add(need.name.lower())
                waiting.append((need.name, frozenset(need.extras)))
        if current != name:
            yield found


def name_license(found: Distribution) -> str:
    """What a distribution says of its license: the expression, the classifiers, or the first line of the text."""
    classifiers = [text.rpartition("::")[2] for text in found.metadata.get_all("Classifier", []) if "License" in text]
    stated = [found.metadata.get("License-Expression"), *classifiers, found.metadata.get("License")]
    return next((text.strip().splitlines()[0] for text in stated if text and text.strip()), "")


def check_licenses() -> list[str]:
    """A line for each distribution whose license does not fit, or is not said."""
    problems = []
    number = 0
    for found in find_requirements("longtail", frozenset({"lab"})):
        number += 1
        license_name = name_license(found)
        is_fine = LIBRARY_GPL.search(license_name) or (
            ALLOWED.search(license_name) and not FORBIDDEN.search(license_name)
        )
        if not is_fine:
            problems.append(f"{found.name} {found.version}: license {license_name or 'not said'!r}")
    sys.stdout.write(f"Licenses: {number} distributions, {len(problems)} that do not fit.\n")
    return problems


def report_vulnerabilities() -> None:
    """Say what pip-audit finds, or why it can't look.

    No reason to fail: an advisory that is published tonight is not a fault of what is checked tomorrow.
    """
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--skip-editable", "--timeout", "5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"Vulnerabilities: not checked, for there was no answer within {SECONDS:.0f} s.\n")
        return
    said, found = done.stderr.strip().splitlines(), done.stdout.strip()
    if done.returncode and not found:  # findings go to stdout: it is not there, or could not ask
        sys.stdout.write(f"Vulnerabilities: not checked, for pip-audit says: {said[-1] if said else 'nothing'}\n")
        return
    sys.stdout.write(f"Vulnerabilities: {said[0] if said else 'none known.'}\n")
    if done.returncode:
        sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    report_vulnerabilities()
    sys.exit("\n".join(check_licenses()) or 0)
