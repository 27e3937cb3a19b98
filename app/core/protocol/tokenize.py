"""Bodies of routes that tokenize prompts."""

from typing import Annotated, ClassVar

from msgspec import Meta

from app.core.protocol import rules
from app.core.protocol.chat import Message, convert_messages
from app.core.protocol.coercion import JsonObject, LaxFields
from app.core.protocol.decoding import RawRequest, Request
from app.core.protocol.options import INT64_MAX, Tool


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
