"""One run in a process of its own, started by whatever a cluster runs on this machine.

``python -m longtail.lab.training.apart`` reads what to run as one line of JSON, and ends at once where whoever
started it is gone: its standard input then closes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

__all__ = ["run_apart"]

COMMAND = (sys.executable, "-m", "longtail.lab.training.apart")


def run_apart(recipe: str, folder: str, needs: str | None, trust_code: bool) -> str:
    """Make a run, and say why it failed; "" where it did not.

    Threads of a worker can't share a process: training sets PyTorch's global seed.

    Args:
        recipe: as TOML.
        folder: of the run, on a file system that all machines share.
        needs: the run whose trained model it takes over, if any.
        trust_code: whether code that the recipe names may be run.
    """
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps([recipe, folder, needs, trust_code]).encode() + b"\n")
        process.stdin.flush()  # and left open
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        process.stdin.close()
    if process.returncode == 0:
        return ""
    return lines[-1] if process.returncode == 2 and lines else "its process was killed, perhaps for want of memory."


def _main() -> int:
    recipe, folder, needs, trust_code = json.loads(sys.stdin.readline())
    Thread(target=_end_with_input, daemon=True).start()
    from longtail.lab.training.comparison import make_run

    try:
        make_run(recipe, Path(folder), None if needs is None else Path(needs), trust_code)
    except Exception as error:  # whatever one run died of, the others continue
        _say((str(error).strip().splitlines() or [type(error).__name__])[0])
        return 2
    return 0


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def _say(line: Any) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    code = _main()
    sys.stderr.flush()
    os._exit(code)  # the thread that waits for the end of the input would keep the interpreter
