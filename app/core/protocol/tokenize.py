"""Bodies of routes that tokenize prompts, or that score pods by their cached blocks."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from app.core.protocol import rules
from app.core.protocol.chat import Message, convert_messages
from app.core.protocol.coercion import JsonObject, LaxFields
from app.core.protocol.decoding import RawRequest, Request
from app.core.protocol.options import INT64_MAX, Tool

TOKEN_MAX = 2**32 - 1


class TokenizeChatRequest(Request, kw_only=True):
    """The body of ``POST /tokenize`` with a conversation."""

    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    tools: list[Tool] | None = None

    lax_fields: ClassVar[LaxFields] = {"messages": convert_messages}

    def check_rules(self: "TokenizeChatRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)


class TokenizePromptRequest(Request, kw_only=True):
    """The body of ``POST /tokenize`` with a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(Request, kw_only=True):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=INT64_MAX)]]


class ScoreTextRequest(Request, kw_only=True):
    """The body of ``POST /score_completions``."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None


class ScoreChatRequest(TokenizeChatRequest, kw_only=True):
    """The body of ``POST /score_chat_completions``.

    A generation prompt is added by default, as in vLLM.
    """

    documents: list[JsonObject] | None = None
    return_assistant_tokens_mask: bool | None = False
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None


class MediaSpan(Struct, frozen=True):
    """The placeholder tokens of a media item in a prompt."""

    identifier: str
    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=1)]


class ScoreTokensRequest(Request, kw_only=True):
    """The body of ``POST /score_tokens``."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=TOKEN_MAX)]]
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    media: list[MediaSpan] | None = None


TOKENIZE_REQUESTS: tuple[type[TokenizeChatRequest | TokenizePromptRequest], ...] = (
    TokenizeChatRequest,
    TokenizePromptRequest,
)
"""The two forms of a body of ``POST /tokenize``, in order of trial."""
