"""Downloads from a local server: checksums, resuming, unpacking."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading

import numpy as np
import pytest

from longtail.lab.data import download
from longtail.lab.data.sets import cifar

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
LABELS = np.arange(12) % 10


def write_cifar10_binary(root):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    records = np.concatenate([LABELS[:, None].astype(np.uint8), PIXELS], axis=1)
    for i, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        records[2 * i : 2 * i + 2].tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(f"name {c}" for c in range(10)) + "\n\n")
    return folder


CONTENT = bytes(range(256)) * 5000


def remote_file(url, content=CONTENT, algorithm="sha256"):
    return download.RemoteFile(url, "", f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, from where the client asks; ``/cut`` breaks off in the middle."""

    def __init__(self, requests, *args):
        self.requests = requests
        super().__init__(*args)

    def do_GET(self):
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        start = 0 if self.path == "/plain" else int(start)
        self.requests.append((self.path, start))
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        is_cut = self.path == "/cut" and start == 0
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if is_cut else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    requests = []
    handler = functools.partial(RangeHandler, requests)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", requests
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_download_of_a_local_file(tmp_path, algorithm):
    (tmp_path / "source.bin").write_bytes(CONTENT)
    file = remote_file((tmp_path / "source.bin").as_uri(), algorithm=algorithm)
    path = download.download(file, tmp_path / "new" / "folder", show_progress=False)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["source.bin"]


def test_download_goes_on_where_it_stopped(tmp_path, server, one_line):
    url, requests = server
    file = remote_file(f"{url}/cut")
    with pytest.raises(OSError, match=r"Could not download .* put it into") as error:
        download.download(file, tmp_path, show_progress=False)
    assert one_line(error)
    assert not (tmp_path / "cut").exists()
    assert download.download(file, tmp_path, show_progress=False).read_bytes() == CONTENT
    assert requests == [("/cut", 0), ("/cut", len(CONTENT) // 2)]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path, server):
    url, requests = server
    file = remote_file(f"{url}/whole")
    download.download(file, tmp_path, show_progress=False)
    download.download(file, tmp_path, show_progress=False)
    assert len(requests) == 1


def test_a_server_that_cannot_resume_starts_again(tmp_path, server):
    (tmp_path / "plain.part").write_bytes(b"something else")
    path = download.download(remote_file(f"{server[0]}/plain"), tmp_path, show_progress=False)
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_complete_needs_its_checksum_only(tmp_path, server):
    (tmp_path / "whole.part").write_bytes(CONTENT)
    path = download.download(remote_file(f"{server[0]}/whole"), tmp_path, show_progress=False)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(tmp_path, one_line):
    (tmp_path / "source.bin").write_bytes(b"changed on the way")
    target = tmp_path / "target"
    with pytest.raises(ValueError, match=r"checksum must be .* nothing was kept") as error:
        download.download(remote_file((tmp_path / "source.bin").as_uri()), target, show_progress=False)
    assert one_line(error)
    assert list(target.iterdir()) == []


def test_no_network_is_one_line(tmp_path, server, one_line):
    file = remote_file((tmp_path / "nowhere.bin").as_uri())
    with pytest.raises(OSError, match="get it on another machine and put it into") as error:
        download.download(file, tmp_path, show_progress=False)
    assert one_line(error)


def test_download_draws_a_progress_bar(tmp_path, capsys):
    pytest.importorskip("rich")
    (tmp_path / "source.bin").write_bytes(CONTENT)
    download.download(remote_file((tmp_path / "source.bin").as_uri()), tmp_path / "target")
    assert "source.bin" in capsys.readouterr().out


def test_download_dataset_unpacks_where_the_loader_looks(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "made")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    file = remote_file(archive.as_uri(), archive.read_bytes())
    monkeypatch.setattr(download, "DOWNLOADS", {"cifar10": (file,)})
    root = download.download_dataset("cifar10", tmp_path / "root")
    assert len(cifar.load_cifar10(root).train) == 10
    with pytest.raises(ValueError, match="no download 'imagenet'; known: cifar10"):
        download.download_dataset("imagenet", tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_an_archive_stays_in_its_folder(tmp_path, name, one_line):
    member = tarfile.TarInfo(name)
    member.size = 3
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.addfile(member, io.BytesIO(b"abc"))
    with pytest.raises(ValueError, match="files below its own folder") as error:
        download.unpack(tmp_path / "bad.tar.gz", tmp_path / "inside")
    assert one_line(error)
    assert not (tmp_path / "outside").exists()


def test_links_in_an_archive_are_left_out(tmp_path):
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(tmp_path / "links.tar.gz", "w:gz") as tar:
        tar.addfile(link)
    download.unpack(tmp_path / "links.tar.gz", tmp_path / "inside")
    assert not (tmp_path / "inside" / "link").exists()


def test_a_cut_off_archive_is_refused(tmp_path, one_line):
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(CONTENT)
        tar.addfile(member, io.BytesIO(CONTENT))
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"must be a complete \.tar\.gz archive") as error:
        download.unpack(tmp_path / "cut.tar.gz", tmp_path / "inside")
    assert one_line(error)
    assert not (tmp_path / "inside" / "file").exists()


def test_every_download_has_a_checksum_and_a_publisher():
    for files in download.DOWNLOADS.values():
        for file in files:
            algorithm, _, digits = file.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[algorithm]
            assert file.url.startswith("http")
