"""Bodies of forms with a file."""

from collections.abc import Iterable

BOUNDARY = "frontier"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(fields: Iterable[tuple[str, str]], file: bytes | None) -> tuple[bytes, str]:
    """Returns a multipart body with fields, and with a file unless it is None, and its type."""
    parts: list[bytes] = []
    for name, value in fields:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        parts.append(f"{head}{value}\r\n".encode())
    if file is not None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        parts += [f"{head}Content-Type: audio/wav\r\n\r\n".encode(), file, b"\r\n"]
    parts.append(f"--{BOUNDARY}--\r\n".encode())
    return b"".join(parts), CONTENT_TYPE
