"""The frame around the commands: errors, help, streams."""

import codecs
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from typer.main import get_command

import longtail
from longtail.lab import cli
from longtail.lab.cli import _console
from longtail.lab.cli.app import app


def test_version(run):
    assert run("--version").stdout == f"longtail {longtail.__version__}\n"


def test_usage_errors_exit_2(run):
    for arguments in [("adjust",), ("nothing",), ("list", "--nothing"), ("reproduce", "gaussians", "--trials", "1")]:
        assert run(*arguments).exit_code == 2


def test_debug_shows_where_an_error_comes_from(run, tmp_path):
    done = run("--debug", "inspect", tmp_path / "nothing.csv")
    assert isinstance(done.exception, FileNotFoundError)


def test_errors_of_the_program_are_not_hidden(run, monkeypatch):
    def fail(name):
        raise RuntimeError("a bug")

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    done = run("show", "adaptive")
    assert isinstance(done.exception, RuntimeError)
    line = "longtail: RuntimeError: a bug; this is a bug of longtail; please report it with the traceback below, "
    assert done.stderr.splitlines()[0] == line + "as CONTRIBUTING.md says."


def test_interrupt_exits_130(run, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("longtail.methods.table.get_method", interrupt)
    done = run("show", "adaptive")
    assert done.exit_code == 130
    assert "Traceback" not in done.stderr


def test_key_errors_print_the_message_not_its_quotes(run, monkeypatch):
    def fail(name):
        raise KeyError("no such key")

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    assert run("show", "adaptive").stderr == "longtail: in longtail show adaptive: no such key\n"


@pytest.mark.parametrize("package", ["typer", "pyarrow"])
def test_without_the_extra_it_says_how_to_get_it(monkeypatch, capsys, package):
    for module in list(sys.modules):
        if module.startswith(("longtail.lab.cli.", "longtail.lab.data.formats.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["longtail", "inspect", "labels.npy"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f'longtail: the command line needs {package}; get it with: pip install "longtail[lab]"\n'
    )


def call(*arguments, cwd=None, **environment):
    """The command as a process of its own."""
    code = "import sys; from longtail.lab.cli import main; sys.argv[0] = 'longtail'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


def test_the_installed_command(tmp_path):
    done = call("inspect", "nothing.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"longtail: nothing.csv: there is no such file.\n"


def test_a_terminal_without_the_letters_gets_others(tmp_path):
    (tmp_path / "labels.csv").write_text("label\n" + "é\n" * 90 + "b\n" * 9 + "c\n")
    done = call("inspect", "labels.csv", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"| " in done.stdout
    assert "90 |####" in done.stdout.decode("ascii")


def test_letters_have_substitutes():
    codecs.register_error("longtail", _console.substitute)
    assert "0.5 ± 0.1, é ▂█…".encode("ascii", errors="longtail") == b"0.5 +- 0.1, # _#..."


def test_a_closed_pipe_is_no_error(tmp_path):
    code = "import sys; from longtail.lab.cli import main; sys.argv[0] = 'longtail'; main()"
    np.save(tmp_path / "labels.npy", np.arange(200_000))
    arguments = [sys.executable, "-c", code, "inspect", "labels.npy", "--json"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", ["adjust", "reproduce"])
def test_help_imports_nothing_heavy(command):
    code = (
        "import sys; from longtail.lab.cli.app import app; from typer.testing import CliRunner; "
        f"assert CliRunner().invoke(app, ['{command}', '--help']).exit_code == 0; "
        "sys.exit(' '.join({'torch', 'numpy', 'pyarrow', 'plotly', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def list_commands():
    group = get_command(app)
    parts = [(name, part) for name, command in group.commands.items() for part in getattr(command, "commands", [])]
    return [(), *((name,) for name in group.commands), *parts]


@pytest.mark.parametrize("command", list_commands(), ids="-".join)
def test_help_names_no_types_of_python(run, command):
    shown = run(*command, "--help")
    assert shown.exit_code == 0
    assert "--help" in shown.stdout
    assert not re.search(
        r"<bool>|list\[|Optional|\ba (sample|class)\b|skewed|several labels|[Gg]o(es)? on", shown.stdout
    )


@pytest.mark.parametrize(
    "error",
    [
        zipfile.BadZipFile("File is not a zip file"),
        pa.ArrowNotImplementedError("no such kind"),
        tomllib.TOMLDecodeError("expected a value"),
        RecursionError("maximum recursion depth exceeded"),
        EOFError("Compressed file ended"),
        MemoryError("Unable to allocate 7 TiB"),
        ImportError("torchvision is missing"),
        ZeroDivisionError("division by zero"),
        ValueError(),
        ValueError("two\nlines\x1b[2J"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_inputs_cause_are_one_line(refuse, monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    refuse("show", "adaptive", message="longtail: ")
    if "\x1b" in str(error):
        refuse("show", "adaptive", message=r"two lines\x1b[2J")
