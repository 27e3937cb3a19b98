"""Downloads a dataset before the server starts: resumable, verified, all or nothing."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import urllib3
from filelock import FileLock
from tqdm import tqdm
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Retry, Timeout, parse_url

from app.engine.dataset.tokens import DatasetError

CHUNK_BYTES = 1 << 20
TIMEOUT = Timeout(connect=10, read=60)
"""Seconds to connect, and between two pieces of the body."""
REDIRECTS = Retry(connect=0, read=0, other=0, status=0, redirect=5)
OK, PARTIAL, UNSATISFIABLE = 200, 206, 416
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed; the bytes so far are kept."""
EVERY_S = 5.0
EVERY_SHARE = 0.1
MEGABYTE = 1_000_000

Advance = Callable[[int], object]
"""Receives the number of new bytes."""
Progress = Callable[[int, int | None], AbstractContextManager[Advance]]
"""Receives the number of bytes already present, and the final size if it is known."""

logger = logging.getLogger(__name__)


def download(url: str, path: Path, sha256: str | None = None, progress: Progress | None = None) -> None:
    """Downloads `url` into the new file `path`, and makes its folders.

    The bytes go to `path` plus `.part`, where a later call resumes after a break. The complete file is
    verified, flushed and renamed. Of several processes with the same file only one downloads it.

    Args:
        sha256: hexadecimal checksum that the file must have.
        progress: receives the length of every piece; by default a bar on a terminal, else lines in the log.

    Raises:
        DatasetError: the download failed, or the file has another checksum.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        with lock:
            if not path.exists():
                Download(url, path, sha256, progress or shown(path.name)).run()
            Path(lock.lock_file).unlink(missing_ok=True)
    except OSError as error:
        raise DatasetError(f"the dataset cannot be written to {path}: {error.strerror or error}") from error
    except KeyboardInterrupt:
        raise DatasetError(
            "the download of the dataset was interrupted; the next start goes on with it"
        ) from None


class Download:
    def __init__(self, url: str, path: Path, sha256: str | None, progress: Progress) -> None:
        self._url = url
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._validator = path.with_name(path.name + ".part.etag")
        """File with the ETag or date of the part's version; only bytes of the same version may be added."""
        self._sha256 = sha256
        self._progress = progress

    def run(self) -> None:
        """Fetches all, as long as each try brings more than the one before; then verifies and renames."""
        most = -1
        while (trouble := self._fetch()) is not None:
            if self._have() <= most:
                raise self._failed(f"{trouble}; a next start goes on after {self._have()} bytes")
            most = self._have()
        self._check()
        os.replace(self._part, self._path)
        self._validator.unlink(missing_ok=True)
        _flush(self._path.parent)

    def _fetch(self) -> str | None:
        """Requests the missing bytes. Returns None when the request completes, else the trouble."""
        pool = urllib3.PoolManager(timeout=TIMEOUT, retries=REDIRECTS)
        try:
            response = pool.request("GET", self._url, headers=self._headers(), preload_content=False)
            with response:
                return self._receive(response)
        except HTTPError as error:
            return _reason(error)
        finally:
            pool.clear()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "understudy"}
        if have := self._have():
            headers["Range"] = f"bytes={have}-"
            if self._validator.exists():
                headers["If-Range"] = self._validator.read_text("latin-1")
        return headers

    def _receive(self, response: urllib3.BaseHTTPResponse) -> str | None:
        have = self._have()
        if response.status == UNSATISFIABLE and have:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return None
            self._discard()
            return "the file there has changed"
        if response.status == PARTIAL:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                self._discard()
                return "the server sent another part than it was asked for"
        elif response.status == OK:
            self._discard()
            have = 0
        else:
            if response.status not in PASSING:
                self._discard()
            raise self._failed(f"the server answered with status {response.status}")
        self._note(response.headers)
        self._write(response, have)
        return None

    def _write(self, response: urllib3.BaseHTTPResponse, have: int) -> None:
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        with self._part.open("ab") as file, self._progress(have, total) as advance:
            for piece in response.stream(CHUNK_BYTES, decode_content=False):
                file.write(piece)
                advance(len(piece))
            file.flush()
            os.fsync(file.fileno())

    def _note(self, headers: Mapping[str, str]) -> None:
        """Stores the validator of this version of the file; a weak ETag is no validator."""
        etag = headers.get("ETag", "")
        validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
        if validator:
            self._validator.write_text(validator, "latin-1")

    def _check(self) -> None:
        if not self._have():
            self._discard()
            raise self._failed("the file there is empty")
        if self._sha256 is None:
            return
        with self._part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self._sha256.lower():
            self._discard()
            raise self._failed(f"its SHA-256 is {found}, not {self._sha256.lower()}")

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def _failed(self, why: str) -> DatasetError:
        return DatasetError(f"the dataset cannot be downloaded from {_public(self._url)}: {why}")


def _public(url: str) -> str:
    """Returns an address without user, password and query, which may be secrets."""
    try:
        return parse_url(url)._replace(auth=None, query=None).url
    except LocationParseError:
        return "its address"


def _flush(folder: Path) -> None:
    """Syncs `folder`, so that a new name survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: HTTPError) -> str:
    return str(getattr(error, "reason", None) or error)


def shown(name: str) -> Progress:
    """Shows a bar on a terminal, else logs a line now and then."""
    if sys.stderr.isatty():
        return lambda have, total: bar(name, have, total)
    return lambda have, total: lines(name, have, total, time.monotonic)


@contextmanager
def bar(name: str, have: int, total: int | None) -> Iterator[Advance]:
    with tqdm(
        desc=name, initial=have, total=total, unit="B", unit_scale=True, dynamic_ncols=True
    ) as progress:
        yield progress.update


@contextmanager
def lines(name: str, have: int, total: int | None, now: Callable[[], float]) -> Iterator[Advance]:
    """Logs a line every `EVERY_S` seconds of `now` or `EVERY_SHARE` of the file."""
    begun_s = logged_s = now()
    done = logged = have

    def advance(count: int) -> None:
        nonlocal done, logged, logged_s
        done += count
        now_s = now()
        if now_s - logged_s >= EVERY_S or (total and done - logged >= EVERY_SHARE * total):
            logger.info("%s", line(name, done, total, (done - have) / max(now_s - begun_s, 1e-9)))
            logged, logged_s = done, now_s

    yield advance


def line(name: str, done: int, total: int | None, per_s: float) -> str:
    """Formats a progress line; `per_s` in bytes per second."""
    speed = f"{per_s / MEGABYTE:.1f} MB/s"
    if not total:
        return f"download of {name}: {done / MEGABYTE:.1f} MB, {speed}"
    left_s = (total - done) / max(per_s, 1e-9)
    return (
        f"download of {name}: {done / total:.0%} of {total / MEGABYTE:.1f} MB, {speed}, {left_s:.0f} s left"
    )
