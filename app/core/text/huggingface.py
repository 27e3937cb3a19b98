"""A tokenizer from a local `tokenizer.json`, on the `tokenizers` library.

Short ASCII texts are encoded by a cache of the token ids of words (`words`). The library encodes
all other texts, long ones in a native thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from app.core.base import Bounded
from app.core.base.clock.pause import QUICK_BYTES, call_long, call_off_hub
from app.core.base.late_imports import import_modules
from app.core.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    KeptTokens,
    Message,
    SurrogateError,
    TextCheck,
    TokenIdError,
    Tokenizer,
    TokenizerLoadError,
)
from app.core.text.chat_template import ChatTemplates, RequestTemplateRenderer
from app.core.text.detokenization import byte_level_pieces, check_id_range, stream_pieces
from app.core.text.files import (
    DEFAULT_TEMPLATE,
    TokenizerFolder,
    accepts_media,
    fetch,
    read_folder,
    read_info,
    template_source,
)
from config.sections.model import TokenizerSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from app.core.text.long_texts import LongTexts
    from app.core.text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

EMBEDDED = Path(__file__).parent / "data"
"""Folder of the embedded tokenizer."""
EMBEDDED_SIZE = 6146
EMBEDDED_EOS_ID = 0
"""Number of tokens of the embedded tokenizer, and its end of text."""
CHARACTER_WORK = 8
"""Work of encoding a character, in bytes as `call_long` counts them."""
TOKEN_WORK = 2
"""Work of writing a token's text, in bytes as `call_long` counts them."""
OFFLINE_VALUES = ("1", "ON", "TRUE", "YES")
"""Values of HF_HUB_OFFLINE that forbid downloads."""
WORD_START = "▁"
"""Sign of a blank in SentencePiece vocabularies."""

FileReader = Callable[[Path], "tuple[Backend, TokenizerFolder] | None"]
"""Reads a file of another format than `tokenizer.json`; None for files of other formats.

Raises TokenizerLoadError for a file that it cannot use.
"""


def _read_no_file(path: Path) -> None:
    """The reader where only `tokenizer.json` is read."""


class LocalTokenizer(Tokenizer):
    """The `Tokenizer` of a folder or file; immutable, shared by all requests of a process."""

    def __init__(
        self,
        backend: Backend | None,
        folder: TokenizerFolder,
        name: str,
        renderer: RequestTemplateRenderer | None = None,
    ) -> None:
        """Creates a tokenizer; `backend` must not be changed afterwards.

        The first text loads the embedded tokenizer, whose `backend` is None. `renderer` renders
        with the chat templates of requests; several tokenizers may share it.
        """
        self.name = name
        self._templates = ChatTemplates(
            folder.chat_templates,
            folder.special_tokens,
            takes_media=folder.takes_media,
            renderer=renderer,
        )
        self._file = folder.tokenizer_file
        self._chat_templates = folder.chat_templates
        self.is_time_dependent = self._templates.is_time_dependent
        self.caches: dict[str, Bounded] = {
            "chat templates": self._templates.compiler.compiled,
            "texts with tools": self._templates.tool_wrappers,
        }
        self.is_embedded = backend is None
        self.vocab_size: int = EMBEDDED_SIZE
        eos: int | None = EMBEDDED_EOS_ID
        if backend is not None:
            self._vocabulary = self._prepare(backend)
            self.vocab_size = max(self._vocabulary.size, folder.model_vocab_size)
            eos_token = folder.special_tokens.get("eos_token")
            eos = None if eos_token is None else backend.token_to_id(eos_token)
        self.eos_token_ids = frozenset(folder.eos_token_ids)
        if eos is None:
            eos = next(iter(folder.eos_token_ids), None)
        else:
            self.eos_token_ids |= {eos}
        self.eos_token_id: int | None = eos

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        """The embedded vocabulary, which takes about 15 ms; set at the start for others."""
        import_modules("tokenizers", "app.core.text.vocabulary")
        from app.core.text.vocabulary import shared_backend

        # The imports pause. Without this look, sixty first requests at once each prepared it: 76 ms
        # without a pause.
        return vars(self).get("_vocabulary") or self._prepare(shared_backend(self._file))

    def _prepare(self, backend: Backend) -> Vocabulary:
        from app.core.text.vocabulary import Vocabulary

        vocabulary = Vocabulary(backend)
        if vocabulary.words is not None:
            self.caches["words"] = vocabulary.words
            self.caches["parts of texts"] = vocabulary.words.parts
        return vocabulary

    @classmethod
    def from_path(
        cls,
        path: Path,
        name: str | None = None,
        *,
        chat_template: str | None = None,
        takes_media: bool | None = None,
        renderer: RequestTemplateRenderer | None = None,
        read_file: FileReader = _read_no_file,
    ) -> Self:
        """Loads a folder with `tokenizer.json`, such a file, or a file that `read_file` reads.

        `chat_template` replaces the folder's templates, `takes_media` the value from `config.json`.

        Raises:
            TokenizerLoadError: the file is missing, or the library cannot read it.
        """
        # The library would start a thread per core in every process, and wake one for each text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        backend, folder = _read_backend(path, read_file)
        if chat_template is not None:
            folder = replace(folder, chat_templates={DEFAULT_TEMPLATE: chat_template})
        if takes_media is not None:
            folder = replace(folder, takes_media=takes_media)
        return cls(backend, folder, name or str(path), renderer)

    @property
    def backend(self) -> Backend:
        """The library's tokenizer."""
        return self._vocabulary.backend

    @cached_property
    def _long_texts(self) -> LongTexts:
        from app.core.text.long_texts import LongTexts  # many servers get short texts only

        return LongTexts(self.backend)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self.backend.get_vocab()), default=1)

    def info(self) -> dict[str, object]:
        """Returns the tokenizer's configuration, as in `/tokenizer_info`."""
        info = read_info(self._file)
        template = self._chat_templates.get(DEFAULT_TEMPLATE)
        if template is not None:
            info["chat_template"] = template
        added = self.backend.get_added_tokens_decoder()
        info |= {
            "name_or_path": str(self._file.parent),
            "is_local": True,
            "local_files_only": os.environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE_VALUES,
            "added_tokens_decoder": {
                str(token_id): added[token_id].content for token_id in sorted(added)
            },
        }
        return info

    def check_ids(self, ids: Sequence[int]) -> None:
        """See `Tokenizer`."""
        if not ids:
            return
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self.vocab_size:
                raise TokenIdError(token_id)

    def encode(
        self, text: str, add_special_tokens: bool = False, kept: KeptTokens | None = None
    ) -> list[int]:
        """See `Tokenizer`."""
        vocabulary = self._vocabulary
        if CHARACTER_WORK * len(text) <= QUICK_BYTES:
            if vocabulary.words is not None and not (
                add_special_tokens and vocabulary.adds_special_tokens
            ):
                ids = vocabulary.words.encode(text)
                if ids is not None:
                    return ids
            return self.encode_many([text], add_special_tokens)[0]
        try:
            return self._long_texts.encode(text, add_special_tokens, kept)
        except TypeError as error:
            raise SurrogateError() from error

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[list[int]]:
        """See `Tokenizer`."""
        size = sum(map(len, texts))
        try:
            if CHARACTER_WORK * size > QUICK_BYTES:
                return self._long_texts.encode_many(texts, add_special_tokens)
            encodings = self.backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
            return [encoding.ids for encoding in encodings]
        except TypeError as error:
            raise SurrogateError() from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """See `Tokenizer`."""
        try:
            if TOKEN_WORK * len(ids) <= QUICK_BYTES:
                return self.backend.decode(ids, skip_special_tokens)
            return call_off_hub(self.backend.decode_batch, [ids], skip_special_tokens)[0]
        except OverflowError:
            check_id_range(ids)
            raise

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        """See `Tokenizer`."""
        size = TOKEN_WORK * len(ids)
        vocabulary = self._vocabulary
        if vocabulary.is_byte_level:
            skipped = vocabulary.special_ids
            if not skip_special_tokens:
                skipped = frozenset()
            if size <= QUICK_BYTES:
                return byte_level_pieces(ids, vocabulary.texts, skipped)
            return call_off_hub(byte_level_pieces, ids, vocabulary.texts, skipped)
        return call_long(size, stream_pieces, ids, vocabulary.backend, skip_special_tokens)

    def offsets(self, text: str, add_special_tokens: bool = False) -> list[tuple[int, int]] | None:
        """See `Tokenizer`."""
        if CHARACTER_WORK * len(text) > QUICK_BYTES:
            return self._long_texts.offsets(text, add_special_tokens)
        return self.backend.encode(text, add_special_tokens=add_special_tokens).offsets

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer`."""
        backend = self.backend

        def work() -> list[str]:
            check_id_range(ids)
            strings = {token_id: backend.id_to_token(token_id) or "" for token_id in set(ids)}
            return [strings[token_id] for token_id in ids]

        return call_long(TOKEN_WORK * len(ids), work)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Returns texts with the blanks that a decoder drops from the start."""
        vocabulary = self._vocabulary

        def work() -> list[str]:
            if vocabulary.is_byte_level:
                return [vocabulary.bytes[token_id].decode("utf-8", "replace") for token_id in ids]
            texts = []
            for token_id, token in zip(ids, self.token_strings(ids), strict=True):
                blanks = len(token) - len(token.lstrip(WORD_START))
                text = vocabulary.backend.decode([token_id], False)
                if blanks:
                    text = " " * blanks + text.lstrip(" ")
                texts.append(text)
            return texts

        return call_long(TOKEN_WORK * len(ids), work)

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """See `Tokenizer`."""
        return self._templates.render(messages, options)

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions = PLAIN_CHAT,
        check: TextCheck | None = None,
        kept: KeptTokens | None = None,
    ) -> list[int]:
        """See `Tokenizer`."""
        text = self._templates.render(messages, options)
        if check is not None and len(text) > QUICK_BYTES:
            check(text)
        return self.encode(text, options.add_special_tokens, kept)


def _read_backend(path: Path, read_file: FileReader) -> tuple[Backend | None, TokenizerFolder]:
    """Returns the library's tokenizer of a folder or file, and the files beside it.

    The embedded tokenizer is not loaded yet.

    Raises:
        TokenizerLoadError: as `LocalTokenizer.from_path`.
    """
    if path == EMBEDDED:
        return None, read_folder(path)
    import tokenizers

    backend, folder = read_file(path) or (None, read_folder(path))
    try:
        if backend is None:
            backend = tokenizers.Tokenizer.from_buffer(folder.tokenizer_json())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerLoadError(
            f"{folder.tokenizer_file} is not a tokenizer: {' '.join(str(error).split())}."
        ) from error
    if not backend.get_vocab_size():
        raise TokenizerLoadError(f"{folder.tokenizer_file} is a tokenizer without tokens.")
    return backend, folder


def default_tokenizer(
    chat_template: str | None = None, takes_media: bool | None = None
) -> LocalTokenizer:
    """Returns the embedded tokenizer: a byte-level BPE, lossless for any Unicode text."""
    return LocalTokenizer.from_path(
        EMBEDDED, "embedded", chat_template=chat_template, takes_media=takes_media
    )


def load_tokenizer(
    model: str,
    settings: TokenizerSettings = TokenizerSettings(),  # noqa: B008 (immutable)
    takes_media: bool | None = None,
    *,
    renderer: RequestTemplateRenderer | None = None,
    read_file: FileReader = _read_no_file,
) -> Tokenizer:
    """Returns the embedded tokenizer if forced, else a local tokenizer.

    `settings.tokenizer`, by default `model`, is a folder, a file or `organization/name` on the hub.
    A `model` without a tokenizer gets the embedded one. `takes_media` None reads the model's
    `config.json`; `renderer` and `read_file` are those of `LocalTokenizer.from_path`.

    Raises:
        TokenizerLoadError: `settings.tokenizer` cannot be loaded.
    """
    chat_template = template_source(settings.chat_template)
    if takes_media is None:
        takes_media = accepts_media(model)
    if settings.force_dummy_tokenizer:
        return default_tokenizer(chat_template, takes_media)
    source = settings.tokenizer or model
    try:
        path = _tokenizer_path(source, settings)
        if path is not None:
            return LocalTokenizer.from_path(
                path,
                source,
                chat_template=chat_template,
                takes_media=takes_media,
                renderer=renderer,
                read_file=read_file,
            )
    except TokenizerLoadError as error:
        if settings.tokenizer is not None:
            raise
        logger.warning(
            "no tokenizer found for %s (%s); using the embedded tokenizer", source, error
        )
    return default_tokenizer(chat_template, takes_media)


def _tokenizer_path(source: str, settings: TokenizerSettings) -> Path | None:
    """Returns the local path of a tokenizer; None for a model's name that is not on the hub."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if source.startswith((".", "/", "~")):
        raise TokenizerLoadError(f"File or folder not found: {source}.")
    if settings.tokenizer is None and "/" not in source:  # a model such as `tiny`
        return None
    cache = None
    if settings.tokenizers_cache_dir is not None:
        cache = Path(settings.tokenizers_cache_dir).expanduser()
    return fetch(source, settings.hf_token, cache)
