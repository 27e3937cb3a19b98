"""Downloads a dataset before the server starts: resumable, verified, all or nothing."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm
from urllib3 import BaseHTTPResponse, Retry, Timeout
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import parse_url

from app.core.base.http_pool import HttpPool
from app.core.engine.errors import DatasetError
from config.printable import one_line, trusted_stream

CHUNK_BYTES = 1 << 20
TIMEOUT = Timeout(connect=10, read=60)
"""Seconds to connect, and between two pieces of the body."""
MAX_BYTES = 256 << 30
"""Largest file: an endless one must not fill the disk."""
MAX_SECONDS = 6 * 3600.0
"""Longest time of an attempt: a server may send a byte now and then for ever."""
REDIRECTS = Retry(connect=0, read=0, other=0, status=0, redirect=5)
OK = 200
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed; the bytes so far are kept."""
TERMINAL_SECONDS = 0.1
"""Time between two updates of the progress bar on a terminal."""
LOG_SECONDS = 5.0
"""Time between two updates of the progress bar elsewhere."""


def download(
    url: str,
    path: Path,
    sha256: str | None = None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Downloads `url` into the new file `path`, and creates its folders.

    The bytes go to `path` plus `.part`, where a later call resumes after a break. The complete file
    is verified, flushed and renamed. If several processes want the same file, one downloads it. A
    bar on stderr shows the progress. `sha256` is the hexadecimal checksum of the file.
    `now` returns monotonic seconds.

    Raises:
        DatasetError: The download failed, or the checksum is another one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        with lock:
            if not path.exists():
                _Download(url, path, now).run(sha256)
            Path(lock.lock_file).unlink(missing_ok=True)
    except OSError as error:
        raise DatasetError(
            f"the dataset cannot be written to {path}: {error.strerror or error}"
        ) from error
    except KeyboardInterrupt:
        raise DatasetError(
            "the dataset download was interrupted; the next startup resumes it"
        ) from None


class _Download:
    def __init__(self, url: str, path: Path, now: Callable[[], float]) -> None:
        self._now = now
        self._url = url
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._validator = path.with_name(path.name + ".part.etag")
        """File with the ETag or date of the part's version.

        Only bytes of the same version may be added.
        """

    def run(self, sha256: str | None) -> None:
        """Fetches the file, verifies it and renames it.

        Retries as long as each attempt brings more bytes.
        """
        received = -1
        failure = self._fetch()
        while failure is not None:
            size = self._part_size()
            if size <= received:
                raise self._error(
                    f"{failure}; at the next startup, the download resumes after {size} bytes"
                )
            received = size
            failure = self._fetch()
        if not self._part_size():
            self._discard()
            raise self._error("the file at this URL is empty")
        if sha256 is not None:
            self._verify(sha256.lower())
        os.replace(self._part, self._path)
        self._validator.unlink(missing_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the new name survives a power failure
        finally:
            os.close(descriptor)

    def _fetch(self) -> str | None:
        """Requests the missing bytes. Returns None on success, else what failed."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "understudy"}
        offset = self._part_size()
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if self._validator.exists():
                headers["If-Range"] = self._validator.read_text("latin-1")
        pool = HttpPool(retries=REDIRECTS)
        try:
            with pool.open("GET", self._url, timeout=TIMEOUT, headers=headers) as response:
                return self._receive(response, offset)
        except HTTPError as error:
            return str(getattr(error, "reason", None) or error)
        finally:
            pool.close()

    def _verify(self, sha256: str) -> None:
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            self._discard()
            raise self._error(f"the file's SHA-256 is {digest}, not {sha256}")

    def _receive(self, response: BaseHTTPResponse, offset: int) -> str | None:
        """Appends the bytes from `offset`. Returns None on success, else what failed."""
        status = response.status
        content_range = response.headers.get("Content-Range", "")
        if status == RANGE_NOT_SATISFIABLE and offset:
            if content_range == f"bytes */{offset}":
                return None
            self._discard()
            return "the file there has changed"
        if status == PARTIAL_CONTENT and not content_range.startswith(f"bytes {offset}-"):
            self._discard()
            return "the server sent another part than requested"
        if status not in (OK, PARTIAL_CONTENT):
            if status not in TRANSIENT_STATUSES:
                self._discard()
            raise self._error(f"the server returned status {status}")
        if status == OK:
            self._discard()
            offset = 0
        self._save_validator(response)
        self._save_body(response, offset)
        return None

    def _save_validator(self, response: BaseHTTPResponse) -> None:
        validator = response.headers.get("ETag", "")
        if not validator.startswith('"'):  # a weak ETag validates nothing
            validator = response.headers.get("Last-Modified", "")
        if validator:
            self._validator.write_text(validator, "latin-1")

    def _save_body(self, response: BaseHTTPResponse, offset: int) -> None:
        begin_s = self._now()
        length = response.headers.get("Content-Length", "")
        bar = tqdm(
            desc=one_line(self._path.name),
            file=trusted_stream(sys.stderr),
            initial=offset,
            total=offset + int(length) if length.isdecimal() else None,
            unit="B",
            unit_scale=True,
            mininterval=TERMINAL_SECONDS if sys.stderr.isatty() else LOG_SECONDS,
        )
        with self._part.open("ab") as file, bar:
            received = offset
            chunk = response.read1(CHUNK_BYTES, decode_content=False)
            while chunk:
                file.write(chunk)
                bar.update(len(chunk))
                received += len(chunk)
                if received > MAX_BYTES:
                    raise self._error(f"the file is larger than {MAX_BYTES >> 30} GiB")
                if self._now() - begin_s > MAX_SECONDS:
                    raise self._error(
                        f"it takes over {MAX_SECONDS / 3600:g} h; the next startup resumes it"
                    )
                chunk = response.read1(CHUNK_BYTES, decode_content=False)
            file.flush()
            os.fsync(file.fileno())

    def _part_size(self) -> int:
        if self._part.exists():
            return self._part.stat().st_size
        return 0

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def _error(self, reason: str) -> DatasetError:
        """Returns an error that names the URL without user, password and query.

        These may be secrets.
        """
        try:
            address = parse_url(self._url)._replace(auth=None, query=None).url
        except LocationParseError:
            address = "its address"
        return DatasetError(f"the dataset cannot be downloaded from {address}: {reason}")
