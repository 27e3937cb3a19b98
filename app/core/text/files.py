"""The files of a tokenizer in the layout of the Hugging Face hub: in a folder, or on the hub."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from app.core.text.base import TokenizerLoadError
from config.files import read_text, read_whole
from config.untrusted import decode_untrusted, python_json
from vllm_facts.model_shape import text_fields

DEFAULT_TEMPLATE = "default"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "config.json",
    "generation_config.json",
)
MEDIA_KEY = re.compile(r"vision|visual|image|audio|video|^img_")
"""Keys in the `config.json` of a multimodal model."""
MEDIA_ARCHITECTURE = re.compile(r"ForConditionalGeneration$|Omni|Molmo")
"""Names of the architecture of a multimodal model."""
TIMEOUT_S = 3.0
"""Seconds for each query of the hub.

A download has the library's own limit (`HF_HUB_DOWNLOAD_TIMEOUT`).
"""
OMITTED_KEYS = ("vocab_file", "merges_file", "tokenizer_class")
"""Keys of `tokenizer_config.json` that `read_info` leaves out or replaces."""
GENERIC_CLASSES = ("", "PreTrainedTokenizer")
"""Names that transformers replaces by `TokenizersBackend`; a suffix `Fast` does not count."""


class NamedTemplate(Struct):
    """A member of `chat_template`, where a model has several."""

    name: str
    template: str


Templates: TypeAlias = str | list[NamedTemplate]
TokenIds: TypeAlias = int | list[int]


class TokenizerFolder(Struct, frozen=True, kw_only=True):
    """Contents of the files beside `tokenizer.json`; optional ones have empty defaults."""

    tokenizer_file: Path
    special_tokens: Mapping[str, str] = {}
    """Role -> token (`eos_token` -> `</s>`), as variables of chat templates."""
    chat_templates: Mapping[str, str] = {}
    """Name -> Jinja source; a template without a name is `default`."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a generation, from `generation_config.json`, else from `config.json`."""
    model_vocab_size: int = 0
    """Rows of the model's embedding in `config.json`; may exceed the tokenizer's vocabulary."""
    takes_media: bool = True
    """True when `config.json` names a model that reads images, sound or video, or is missing."""

    def tokenizer_json(self) -> bytes:
        """Returns the content of `tokenizer.json`. Raises OSError."""
        return read_whole(self.tokenizer_file)


def read_folder(path: Path) -> TokenizerFolder:
    """Reads a folder with `tokenizer.json`, or that file.

    Raises:
        TokenizerLoadError: a file cannot be read.
    """
    file = path
    if path.is_dir():
        file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerLoadError(f"There is no tokenizer.json at {path}.")
    folder = file.parent
    config = read_json(folder / "tokenizer_config.json")
    model = read_json(folder / "config.json")
    special_tokens = {}
    for key, value in (read_json(folder / "special_tokens_map.json") | config).items():
        text = value
        if isinstance(value, dict):
            text = value.get("content")
        if key.endswith("_token") and isinstance(text, str):
            special_tokens[key] = text
    vocab_size = text_fields(model).get("vocab_size")
    return TokenizerFolder(
        tokenizer_file=file,
        special_tokens=special_tokens,
        chat_templates=_chat_templates(folder, config),
        eos_token_ids=_eos_token_ids(folder, model),
        model_vocab_size=vocab_size if isinstance(vocab_size, int) else 0,
        takes_media=takes_media(model) is not False,
    )


def _eos_token_ids(folder: Path, model: Mapping[str, object]) -> tuple[int, ...]:
    """Returns the ids of the first configuration that has any."""
    generation = folder / "generation_config.json"
    for file, config in ((generation, read_json(generation)), (folder / "config.json", model)):
        ids = _typed_field(file, config, "eos_token_id", kind=TokenIds)
        if isinstance(ids, int):
            return (ids,)
        if ids is not None:
            return tuple(ids)
    return ()


def _typed_field(file: Path, content: Mapping[str, object], name: str, kind: Any) -> Any:
    """Returns a field of the JSON object in `file`; None if it is missing.

    Raises:
        TokenizerLoadError: the field has another type.
    """
    try:
        return msgspec.convert(content.get(name), kind | None)
    except msgspec.ValidationError as error:
        raise TokenizerLoadError(f"{file}: {name}: {error}.") from error


def read_info(file: Path) -> dict[str, object]:
    """Returns `tokenizer_config.json` beside `file`, with the class that vLLM makes for it.

    Tokens are texts.
    """
    config = read_json(file.parent / "tokenizer_config.json")
    class_name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if class_name in GENERIC_CLASSES:
        class_name = "TokenizersBackend"
    info: dict[str, object] = {"tokenizer_class": f"TokenizerPoolCached{class_name}"}
    for name, value in config.items():
        if name not in OMITTED_KEYS:
            info[name] = _token_texts(value)
    return info


def _token_texts(value: object) -> object:
    """Replaces all descriptions of tokens in a JSON value by the tokens' texts."""
    if isinstance(value, list):
        return [_token_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    text = value.get("content")
    if isinstance(text, str):
        return text
    return {name: _token_texts(member) for name, member in value.items()}


def read_json(file: Path) -> dict[str, object]:
    """Reads a JSON object; returns an empty one for a missing file.

    Raises:
        TokenizerLoadError: the file has something else.
    """
    if not file.is_file():
        return {}
    try:
        content = decode_untrusted(read_text(file), decoder=python_json)
    except (OSError, ValueError) as error:
        raise TokenizerLoadError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TokenizerLoadError(f"{file} must contain a JSON object.")
    return content


def _chat_templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    templates: dict[str, str] = {}
    older = folder / "chat_template.json"
    for file, content in ((older, read_json(older)), (folder / "tokenizer_config.json", config)):
        entry = _typed_field(file, content, "chat_template", kind=Templates)
        if isinstance(entry, str):
            templates.setdefault(DEFAULT_TEMPLATE, entry)
        elif entry is not None:
            templates |= {named.name: named.template for named in entry}
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    default_file = folder / "chat_template.jinja"
    if default_file.is_file():
        files[DEFAULT_TEMPLATE] = default_file
    for name, path in sorted(files.items()):
        templates[name] = _template_text(path)
    return templates


def _template_text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"The chat template {file} cannot be read: {error}.") from error


def model_config(name: str) -> dict[str, object]:
    """Returns the `config.json` of a model in a local folder; empty if unreadable or missing."""
    with suppress(TokenizerLoadError):
        return read_json(Path(name).expanduser() / "config.json")
    return {}


def accepts_media(name: str) -> bool | None:
    """Returns `takes_media` of the `config.json` of a model in a local folder."""
    return takes_media(model_config(name))


def takes_media(model: Mapping[str, object]) -> bool | None:
    """Returns True for the `config.json` of a multimodal model; None for an empty one."""
    if not model:
        return None
    names = model.get("architectures")
    if isinstance(names, list) and any(MEDIA_ARCHITECTURE.search(str(name)) for name in names):
        return True
    return any(MEDIA_KEY.search(key) for key, value in model.items() if value is not None)


def fetch(name: str, token: str | None = None, cache: Path | None = None) -> Path:
    """Returns the folder with the tokenizer files of the repository `name`.

    The files come from the cache or the hub. The library reads `HF_HUB_OFFLINE`, `HF_HOME` and
    `HF_ENDPOINT`.

    Raises:
        TokenizerLoadError: neither has the files.
    """
    from huggingface_hub import snapshot_download  # slow to import
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    reason = "the repository has no tokenizer.json"
    for local_only in (True, False):
        try:
            snapshot = snapshot_download(
                name,
                allow_patterns=list(FILES),
                cache_dir=cache,
                token=token,
                etag_timeout=TIMEOUT_S,
                local_files_only=local_only,
            )
        except Exception as error:  # of several libraries: not found, gated, no network, bad name
            reason = str(error).strip().splitlines()[0]
        else:
            folder = Path(snapshot)
            if (folder / "tokenizer.json").is_file():
                return folder
    raise TokenizerLoadError(
        f"{name} was not found in the local cache or on the Hugging Face Hub: {reason}"
    )


def template_source(template: str | None) -> str | None:
    """Returns the source of a template, which is a source itself or the path of a file.

    Raises:
        TokenizerLoadError: the file cannot be read.
    """
    if template is None or "{" in template:
        return template
    return _template_text(Path(template).expanduser())
