"""GetTokenizer: the files of the tokenizer, zipped, for a gateway that makes tokens itself."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gevent.lock import BoundedSemaphore

from app.api.grpc.messages import SERVICE, common, read
from app.clock.pause import call_off_hub
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import StreamingBody
from app.http.rpc import RpcMethod, RpcResponse, framed
from app.http.stream import StreamTransport
from config.settings import Settings

FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
LEFT_OUT = (".index.json",)
"""Of weights."""
CHUNK_BYTES = 1 << 16
MOST_BYTES = 64 << 20
"""Of all files together."""
Files = tuple[tuple[Path, int, int], ...]
"""Each with its size in bytes, and when it was last changed, in nanoseconds."""


def tokenizer_method(settings: Settings) -> RpcMethod:
    """The method. Like vLLM's it knows a tokenizer in a local folder alone."""
    name = settings.tokenizer.tokenizer or settings.model.model

    made: dict[Files, tuple[bytes, str]] = {}
    one_at_a_time = BoundedSemaphore(1)

    def get_tokenizer(context: RequestContext) -> RpcResponse:
        """The archive in chunks, the last of which has its SHA-256. It is made once, for all callers."""
        read(context, common.GetTokenizerRequest)
        folder = Path(name)
        if not folder.is_dir():
            text = "The server's tokenizer is no local folder: --tokenizer names one."
            raise ApiError(412, "PreconditionFailed", text)
        with one_at_a_time:
            files = call_off_hub(listed, folder)
            if files not in made:
                made.clear()
                made[files] = call_off_hub(zipped, files)
            return RpcResponse(Archive(*made[files]))

    return RpcMethod(f"/{SERVICE}/GetTokenizer", get_tokenizer)


def listed(folder: Path) -> Files:
    """The tokenizer's files, in the order of their names. ApiError 412 where there are none."""
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern)})
    paths = [path for path in paths if path.is_file() and not path.name.endswith(LEFT_OUT)]
    found = [(path, path.stat()) for path in paths]
    if not found or sum(stat.st_size for _, stat in found) > MOST_BYTES:
        raise ApiError(412, "PreconditionFailed", "The server's tokenizer has no files, or too large ones.")
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def zipped(files: Files) -> tuple[bytes, str]:
    """An archive of them, and its SHA-256 in hexadecimal."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as into:
        for path, _, _ in files:
            entry = zipfile.ZipInfo(path.name)  # without a date: the same files are the same archive
            entry.compress_type = zipfile.ZIP_DEFLATED
            into.writestr(entry, path.read_bytes())
    data = archive.getvalue()
    return data, hashlib.sha256(data).hexdigest()


class Archive(StreamingBody):
    """Bytes, in as many messages as they take."""

    __slots__ = ("_at", "_data", "_digest")

    def __init__(self, data: bytes, digest: str) -> None:
        super().__init__()
        self._data, self._digest, self._at = data, digest, 0

    def attach(self, transport: StreamTransport) -> None:
        """Have it sent, chunk by chunk."""
        transport.start(self)
        transport.lag()

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """The next chunk; see `StreamSource`."""
        part = self._data[self._at : self._at + CHUNK_BYTES]
        self._at += len(part)
        last = self._at >= len(self._data)
        message = common.GetTokenizerChunk(data=part, sha256=self._digest if last else "")
        data = framed(message.SerializeToString())
        self.bytes_sent += len(data)
        return data, not last, last

    def leave(self) -> None:
        """The client has gone."""
        self._data = b""

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError
