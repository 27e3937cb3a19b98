"""Loads the tokenizer of the settings."""

import logging
from pathlib import Path

from app.text import files
from app.text.base import Tokenizer, TokenizerLoadError
from app.text.huggingface import LocalTokenizer

EMBEDDED = Path(__file__).parent / "data"

logger = logging.getLogger(__name__)


def default_tokenizer(chat_template: str | None = None, takes_media: bool | None = None) -> LocalTokenizer:
    """Returns the embedded tokenizer: a byte-level BPE, lossless for any Unicode text."""
    return LocalTokenizer.from_path(EMBEDDED, "embedded", chat_template, takes_media)


def load_tokenizer(
    *,
    model: str,
    tokenizer: str | None = None,
    force_dummy: bool = False,
    render_url: str | None = None,
    render_timeout_s: float = 5.0,
    mm_render_timeout_s: float = 5.0,
    hf_token: str | None = None,
    cache_dir: str | None = None,
    chat_template: str | None = None,
    takes_media: bool | None = None,
) -> Tokenizer:
    """Returns the embedded tokenizer if forced, else a render service, else one of a folder, file or hub.

    `tokenizer`, by default `model`, is a folder, file or `organisation/name` on the hub. `hf_token` is for
    the hub, `cache_dir` for its files, by default in the library's own place. `chat_template` is Jinja source
    or its file, in place of the tokenizer's own, `takes_media` None reads the model's `config.json`; both are
    not for a service. TokenizerLoadError when `tokenizer` cannot be loaded; a `model` then gets the embedded.
    """
    chat_template = template_source(chat_template)
    if takes_media is None:
        takes_media = files.takes_media(files.model_config(model))
    if force_dummy:
        return default_tokenizer(chat_template, takes_media)
    if render_url:
        from app.text.render import RenderTokenizer

        return RenderTokenizer(
            render_url, model=model, timeout_s=render_timeout_s, mm_timeout_s=mm_render_timeout_s
        )
    source = tokenizer or model
    path = Path(source).expanduser()
    try:
        if path.exists():
            return LocalTokenizer.from_path(path, source, chat_template, takes_media)
        if source.startswith((".", "/", "~")):
            raise TokenizerLoadError(f"There is nothing at {source}.")
        if tokenizer is None and "/" not in source:  # a model name such as `tiny` is no repository
            return default_tokenizer(chat_template, takes_media)
        cache = None if cache_dir is None else Path(cache_dir).expanduser()
        folder = files.fetch(source, hf_token, cache)
        return LocalTokenizer.from_path(folder, source, chat_template, takes_media)
    except TokenizerLoadError as error:
        if tokenizer is not None:
            raise
        logger.warning("no tokenizer for %s, using the embedded one: %s", source, error)
        return default_tokenizer(chat_template, takes_media)


def template_source(given: str | None) -> str | None:
    """Returns the source of a template that is given as source or as a file."""
    if given is None or "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"The chat template {given} cannot be read: {error}.") from error
