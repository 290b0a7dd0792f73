"""Licenses of what `pip install "longtail[lab]"` brings, and known vulnerabilities where the network allows.

Licenses are read from what is installed, so that part needs no network. pip-audit asks the index of advisories; where
that can't be reached within seconds, one line says so and the check goes on.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

ADVISORIES = ("pypi.org", 443)
SECONDS = 2.0
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


def check_vulnerabilities() -> list[str]:
    """What pip-audit finds; nothing, and a line that says why, where it can't look."""
    try:
        socket.create_connection(ADVISORIES, SECONDS).close()
    except OSError as error:
        sys.stdout.write(f"Vulnerabilities: not checked, for {ADVISORIES[0]} can't be reached ({error}).\n")
        return []
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--skip-editable", "--timeout", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip_audit" in done.stderr:
        sys.stdout.write("Vulnerabilities: not checked, for pip-audit is not installed.\n")
        return []
    sys.stdout.write(
        f"Vulnerabilities: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else 'none known.'}\n"
    )
    return done.stdout.strip().splitlines() if done.returncode else []


if __name__ == "__main__":
    problems = check_licenses() + check_vulnerabilities()
    sys.exit("\n".join(problems) or 0)
