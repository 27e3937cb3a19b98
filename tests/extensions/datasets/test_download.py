"""Downloads from a real HTTP server: whole, broken off, resumed, and of the wrong thing."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from app.extensions.datasets import download as downloads
from app.extensions.datasets.download import download
from app.extensions.datasets.library import DatasetError, prepare
from app.extensions.datasets.settings import DatasetSettings
from tests.extensions.datasets.file_server import Shop, open_shop
from tests.running_server import free_port

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def shop() -> Iterator[Shop]:
    with open_shop(CONTENT) as shop:
        yield shop


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "for it" / "replies.sqlite3"


def files(path: Path) -> list[str]:
    """What is in the folder, but for the lock."""
    return sorted(entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".lock"))


def trouble(shop: Shop, path: Path, sha256: str | None = None) -> str:
    with pytest.raises(DatasetError) as caught:
        download(shop.url, path, sha256)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_download_creates_the_folder_and_leaves_no_temporary_file(shop: Shop, path: Path) -> None:
    download(shop.url, path, SHA256.upper())
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert len(shop.requests) == 1


def test_existing_file_is_not_downloaded(shop: Shop, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    settings = DatasetSettings(
        dataset_path=(str(path),), dataset_url=shop.url, dataset_sha256=SHA256
    )
    prepare(settings)
    assert (path.read_bytes(), shop.requests) == (b"mine", [])


def test_download_is_resumed_after_a_broken_connection(shop: Shop, path: Path) -> None:
    shop.cuts = [100_000, 50_000]
    download(shop.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert [request_headers.get("range") for request_headers in shop.requests] == [
        None,
        "bytes=100000-",
        "bytes=150000-",
    ]
    assert [request_headers.get("if-range") for request_headers in shop.requests] == [
        None,
        '"first"',
        '"first"',
    ]


def test_failed_download_is_resumed_at_the_next_start(shop: Shop, path: Path) -> None:
    shop.cuts = [100_000, 0]
    assert "resumes after 100000 bytes" in trouble(shop, path)
    assert files(path) == ["replies.sqlite3.part", "replies.sqlite3.part.etag"]
    download(shop.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert shop.requests[-1]["range"] == "bytes=100000-"
    assert files(path) == ["replies.sqlite3"]
    path.rename(path.with_name("replies.sqlite3.part"))
    download(shop.url, path, SHA256)  # a complete part is only checked
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("etag", "content"),
    [('"second"', CONTENT[::-1]), (None, CONTENT[:5000])],
    ids=["changed", "shorter"],
)
def test_changed_file_is_downloaded_from_the_start(
    shop: Shop, path: Path, etag: str | None, content: bytes
) -> None:
    shop.cuts = [100_000, 0]
    shop.etag = etag and '"first"'
    trouble(shop, path)
    shop.content = content
    shop.etag = etag
    download(shop.url, path)
    assert path.read_bytes() == content


def test_download_without_range_support_fails_if_a_retry_makes_no_progress(
    shop: Shop, path: Path
) -> None:
    shop.ranges = False
    shop.cuts = [1000] * 50
    assert "IncompleteRead" in trouble(shop, path)
    assert len(shop.requests) == 2
    shop.cuts = [100_000]
    download(shop.url, path, SHA256)
    assert path.read_bytes() == CONTENT


def test_download_that_the_server_resumes_at_a_wrong_offset_fails(shop: Shop, path: Path) -> None:
    shop.cuts = [1000, 10_000, 10_000, 10_000]
    shop.wrong_start = 7
    with pytest.raises(DatasetError):
        download(shop.url, path)
    shop.wrong_start = 0
    shop.cuts = []
    download(shop.url, path, SHA256)
    assert path.read_bytes() == CONTENT


def test_downloaded_file_with_a_wrong_checksum_or_no_content_is_deleted(
    shop: Shop, path: Path
) -> None:
    shop.statuses = [302, 302]  # are followed
    assert trouble(shop, path, "0" * 64).endswith(f"the file's SHA-256 is {SHA256}, not {'0' * 64}")
    assert files(path) == []
    shop.content = b""
    assert trouble(shop, path).endswith("the file at this URL is empty")
    assert files(path) == []


@pytest.mark.parametrize(("status", "remains"), [(404, False), (503, True), (429, True)])
def test_partial_file_survives_transient_errors_but_not_status_404(
    shop: Shop, path: Path, status: int, remains: bool
) -> None:
    shop.cuts = [1000, 0]
    trouble(shop, path)
    shop.statuses = [status]
    trouble(shop, path)
    assert bool(files(path)) is remains


def test_error_for_an_unreachable_server_hides_secrets_in_the_url(path: Path) -> None:
    port = free_port()
    with pytest.raises(DatasetError, match=rf"from http://127.0.0.1:{port}/x: .*refused") as caught:
        download(f"http://me:secret@127.0.0.1:{port}/x?signature=secret", path)
    assert "secret" not in str(caught.value)


def test_invalid_url_or_folder_is_rejected(shop: Shop, path: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be downloaded"):
        download("http://[bad", path)
    (tmp_path / "taken").write_text("a file")
    assert "cannot be written to" in trouble(shop, tmp_path / "taken" / "replies.sqlite3")


def test_concurrent_processes_download_the_file_once(shop: Shop, path: Path) -> None:
    together = threading.Barrier(4)

    def start() -> None:
        together.wait()
        download(shop.url, path, SHA256)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == CONTENT
    assert len(shop.requests) == 1


def test_interrupt_keeps_the_partial_file(
    shop: Shop, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(DatasetError, match="interrupted"):
        patch.setattr(downloads.tqdm, "update", interrupted)
        download(shop.url, path, SHA256)
    download(shop.url, path, SHA256)
    assert path.read_bytes() == CONTENT
