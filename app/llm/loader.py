"""Weights out of safetensors files, under the names of the hub, and the check that all are there and fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from app.llm.config import Checkpoint, read_config
from app.llm.errors import ModelLoadError

if TYPE_CHECKING:
    pass

INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """The tensors of one or several files, each read when it is asked for."""

    interleaved = False

    def __init__(self, files: Sequence[Path]) -> None:
        from safetensors import SafetensorError, safe_open

        self._stack = ExitStack()
        self._files: dict[str, safe_open] = {}
        for file in files:
            try:
                opened = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{file} is cut off or no safetensors file: {_line(error)}") from error
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def get(self, name: str) -> torch.Tensor:
        try:
            return self._files[name].get_tensor(name)
        except KeyError:
            raise ModelLoadError(f"The weights lack the tensor {name}.") from None


def load_checkpoint(path: Path) -> Checkpoint:
    """What stands in a folder, or in a .gguf file."""
    if path.is_file():
        from app.llm.gguf import read_gguf

        return read_gguf(path)
    config = read_json(path / "config.json")
    if not config:
        raise ModelLoadError(f"{path} holds no config.json.")
    files = _weight_files(path)
    generation = read_json(path / "generation_config.json")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = ends if isinstance(ends, list) else [ends] if isinstance(ends, int) else []
    return Checkpoint(read_config(config), SafetensorsWeights(files), frozenset(ids))


def read_json(file: Path) -> Mapping[str, object]:
    """Empty when the file is not there."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} is not readable JSON: {_line(error)}.") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} should hold a JSON object.")
    return content


def _weight_files(path: Path) -> list[Path]:
    index = read_json(path / INDEX).get("weight_map")
    if isinstance(index, dict):
        files = [path / name for name in sorted(set(map(str, index.values())))]
        for file in files:
            if not file.is_file():
                raise ModelLoadError(f"{file}, which {INDEX} names, is not there.")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(f"{path} holds no .safetensors file.")
    return files


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
