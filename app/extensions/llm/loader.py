"""Loads a model's configuration and weights from safetensors or a GGUF file."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from app.core.text.base import TokenizerLoadError
from app.core.text.files import read_json
from app.extensions.llm.config import Checkpoint, read_config
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_weights import read_gguf
from app.extensions.llm.llama_cpp.model_file import GGUFModel, read_model
from app.extensions.llm.llama_cpp.package import is_installed

INDEX_FILE: Final = "model.safetensors.index.json"


def open_model(
    path: Path, device: str, dtype: str | None, batch_invariant: bool
) -> Checkpoint | GGUFModel:
    """Reads a model for the library that computes it.

    llama.cpp computes GGUF files on CPUs as they are. torch computes all other models, and a GGUF
    file whose numbers are converted to a `dtype`.

    Raises:
        ModelLoadError: Any failure, with one line.
    """
    is_cpu = device == "cpu"
    if device == "auto":
        is_cpu = not torch.cuda.device_count() and not torch.backends.mps.is_available()
    converts = dtype not in (None, "auto") or batch_invariant
    if path.is_file() and is_cpu and not converts and is_installed():
        return read_model(path)
    return load_checkpoint(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a folder or a .gguf file.

    Raises:
        ModelLoadError: Any failure, with one line.
    """
    if path.is_file():
        return read_gguf(path)
    try:
        config = read_json(path / "config.json")
        index = read_json(path / INDEX_FILE).get("weight_map")
        generation = read_json(path / "generation_config.json")
    except TokenizerLoadError as error:
        raise ModelLoadError(str(error)) from error
    if not config:
        raise ModelLoadError(f"{path} does not contain config.json.")
    files = []
    if isinstance(index, dict):
        names = set(map(str, index.values()))
        files = [path / name for name in sorted(names)]
    if not files:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(f"{path} does not contain a .safetensors file.")
    eos_ids = generation.get("eos_token_id", config.get("eos_token_id"))
    if isinstance(eos_ids, int):
        eos_ids = [eos_ids]
    elif not isinstance(eos_ids, list):
        eos_ids = []
    return Checkpoint(
        read_config(config), weights=_safetensors(files), eos_token_ids=frozenset(eos_ids)
    )


def _safetensors(files: Sequence[Path]) -> dict[str, Callable[[], Tensor]]:
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file}, which is listed in {INDEX_FILE}, is missing.")
        try:
            tensors = safe_open(file, framework="pt")  # closes with its last reference
        except (SafetensorError, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelLoadError(
                f"{file} is truncated or is not a safetensors file: {lines[0]}"
            ) from error
        for name in tensors.keys():  # noqa: SIM118 (not a dictionary)
            weights[name] = partial(tensors.get_tensor, name)
    return weights
