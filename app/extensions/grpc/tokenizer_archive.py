"""Archive of a tokenizer's files, for gateways that tokenize themselves."""

import hashlib
import io
import zipfile
from pathlib import Path

from app.core.server.http.errors import ApiError
from app.extensions.grpc.messages import common, framed_message

TOKENIZER_FILES = (
    "*.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
)
"""Files of a tokenizer in its folder, which may also hold an index of weights."""
CHUNK_BYTES = 1 << 16
MAX_FILE_BYTES = 64 << 20
"""Most bytes of all files of a tokenizer together."""


def archive_messages(folder: Path) -> bytes:
    """Returns an archive of the tokenizer's files as messages; the last has its SHA-256.

    Raises:
        ApiError: 412 for no files, or files that are too large.
    """
    paths = sorted({path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)})
    paths = [path for path in paths if path.is_file() and not path.name.endswith(".index.json")]
    if not paths or sum(path.stat().st_size for path in paths) > MAX_FILE_BYTES:
        raise ApiError(
            412,
            "PreconditionFailed",
            "The server's tokenizer is not a local folder, or its files are too large; "
            "use --tokenizer to specify a local folder.",
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in paths:
            # The entries have no date, so the same files give the same archive.
            entry = zipfile.ZipInfo(path.name)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    chunks = [
        common.GetTokenizerChunk(data=data[start : start + CHUNK_BYTES])
        for start in range(0, len(data), CHUNK_BYTES)
    ]
    chunks[-1].sha256 = hashlib.sha256(data).hexdigest()
    return b"".join(map(framed_message, chunks))
