"""Files that are written whole or not at all."""

import os
import subprocess
import sys

import pytest

from longtail._core.files import check_output, replacing


def write(path, content=b"new"):
    with replacing(path) as file:
        file.write(content)


def test_a_file_is_replaced_as_a_whole_or_left_as_it_was(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write(path, "no bytes")
    assert path.read_bytes() == b"old"
    write(path)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), sync(descriptor)))
    monkeypatch.setattr(
        type(tmp_path), "replace", lambda path, target: (events.append("rename"), replace(path, target))
    )
    write(tmp_path / "out")
    assert events == ["sync", "rename", "sync"]


def test_what_dead_processes_left_of_the_same_file_is_removed(tmp_path):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    stale = tmp_path / f".out.{done.pid}.partial"
    same_number = tmp_path / f".out.{os.getpid()}.partial"
    running = tmp_path / f".out.{os.getppid()}.partial"
    others = [tmp_path / f".other.{done.pid}.partial", tmp_path / ".out.notes.partial", running]
    for path in (stale, same_number, *others):
        path.write_bytes(b"half")
    write(tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "out", *others])


@pytest.mark.parametrize("overwrite", [False, True])
def test_links_pipes_folders_and_devices_are_no_output(tmp_path, overwrite):
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe"):
        with pytest.raises(FileExistsError, match="must be a regular file"):
            check_output(tmp_path / name, overwrite)
    with pytest.raises(FileExistsError, match="device"):
        check_output(type(tmp_path)("/dev/null"), overwrite)
    with pytest.raises(IsADirectoryError):
        check_output(tmp_path / "folder", overwrite)
    with pytest.raises(FileNotFoundError):
        check_output(tmp_path / "none" / "out", overwrite)


def test_a_regular_file_needs_leave_to_be_overwritten(tmp_path):
    check_output(tmp_path / "out", overwrite=False)
    write(tmp_path / "out")
    check_output(tmp_path / "out", overwrite=True)
    with pytest.raises(FileExistsError, match="--force"):
        check_output(tmp_path / "out", overwrite=False)
