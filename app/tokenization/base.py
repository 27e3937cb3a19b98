"""The interface of all tokenizers, and their errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Message = Mapping[str, object]
"""One chat message as it came in JSON: `role`, `content` (a string, a list of parts or null) and the rest."""


class TokenizerError(Exception):
    """Anything that goes wrong between text and token ids. The message is one sentence for a reader of it."""


class TokenizerLoadError(TokenizerError):
    """The tokenizer that was asked for cannot be loaded: the start stops."""


class TokenizerServiceError(TokenizerError):
    """The remote tokenizer gave no usable answer: the fault of the servers, not of the request."""


class TokenizerInputError(TokenizerError, ValueError):
    """The request's text, ids or template cannot be used: status 400 with this `param`."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TokenIdError(TokenizerInputError):
    """A token id that no vocabulary can hold, or that this vocabulary does not hold."""


class ChatTemplateError(TokenizerInputError):
    """No chat template or no message, or a template that does not compile or refused the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt; names and defaults as in a request (vllm-api.md section 3.1)."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None


PLAIN_CHAT = ChatOptions()


class BoundedCache(Protocol):
    """Something that is kept for later, within a limit of memory."""

    @property
    def size_bytes(self) -> int:
        """Memory that it holds."""

    @property
    def limit_bytes(self) -> int:
        """Memory that it may hold."""


class Tokenizer(Protocol):
    """Text to token ids and back. Every method may raise `TokenizerError`."""

    @property
    def name(self) -> str:
        """The folder, hub name or service that it came from."""

    @property
    def vocab_size(self) -> int | None:
        """Ids are in range(vocab_size); None when a remote service does not tell."""

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation: the one above and those of the generation config."""

    @property
    def added_ids(self) -> frozenset[int] | None:
        """Ids of tokens that were added to the learned ones; None when a remote service does not tell."""

    @property
    def tells_time(self) -> bool:
        """A conversation's prompt tells the time, and so is another one every time."""

    @property
    def longest_token(self) -> int | None:
        """Characters of the longest token; None when a remote service does not tell."""

    @property
    def caches(self) -> Mapping[str, BoundedCache]:
        """Its caches, by name."""

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise `TokenIdError` naming the first id that is outside the vocabulary (prompts given as ids)."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`."""

    def encode_many(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
        """Return the token ids of each text, in order."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids without a token add nothing, bytes that are not UTF-8 U+FFFD."""

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        """Return the text that each token adds to a stream; joined, they are `decode(ids)`.

        Text is held back while it ends inside a character, and comes with the token that completes it.
        """

    def offsets(self, text: str, add_special_tokens: bool = False) -> list[tuple[int, int]] | None:
        """Return where each token of `text` begins and ends, in characters; None where that is not known."""

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens in the vocabulary's own spelling."""

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's own spelling of each token, as `/tokenize` lists them (`Ġworld`)."""

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token on its own, as log probabilities list them (` world`)."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that the token stands for, also where they are only part of a character."""

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Return the prompt of a conversation as text."""

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        """Return the prompt of a conversation as token ids."""


def not_unicode() -> TokenizerInputError:
    """The error for a text that cannot be encoded."""
    return TokenizerInputError("The text holds half of a surrogate pair, which no encoding can express.")


def json_length(value: object, most: int) -> int:
    """About how many members and characters the JSON of `value` has; no more is counted than `most`."""
    length, waiting = 0, [value]
    for each in waiting:  # the list grows meanwhile
        length += 1
        if isinstance(each, str):
            length += len(each)
        elif isinstance(each, dict):
            length += len(each)
            waiting += each.values() if length < most else ()
        elif isinstance(each, Sequence):
            length += len(each)
            waiting += each if length < most else ()
        if length >= most:
            return most
    return length
