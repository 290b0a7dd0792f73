"""Download published data sets, only when asked to: checksummed, resumed where it stopped, with a progress bar."""

from __future__ import annotations

import hashlib
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO

from longtail._core.suggestions import suggest
from longtail.lab.data.locate import PathLike, data_root

__all__ = ["DOWNLOADS", "RemoteFile", "download", "download_dataset", "unpack"]

_CHUNK = 2**20
_TIMEOUT_SECONDS = 60
_LARGEST_MEMBER = 2**30


@dataclass(frozen=True)
class RemoteFile:
    """A file of a publisher, with the checksum that says whether it arrived."""

    url: str
    folder: str
    """Where it belongs below the data root; "" is the root itself."""
    checksum: str
    """``md5:`` or ``sha256:`` and hexadecimal digits."""

    @property
    def name(self) -> str:
        """The file's name."""
        return PurePosixPath(self.url).name


def _idx_files(base: str, folder: str, checksums: tuple[str, str, str, str]) -> tuple[RemoteFile, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        RemoteFile(base + name, folder, f"md5:{digits}") for name, digits in zip(names, checksums, strict=True)
    )


DOWNLOADS: Mapping[str, tuple[RemoteFile, ...]] = MappingProxyType(
    {
        # Addresses and md5 sums as on the CIFAR page, https://www.cs.toronto.edu/~kriz/cifar.html.
        "cifar10": (
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "", "md5:c32a1d4ab5d03f1284b67883e8d87530"
            ),
        ),
        "cifar100": (
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "", "md5:03b5dce01913d631647c71ecec9e9cb8"
            ),
        ),
        # The publisher's page, http://yann.lecun.com/exdb/mnist, no longer serves its files; this mirror has them.
        "mnist": _idx_files(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        # Addresses and md5 sums as in the publisher's README, https://github.com/zalandoresearch/fashion-mnist.
        "fashion_mnist": _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "fashion-mnist",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    }
)
"""The files of each data set that can be downloaded."""


def download_dataset(name: str, root: PathLike | None = None) -> Path:
    """Download a data set's files to where its loader looks for them, and unpack archives.

    Args:
        name: a key of ``DOWNLOADS``.
        root: folder for data sets; None is the variable LONGTAIL_DATA, else ``~/.cache/longtail``.

    Returns:
        The folder for data sets.
    """
    if name not in DOWNLOADS:
        raise ValueError(f"there is no download {name!r}; {suggest(name, DOWNLOADS)}")
    folder = data_root(root)
    for file in DOWNLOADS[name]:
        path = download(file, folder / file.folder)
        if path.name.endswith(".tar.gz"):
            unpack(path, folder)
    return folder


def download(file: RemoteFile, folder: PathLike, show_progress: bool = True) -> Path:
    """Download one file, unless it is there already.

    It grows as ``NAME.part``, where an interrupted download resumes next time, and gets its name once its checksum is
    right. With a wrong checksum nothing is kept.

    Args:
        file: what to get, from where.
        folder: where to put it; made if need be.
        show_progress: whether to draw a progress bar on the terminal.

    Returns:
        The path of the file.
    """
    algorithm, _, wanted = file.checksum.partition(":")
    if algorithm not in ("md5", "sha256"):
        raise ValueError(f"{file.url}: checksum must start with md5: or sha256:. Got {file.checksum!r}.")
    path = Path(folder) / file.name
    if path.is_file() and _digest(path, algorithm) == wanted:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        _fetch(file.url, part, show_progress)
    except OSError as error:  # urllib's errors are among them
        reason = getattr(error, "reason", error)
        raise OSError(
            f"Could not download {file.url} ({reason}): get it on another machine and put it into {path.parent}."
        ) from error
    got = _digest(part, algorithm)
    if got != wanted:
        part.unlink()
        raise ValueError(f"{file.url}: the {algorithm} checksum must be {wanted}. Got {got}; nothing was kept.")
    part.replace(path)
    return path


def unpack(archive: PathLike, folder: PathLike) -> None:
    """Unpack the regular files of a ``.tar.gz`` archive, each written whole or not at all.

    A name that leads out of the folder is an error; links and devices are left out.

    Args:
        archive: the file.
        folder: where to put what is in it.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isfile():
                    _unpack_member(tar, member, Path(archive), Path(folder))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} must be a complete .tar.gz archive. Got: {error}.") from error


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or member.size > _LARGEST_MEMBER:
        raise ValueError(f"{archive} must have files below its own folder and under 1 GiB. Got {member.name!r}.")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    source = tar.extractfile(member)
    if source is None:  # pragma: no cover (regular files have content)
        return
    with source, part.open("wb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)
    part.replace(target)


def _fetch(url: str, part: Path, show_progress: bool) -> None:
    """Append what is missing to the partial file; start again where the server can't resume."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing: it stopped between the last byte and the checksum
            error.close()
            return
        raise
    with response:
        resumes = getattr(response, "status", None) == 206  # a local file has no status
        start = have if resumes else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if resumes else "wb") as file, _progress(show_progress, part.stem, start, total) as tick:
            _copy(response, file, tick)
    if total is not None and part.stat().st_size < total:
        raise OSError(f"got {part.stat().st_size} of {total} bytes; try again to resume there")


def _copy(source: Any, target: BinaryIO, tick: Callable[[int], None]) -> None:
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        tick(len(chunk))


def _progress(show: bool, name: str, start: int, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    if not show:
        return nullcontext(lambda _: None)
    return _RichProgress(name, start, total)


class _RichProgress:
    """A progress bar as a context that gives the function to advance it with."""

    def __init__(self, name: str, start: int, total: int | None) -> None:
        try:
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
        except ImportError as error:
            raise ImportError("The progress bar needs rich: pip install 'longtail[lab]'.") from error
        self._bar = Progress(
            "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task(name, completed=start, total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda size: self._bar.advance(self._task, size)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
