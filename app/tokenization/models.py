"""Tokenizers of models that others serve, found by the models' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from app.tokenization.base import Tokenizer, TokenizerLoadError
from app.tokenization.huggingface import LocalTokenizer
from app.tokenization.loading import load_tokenizer
from app.tokenization.offload import call_off_hub

FILE = "tokenizer.json"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


class ModelTokenizers:
    """`own` are loaded already; `sources` says of models where theirs are; `folder` may hold more.

    In the folder the tokenizer of `organisation/name` is in that place, or where the hub's cache puts it
    (kv-cache.md section 1.4). With `hub` all others are fetched.
    """

    def __init__(
        self,
        own: Mapping[str, Tokenizer],
        sources: Mapping[str, str],
        folder: Path | None = None,
        hub: bool = False,
        hf_token: str | None = None,
    ) -> None:
        self._own, self._sources, self._folder = own, sources, folder
        self._hub, self._hf_token = hub, hf_token

    def load(self, model: str) -> Tokenizer:
        """The tokenizer of a model, loaded now. TokenizerLoadError when nobody knows it."""
        own = self._own.get(model)
        return own if own is not None else call_off_hub(self._load, model)

    def _load(self, model: str) -> Tokenizer:
        source = self._sources.get(model)
        if source is not None:
            return load_tokenizer(model=model, tokenizer=source, explicit=True, hf_token=self._hf_token)
        path = found_in(self._folder, model) if self._folder is not None else None
        if path is not None:
            return LocalTokenizer.from_path(path, model)
        if self._hub and HUB_NAME.fullmatch(model):
            from app.tokenization.hub import fetch  # its library is slow to import

            return LocalTokenizer.from_path(fetch(model, self._hf_token), model)
        raise TokenizerLoadError(f"No tokenizer is known here for model `{model}`.")


def found_in(folder: Path, model: str) -> Path | None:
    """The folder below `folder` that holds a model's tokenizer; None if there is none, or outside of it."""
    parts = PurePosixPath(model).parts
    if not parts or ".." in parts or parts[0] == "/" or "\0" in model:
        return None
    cached = folder / ("models--" + "--".join(parts)) / "snapshots"
    places = [folder.joinpath(*parts), *(sorted(cached.iterdir()) if cached.is_dir() else ())]
    return next((place for place in places if (place / FILE).is_file()), None)
