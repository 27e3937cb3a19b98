"""A tokenizer from a local `tokenizer.json`, on the `tokenizers` library.

Short ASCII texts are encoded by a cache of the token ids of words. A byte-level BPE like GPT-2's
cuts a text at added tokens, then into words by a pattern. Each word has the same ids in any text.
The cache takes a third of the library's time. The library encodes all other texts, long ones in a
native thread.

As in vLLM's streams, text that ends with U+FFFD, the sign of an incomplete character, is held back.
Unlike in vLLM, a tail that stays incomplete is not lost: the last token adds it, as in a plain
decode.
"""

import codecs
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Self

import msgspec
import tokenizers
from tokenizers import decoders, models
from tokenizers.decoders import DecodeStream

from app.base import Bounded
from app.base.clock.pause import QUICK_BYTES, call_long, call_off_hub
from app.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    Message,
    TextCheck,
    TokenIdError,
    Tokenizer,
    TokenizerLoadError,
    not_unicode,
)
from app.text.chat_template import ChatTemplates, RequestTemplateRenderer
from app.text.files import (
    DEFAULT_TEMPLATE,
    TokenizerFolder,
    fetch,
    model_config,
    read_folder,
    read_info,
)
from app.text.files import takes_media as media_of
from config.sections.model import TokenizerSettings

REPLACEMENT = "\ufffd"
ID_LIMIT = 2**32
"""Upper bound of ids, which the library keeps in 32 bits; an id below without a token adds nothing.
"""


def check_id_range(ids: Iterable[int]) -> None:
    """Raises `TokenIdError` for an id that does not fit 32 bits."""
    for token_id in ids:
        if not 0 <= token_id < ID_LIMIT:
            raise TokenIdError(f"Token id {token_id} is out of range.")


def byte_symbols() -> dict[str, int]:
    """Returns the byte of each symbol in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 bytes are their own symbols, other bytes follow in order from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(hidden)
    }


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes, for byte-level vocabularies; filled at first use."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._symbols = byte_symbols()

    def __missing__(self, token_id: int) -> bytes:
        check_id_range((token_id,))
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""  # not stored: there are up to 2**32 such ids
        try:
            raw = bytes([self._symbols[symbol] for symbol in token])
        except KeyError:  # an added token with a symbol outside the table, such as a blank
            raw = token.encode()
        self[token_id] = raw
        return raw


class TokenTexts(dict[int, str | None]):
    """Token id -> text that the token adds anywhere, or None if the text depends on its neighbours."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self.token_bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        raw = self.token_bytes[token_id]
        text = raw.decode("utf-8", "replace")
        if not raw:
            return text
        self[token_id] = kept = None if REPLACEMENT in text else text
        return kept


def byte_level_pieces(ids: Sequence[int], texts: TokenTexts, skipped: frozenset[int]) -> list[str]:
    """Returns the pieces of `ids`; those in `skipped` add nothing."""
    pieces: list[str] = []
    for token_id in ids:
        text = "" if token_id in skipped else texts[token_id]
        if text is None:
            return pieces + _split_characters(islice(ids, len(pieces), None), texts, skipped)
        pieces.append(text)
    return pieces


def _split_characters(ids: Iterable[int], texts: TokenTexts, skipped: frozenset[int]) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces, held, inside = list[str](), "", False
    for token_id in ids:
        if token_id in skipped:
            pieces.append("")
            continue
        text = None if inside else texts[token_id]
        if text is None:
            held += decoder.decode(texts.token_bytes[token_id])
            inside = held.endswith(REPLACEMENT) or decoder.getstate()[0] != b""
            text, held = ("", held) if inside else (held, "")
        pieces.append(text)
    pieces[-1] += held + decoder.decode(b"", final=True)
    return pieces


def stream_pieces(
    ids: Sequence[int], backend: tokenizers.Tokenizer, skip_special_tokens: bool
) -> list[str]:
    """Returns the pieces of `ids` for all other decoders, by the library's window over the last
    tokens.
    """
    if not ids:
        return []
    check_id_range(ids)
    stream, lengths = DecodeStream(skip_special_tokens=skip_special_tokens), list[int]()
    for token_id in ids:
        try:
            added = stream.step(backend, token_id)
        except Exception:  # the library raises this for text that does not extend its prefix
            stream = DecodeStream(skip_special_tokens=skip_special_tokens)
            added = stream.step(backend, token_id)
        lengths.append(len(added or ""))
    # The window gives the end of each token's text, except for decoders that change earlier text.
    # Cutting the whole text at the ends keeps the sum right for them, too.
    text = backend.decode(ids, skip_special_tokens)
    ends = [min(end, len(text)) for end in accumulate(lengths)]
    ends[-1] = len(text)
    return [text[start:end] for start, end in pairwise([0, *ends])]


WORDS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
).findall
"""Words of ASCII texts by GPT-2's pattern, which `ByteLevel` uses."""
LIMIT_BYTES = 1 << 20
WORD_BYTES = 400
"""Estimated memory of a remembered word, with its ids and its place."""
LONGEST_WORD = 20
"""Characters of the longest remembered word."""
LONGEST_PART, MOST_PARTS = 10, 100
"""Characters and number of remembered parts between added tokens, such as a chat template's."""


class WordEncoder(dict[str, list[int]]):
    """Encodes by words, whose ids it remembers, for a `backend` with `knows_words`."""

    def __init__(self, backend: tokenizers.Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._model = backend.model
        self._symbols = {byte: symbol for symbol, byte in byte_symbols().items()}
        added = backend.get_added_tokens_decoder().items()
        self._added = {token.content: [token_id] for token_id, token in added}
        self._parts: dict[str, list[int]] = {}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})").split

    @property
    def size_bytes(self) -> int:
        return WORD_BYTES * len(self)

    def encode(self, text: str) -> list[int] | None:
        """Returns the ids of `text` without special tokens around; None for a text that is not
        ASCII.
        """
        if not text.isascii():
            return None
        ids: list[int] = []
        for place, part in enumerate(self._split(text)):
            known = self._added[part] if place % 2 else self._parts.get(part)
            if known is None:
                known = list(chain.from_iterable(map(self.__getitem__, WORDS(part))))
                if len(part) <= LONGEST_PART and len(self._parts) < MOST_PARTS:
                    self._parts[part] = known
            ids += known
        return ids

    def __missing__(self, word: str) -> list[int]:
        """Returns the ids of a new word, by the model alone: a third of the time of a batch."""
        ids = [token.id for token in self._model.tokenize(word.translate(self._symbols))]
        if len(word) <= LONGEST_WORD and not word[-1].isdecimal():
            if self.size_bytes + WORD_BYTES > self.limit_bytes:
                self.clear()  # frequent words are soon learned again
            self[word] = ids
        return ids


def knows_words(backend: tokenizers.Tokenizer) -> bool:
    """Returns True when the ids of any text are the ids of its words."""
    model, pre_tokenizer = backend.model, backend.pre_tokenizer
    if not isinstance(model, models.BPE) or model.dropout or backend.normalizer is not None:
        return False
    if pre_tokenizer is None or backend.encode_special_tokens:
        return False
    words = msgspec.json.decode(pre_tokenizer.__getstate__())
    if words.get("type") != "ByteLevel" or words["add_prefix_space"] or not words["use_regex"]:
        return False
    return all(
        token.content
        and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        for token in backend.get_added_tokens_decoder().values()
    )


EMBEDDED = Path(__file__).parent / "data"
logger = logging.getLogger(__name__)
CHARACTER, TOKEN = 8, 2
"""Work of encoding a character, and of writing a token's text, in bytes as `call_long` counts them.
"""
WORD_START = "▁"
"""Sign of a blank in SentencePiece vocabularies."""


class LocalTokenizer(Tokenizer):
    """The `Tokenizer` of a folder or file; immutable, shared by all requests of a process."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        folder: TokenizerFolder,
        name: str,
        renderer: RequestTemplateRenderer | None = None,
    ) -> None:
        """`renderer` renders with the chat templates of requests; several tokenizers may share one."""
        # A file may have settings from training that cut or pad every text.
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.name = backend, name
        """`backend` is the library's object: shared, must not be changed."""
        self._templates = ChatTemplates(
            folder.chat_templates,
            folder.special_tokens,
            takes_media=folder.takes_media,
            renderer=renderer,
        )
        added = backend.get_added_tokens_decoder()
        self.added_ids: frozenset[int] | None = frozenset(added)
        self._special_ids = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        self._file, self._chat_templates = folder.tokenizer_file, folder.chat_templates
        # The last id follows from the count unless the vocabulary has holes, which are rare and
        # slow to find.
        count = backend.get_vocab_size(with_added_tokens=True)
        if backend.id_to_token(count - 1) is None or backend.id_to_token(count) is not None:
            count = max(backend.get_vocab().values()) + 1
        self.vocab_size: int = max(count, folder.model_vocab_size)
        eos_token = folder.special_tokens.get("eos_token")
        eos = None if eos_token is None else backend.token_to_id(eos_token)
        self.eos_token_id: int | None = (
            next(iter(folder.eos_token_ids), None) if eos is None else eos
        )
        self.eos_token_ids = frozenset(folder.eos_token_ids) | (
            {eos} if eos is not None else frozenset()
        )
        self._byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._bytes = TokenBytes(backend)
        self._texts = TokenTexts(self._bytes)
        self._words = WordEncoder(backend) if knows_words(backend) else None
        self._has_frame = backend.num_special_tokens_to_add(False) > 0
        self.tells_time = self._templates.tells_time
        words: dict[str, Bounded] = {} if self._words is None else {"words": self._words}
        self.caches = {"chat templates": self._templates, **words}

    @classmethod
    def from_path(
        cls,
        path: Path,
        name: str | None = None,
        chat_template: str | None = None,
        takes_media: bool | None = None,
        renderer: RequestTemplateRenderer | None = None,
    ) -> Self:
        """Loads a folder with `tokenizer.json`, or such a file.

        `chat_template` replaces the folder's templates, `takes_media` the value from `config.json`.
        TokenizerLoadError when the file is missing, or the library cannot read the file.
        """
        # The library would start a thread per core in every process, and wake one for each text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        folder = read_folder(path)
        if chat_template is not None:
            folder = replace(folder, chat_templates={DEFAULT_TEMPLATE: chat_template})
        if takes_media is not None:
            folder = replace(folder, takes_media=takes_media)
        try:
            backend = tokenizers.Tokenizer.from_buffer(folder.tokenizer_file.read_bytes())
        except Exception as error:  # the library raises bare Exception
            raise TokenizerLoadError(
                f"{folder.tokenizer_file} is not a tokenizer: {error}."
            ) from error
        return cls(backend, folder, name or str(path), renderer)

    @cached_property
    def longest_token(self) -> int:
        return max(map(len, self.backend.get_vocab()), default=1)

    def info(self) -> dict[str, object]:
        template = self._chat_templates.get(DEFAULT_TEMPLATE)
        return read_info(self._file) | ({} if template is None else {"chat_template": template})

    def check_ids(self, ids: Sequence[int]) -> None:
        for worst in (min(ids), max(ids)) if ids else ():
            if not 0 <= worst < self.vocab_size:
                raise TokenIdError(
                    f"Token id {worst} is outside the vocabulary of {self.vocab_size} tokens."
                )

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        if (
            self._words is not None
            and CHARACTER * len(text) <= QUICK_BYTES
            and not (add_special_tokens and self._has_frame)
            and (ids := self._words.encode(text)) is not None
        ):
            return ids
        return self.encode_many([text], add_special_tokens)[0]

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[list[int]]:
        def work() -> list[list[int]]:
            encode = self.backend.encode_batch_fast  # lets go of the interpreter, unlike `encode`
            return [
                found.ids for found in encode(list(texts), add_special_tokens=add_special_tokens)
            ]

        try:
            return call_long(CHARACTER * sum(map(len, texts)), work)
        except TypeError as error:
            raise not_unicode() from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        try:
            if TOKEN * len(ids) <= QUICK_BYTES:
                return self.backend.decode(ids, skip_special_tokens)
            return call_off_hub(self.backend.decode_batch, [ids], skip_special_tokens)[0]
        except OverflowError:
            check_id_range(ids)
            raise

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        size = TOKEN * len(ids)
        if self._byte_level:
            skipped = self._special_ids if skip_special_tokens else frozenset[int]()
            return call_long(size, byte_level_pieces, ids, self._texts, skipped)
        return call_long(size, stream_pieces, ids, self.backend, skip_special_tokens)

    def offsets(self, text: str, add_special_tokens: bool = False) -> list[tuple[int, int]] | None:
        size, encode = CHARACTER * len(text), self.backend.encode
        return call_long(size, encode, text, None, False, add_special_tokens).offsets

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        def work() -> list[str]:
            check_id_range(ids)
            return [self.backend.id_to_token(token_id) or "" for token_id in ids]

        return call_long(TOKEN * len(ids), work)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Returns texts with the blanks that a decoder drops from the start."""

        def work() -> list[str]:
            if self._byte_level:
                return [self._bytes[token_id].decode("utf-8", "replace") for token_id in ids]
            texts = []
            for token_id, token in zip(ids, self.token_strings(ids), strict=True):
                blanks = len(token) - len(token.lstrip(WORD_START))
                text = self.backend.decode([token_id], False)
                texts.append(" " * blanks + text.lstrip(" ") if blanks else text)
            return texts

        return call_long(TOKEN * len(ids), work)

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        return self._templates.render(messages, options)

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions = PLAIN_CHAT,
        check: TextCheck | None = None,
    ) -> list[int]:
        text = self._templates.render(messages, options)
        if check is not None and len(text) > QUICK_BYTES:
            check(text)
        return self.encode(text, options.add_special_tokens)


def default_tokenizer(
    chat_template: str | None = None, takes_media: bool | None = None
) -> LocalTokenizer:
    """Returns the embedded tokenizer: a byte-level BPE, lossless for any Unicode text."""
    return LocalTokenizer.from_path(EMBEDDED, "embedded", chat_template, takes_media)


def load_tokenizer(
    model: str,
    at: TokenizerSettings = TokenizerSettings(),  # noqa: B008 (immutable)
    takes_media: bool | None = None,
    renderer: RequestTemplateRenderer | None = None,
) -> Tokenizer:
    """Returns the embedded tokenizer if forced, else a render service, else one of a folder, file
    or hub.

    `at.tokenizer`, by default `model`, is a folder, file or `organisation/name` on the hub;
    `takes_media` None reads the model's `config.json`; `renderer` is that of `LocalTokenizer`.
    TokenizerLoadError when `at.tokenizer` cannot be loaded; a `model` then gets the embedded
    tokenizer.
    """
    chat_template = template_source(at.chat_template)
    if takes_media is None:
        takes_media = media_of(model_config(model))
    if at.force_dummy_tokenizer:
        return default_tokenizer(chat_template, takes_media)
    if at.render_url:
        from app.text.render import RenderTokenizer

        limits = {"timeout_s": at.render_timeout, "mm_timeout_s": at.mm_render_timeout}
        return RenderTokenizer(at.render_url, model=model, **limits)
    source = at.tokenizer or model
    path = Path(source).expanduser()
    try:
        if path.exists():
            return LocalTokenizer.from_path(path, source, chat_template, takes_media, renderer)
        if source.startswith((".", "/", "~")):
            raise TokenizerLoadError(f"There is nothing at {source}.")
        if (
            at.tokenizer is None and "/" not in source
        ):  # a model name such as `tiny` is no repository
            return default_tokenizer(chat_template, takes_media)
        cache = (
            None if at.tokenizers_cache_dir is None else Path(at.tokenizers_cache_dir).expanduser()
        )
        folder = fetch(source, at.hf_token, cache)
        return LocalTokenizer.from_path(folder, source, chat_template, takes_media, renderer)
    except TokenizerLoadError as error:
        if at.tokenizer is not None:
            raise
        logger.warning("no tokenizer for %s, using the embedded one: %s", source, error)
        return default_tokenizer(chat_template, takes_media)


def template_source(given: str | None) -> str | None:
    if given is None or "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"The chat template {given} cannot be read: {error}.") from error
