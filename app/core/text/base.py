"""The interface of all tokenizers, and their errors."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from app.core.base import Bounded

Message = Mapping[str, object]
"""One chat message as JSON: `role`, `content` (a string, a list of parts or null), other fields."""
TextCheck = Callable[[str], None]


class TokenizerError(Exception):
    """A failure between text and token ids. The message is one sentence for users."""


class TokenizerLoadError(TokenizerError):
    """The named tokenizer cannot be loaded, which stops the start."""


class TokenizerServiceError(TokenizerError):
    """The remote tokenizer gave no usable response: a server error, not the client's fault."""


class TokenizerInputError(TokenizerError, ValueError):
    """The request's text, ids or template are not valid: status 400 with this `param`.

    `value` is that of the field, if the message quotes it.
    """

    def __init__(self, message: str, param: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.param = param
        self.value = value


class TokenIdError(TokenizerInputError):
    """A token id outside the vocabulary, or outside 32 bits."""

    def __init__(self, token_id: int) -> None:
        super().__init__(f"Token id {token_id} is out of vocabulary")


class ChatTemplateError(TokenizerInputError):
    """A conversation without messages, or a chat template that is missing, invalid or fails."""


class TemplateOverrunError(Exception):
    """A chat template takes more time or memory than the event loop can give."""


class SurrogateError(TokenizerInputError):
    """A text with half of a surrogate pair."""

    def __init__(self) -> None:
        super().__init__("The text holds half of a surrogate pair, which no encoding can express.")


class ChatOptions(Struct, frozen=True, kw_only=True):
    """Options of rendering a conversation, with the names and defaults of vLLM's requests."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    keeps_developers: bool = False
    """The role `developer` stays, also if the template does not name it."""
    tools_key: bytes | None = None
    """Different for tools that a template may print differently.

    None unless all other options have the defaults.
    """


PLAIN_CHAT = ChatOptions()


class KeptTokens(Struct, frozen=True):
    """The tokens of a text that its request needs: the first `count`, or the last `from_end`."""

    count: int
    from_end: bool = False


class Tokenizer:
    """Converts text to token ids and back. Every method may raise `TokenizerError`."""

    name: str
    """Source: a folder, a hub name or the URL of a service."""
    vocab_size: int | None = None
    """Ids are in range(vocab_size); None if unknown, as for a remote service."""
    eos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    """Every id that ends a generation: `eos_token_id` and the ids of the generation config."""
    is_time_dependent = False
    """True if chat prompts contain the time or random values.

    Equal conversations may then have different prompts.
    """
    is_embedded = False
    """True for the embedded tokenizer, which cannot fail: the first text loads it."""
    caches: Mapping[str, Bounded] = {}

    @property
    def longest_token(self) -> int | None:
        """Characters of the longest token; None if unknown, as for a remote service."""
        return None

    def check_ids(self, ids: Sequence[int]) -> None:
        """Checks a prompt of token ids.

        Raises:
            TokenIdError: an id is outside the vocabulary.
        """
        raise NotImplementedError

    def encode(
        self, text: str, add_special_tokens: bool = False, kept: KeptTokens | None = None
    ) -> list[int]:
        """Returns the token ids of a text: all ids, or at least the `kept` ones."""
        return self.encode_many([text], add_special_tokens)[0]

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[list[int]]:
        """Returns the token ids of each text."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids`.

        Ids without a token add nothing, and bytes that are not UTF-8 add U+FFFD.
        """
        raise NotImplementedError

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        """Returns the text that each token adds to a stream; joined, the pieces are `decode(ids)`.

        Text that ends inside a character is held back until the token that completes the character.
        """
        raise NotImplementedError

    def offsets(self, text: str, add_special_tokens: bool = False) -> list[tuple[int, int]] | None:
        """Returns start and end of each token in `text`, in characters; None if unknown."""
        return None

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Returns the vocabulary's spelling of each token, as in `/tokenize` (`Ġworld`).

        A tokenizer without a vocabulary returns the text of each token.
        """
        return self.token_texts(ids)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token alone, as in log probabilities (` world`)."""
        return [self.decode([token_id]) for token_id in ids]

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Returns the prompt of a conversation."""
        return self.decode(self.encode_chat(messages, options))

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions = PLAIN_CHAT,
        check: TextCheck | None = None,
        kept: KeptTokens | None = None,
    ) -> list[int]:
        """Returns the token ids of a rendered conversation, as `encode` does.

        `check` may reject a long text before it is tokenized.
        """
        raise NotImplementedError
