"""The file that describes an adapter in its folder."""

from pathlib import Path

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20


def read_config(folder: str) -> bytes:
    """Returns the first MAX_CONFIG_BYTES of the adapter's description, which are usually all.

    Raises:
        OSError: there is no such file, or it is not a plain one: reading a pipe would block.
        ValueError: no file can have this name.
    """
    file = Path(folder) / CONFIG
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as opened:
        return opened.read(MAX_CONFIG_BYTES)
