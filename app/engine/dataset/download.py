"""Downloads a dataset before the server starts: resumable, verified, all or nothing."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import urllib3
from filelock import FileLock
from tqdm import tqdm
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Retry, Timeout, parse_url

from app.engine.core.errors import DatasetError

CHUNK_BYTES = 1 << 20
TIMEOUT = Timeout(connect=10, read=60)
"""Seconds to connect, and between two pieces of the body."""
REDIRECTS = Retry(connect=0, read=0, other=0, status=0, redirect=5)
OK, PARTIAL, UNSATISFIABLE = 200, 206, 416
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed; the bytes so far are kept."""
TERMINAL_S, LOG_S = 0.1, 5.0
"""Seconds between two updates of the bar, on a terminal and elsewhere."""


def download(url: str, path: Path, sha256: str | None = None) -> None:
    """Downloads `url` into the new file `path`, and makes its folders.

    The bytes go to `path` plus `.part`, where a later call resumes after a break. The complete file
    is verified, flushed and renamed. Of several processes with the same file only one downloads it.
    A bar on stderr shows the progress. `sha256`: hexadecimal checksum that the file must have.
    Raises DatasetError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        with lock:
            if not path.exists():
                _Download(url, path).run(sha256)
            Path(lock.lock_file).unlink(missing_ok=True)
    except OSError as error:
        raise DatasetError(
            f"the dataset cannot be written to {path}: {error.strerror or error}"
        ) from error
    except KeyboardInterrupt:
        raise DatasetError(
            "the download of the dataset was interrupted; the next start goes on with it"
        ) from None


class _Download:
    def __init__(self, url: str, path: Path) -> None:
        self._url, self._path, self._part = url, path, path.with_name(path.name + ".part")
        self._validator = path.with_name(path.name + ".part.etag")
        """File with the ETag or date of the part's version; only bytes of the same version may be
        added.
        """

    def run(self, sha256: str | None) -> None:
        """Fetches all, as long as each try brings more than the one before; then verifies and
        renames.
        """
        most = -1
        while (trouble := self._fetch()) is not None:
            if self._have() <= most:
                raise self._failed(f"{trouble}; a next start goes on after {self._have()} bytes")
            most = self._have()
        if not self._have():
            self._discard()
            raise self._failed("the file there is empty")
        if sha256 is not None:
            with self._part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256.lower():
                self._discard()
                raise self._failed(f"its SHA-256 is {found}, not {sha256.lower()}")
        os.replace(self._part, self._path)
        self._validator.unlink(missing_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the new name survives a power failure
        finally:
            os.close(descriptor)

    def _fetch(self) -> str | None:
        """Requests the missing bytes. Returns None when the request completes, else the trouble."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "understudy"}
        if have := self._have():
            headers["Range"] = f"bytes={have}-"
            if self._validator.exists():
                headers["If-Range"] = self._validator.read_text("latin-1")
        pool = urllib3.PoolManager(timeout=TIMEOUT, retries=REDIRECTS)
        try:
            with pool.request("GET", self._url, headers=headers, preload_content=False) as response:
                return self._receive(response, have)
        except HTTPError as error:
            return str(getattr(error, "reason", None) or error)
        finally:
            pool.clear()

    def _receive(self, response: urllib3.BaseHTTPResponse, have: int) -> str | None:
        status, headers = response.status, response.headers
        content_range = headers.get("Content-Range", "")
        if status == UNSATISFIABLE and have:
            if content_range == f"bytes */{have}":
                return None
            self._discard()
            return "the file there has changed"
        if status == PARTIAL and not content_range.startswith(f"bytes {have}-"):
            self._discard()
            return "the server sent another part than it was asked for"
        if status not in (OK, PARTIAL):
            if status not in PASSING:
                self._discard()
            raise self._failed(f"the server answered with status {status}")
        if status == OK:
            self._discard()
            have = 0
        etag = headers.get("ETag", "")  # a weak one validates nothing
        if validator := etag if etag.startswith('"') else headers.get("Last-Modified", ""):
            self._validator.write_text(validator, "latin-1")
        length = headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        name, every_s = self._path.name, TERMINAL_S if sys.stderr.isatty() else LOG_S
        bar = tqdm(
            desc=name, initial=have, total=total, unit="B", unit_scale=True, mininterval=every_s
        )
        with self._part.open("ab") as file, bar:
            for piece in response.stream(CHUNK_BYTES, decode_content=False):
                file.write(piece)
                bar.update(len(piece))
            file.flush()
            os.fsync(file.fileno())
        return None

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def _failed(self, why: str) -> DatasetError:
        """Names the address without user, password and query, which may be secrets."""
        try:
            address = parse_url(self._url)._replace(auth=None, query=None).url
        except LocationParseError:
            address = "its address"
        return DatasetError(f"the dataset cannot be downloaded from {address}: {why}")
