"""A tokenizer from a local `tokenizer.json`, on the `tokenizers` library."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec
import tokenizers
from cachetools import LRUCache
from tokenizers import decoders

from app.clock.offload import call_off_hub
from app.tokenization.base import (
    PLAIN_CHAT,
    ChatOptions,
    Message,
    TokenIdError,
    TokenizerInputError,
    TokenizerLoadError,
)
from app.tokenization.chat_template import ChatTemplates
from app.tokenization.detokenize import ByteLevelPieces, StreamPieces, TokenBytes, check_id_range
from app.tokenization.folder import DEFAULT_TEMPLATE, TokenizerFolder, read_folder

LONG_TEXT = 2_000
"""Characters from which a text is encoded beside the event loop (about 0.5 ms of work)."""
LONG_SEQUENCE = 8_000
"""Tokens from which ids are decoded beside the event loop (about as much)."""
Detokenizer = Callable[[Sequence[int]], list[str]]
"""Token ids -> the text that each adds."""
KEPT_CHATS = 1_000_000
"""Tokens in the memory of encoded conversations."""
LARGEST_KEPT_CHAT = 20_000
"""Bytes of JSON up to which a conversation is kept there."""
WORD_START = "▁"
"""How SentencePiece vocabularies write a blank."""


class LocalTokenizer:
    """The `Tokenizer` of a folder or file; immutable, shared by all requests of a process."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        folder: TokenizerFolder,
        name: str,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        # A file may carry settings from training that cut or pad every text.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._templates = ChatTemplates(folder.chat_templates, folder.special_tokens, now)
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.name = name
        self.vocab_size: int = max(self._last_id() + 1, folder.model_vocab_size)
        eos_token = folder.special_tokens.get("eos_token")
        eos = None if eos_token is None else backend.token_to_id(eos_token)
        self.eos_token_id: int | None = next(iter(folder.eos_token_ids), None) if eos is None else eos
        self.eos_token_ids = frozenset(folder.eos_token_ids) | ({eos} if eos is not None else frozenset())
        self._byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._bytes = TokenBytes(backend)
        self._chats: LRUCache[bytes, list[int]] = LRUCache(KEPT_CHATS, getsizeof=len)
        self._pieces, self._all_pieces = self._detokenizer(True), self._detokenizer(False)

    @classmethod
    def from_path(
        cls, path: Path, name: str | None = None, chat_template: str | None = None
    ) -> "LocalTokenizer":
        """Load a folder that holds `tokenizer.json`, or such a file; `chat_template` replaces its own ones.

        Raises:
            TokenizerLoadError: nothing there, or nothing that the library understands.
        """
        folder = read_folder(path)
        if chat_template is not None:
            folder = replace(folder, chat_templates={DEFAULT_TEMPLATE: chat_template})
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder.tokenizer_file))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerLoadError(f"{folder.tokenizer_file} is not a tokenizer: {error}.") from error
        return cls(backend, folder, name or str(path))

    def _last_id(self) -> int:
        # The count is the last id unless the vocabulary has holes, which is rare and slow to find out.
        count = self._backend.get_vocab_size(with_added_tokens=True)
        holes = self._backend.id_to_token(count - 1) is None or self._backend.id_to_token(count) is not None
        return max(self._backend.get_vocab().values()) if holes else count - 1

    @cached_property
    def longest_token(self) -> int:
        """See `Tokenizer.longest_token`. Counted when a text is first long enough to ask."""
        return max(map(len, self._backend.get_vocab()), default=1)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's own object: shared, and not to be changed."""
        return self._backend

    def _detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        if self._byte_level:
            return ByteLevelPieces(self._backend, self._special_ids if skip_special_tokens else frozenset())
        return StreamPieces(self._backend, skip_special_tokens)

    def check_ids(self, ids: Sequence[int]) -> None:
        """See `Tokenizer.check_ids`; a negative id is named before one that is too large."""
        for worst in (min(ids), max(ids)) if ids else ():
            if not 0 <= worst < self.vocab_size:
                raise TokenIdError(f"Token id {worst} is outside the vocabulary of {self.vocab_size} tokens.")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """See `Tokenizer.encode`. Long texts leave the event loop alone."""
        if len(text) > LONG_TEXT:
            return self.encode_many([text], add_special_tokens)[0]
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise _not_unicode() from error

    def encode_many(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
        """See `Tokenizer.encode_many`."""
        batch = self._backend.encode_batch_fast
        try:
            if sum(map(len, texts)) > LONG_TEXT:
                encodings = call_off_hub(batch, list(texts), add_special_tokens=add_special_tokens)
            else:
                encodings = batch(list(texts), add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise _not_unicode() from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        try:
            if len(ids) > LONG_SEQUENCE:
                return call_off_hub(self._backend.decode_batch, [ids], skip_special_tokens)[0]
            return self._backend.decode(ids, skip_special_tokens)
        except OverflowError:
            check_id_range(ids)
            raise

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        """See `Tokenizer.pieces`."""
        return self._pieces(ids) if skip_special_tokens else self._all_pieces(ids)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.token_strings`; an id without a token gives an empty string."""
        check_id_range(ids)
        return [self._backend.id_to_token(token_id) or "" for token_id in ids]

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.token_texts`. Blanks that a decoder drops from the start of a text are kept."""
        if self._byte_level:
            return [self._bytes[token_id].decode("utf-8", "replace") for token_id in ids]
        texts = []
        for token_id, token in zip(ids, self.token_strings(ids), strict=True):
            blanks = len(token) - len(token.lstrip(WORD_START))
            text = self._backend.decode([token_id], False)
            texts.append(" " * blanks + text.lstrip(" ") if blanks else text)
        return texts

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        if self._byte_level:
            return self._bytes[token_id]
        token = self.token_strings([token_id])[0]
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):  # SentencePiece
            return bytes.fromhex(token[3:5])
        return self.token_texts([token_id])[0].encode()

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """See `Tokenizer.render_chat`."""
        return self._templates.render(messages, options)

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        """See `Tokenizer.encode_chat`. What comes again, as from probes and load tests, is remembered."""
        try:
            key = msgspec.json.encode((messages, options))
        except UnicodeEncodeError as error:
            raise _not_unicode() from error
        ids = self._chats.get(key)
        if ids is None:
            ids = self.encode(self.render_chat(messages, options), options.add_special_tokens)
            if not self._templates.tells_time and len(key) <= LARGEST_KEPT_CHAT:
                self._chats[key] = ids
        return ids


def _not_unicode() -> TokenizerInputError:
    return TokenizerInputError("The text holds half of a surrogate pair, which no encoding can express.")
