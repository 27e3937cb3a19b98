"""Messages of a request as a prompt, and as the text that mode `echo` repeats; routes to tokenize.

POST /tokenize, POST /detokenize and GET /tokenizer_info: vllm-api.md section 5.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from app.base.clock.pause import pause_if_possible
from app.serving.api.chat.media import BuiltPrompt, features
from app.serving.api.chat.parts import MOST_TOOLS, template_kwargs
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, get, post
from app.serving.protocol.chat import ChatCompletionRequest, Message, content_text
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.decoding import decode, decode_first
from app.serving.protocol.tokenize import TOKENIZE_REQUESTS, DetokenizeRequest, TokenizeChatRequest
from app.serving.protocol.validation import fit_prompt
from app.text.base import PLAIN_CHAT, ChatOptions
from app.text.huggingface import LocalTokenizer


def chat_prompt(
    pipeline: RequestPipeline, request: ChatCompletionRequest, messages: Sequence[Message]
) -> BuiltPrompt:
    """Returns the conversation as tokens. ApiError 400 when it does not render or fit. Pauses."""
    turns: list[tuple[str, str]] = []
    composed: list[Message] = []
    text = ""
    for message in messages:
        content = message.get("content")
        if type(content) is str:
            text = content
        else:
            text = content_text(content)
            composed.append(message)
        pipeline.check_text(text)
        if pipeline.keeps_turns:
            turns.append((str(message["role"]), text))
    options = chat_options(request, pipeline.chat_rules)
    ids: Sequence[int] | None = None
    if request.kv_transfer_params and FORWARDED in request.kv_transfer_params:
        ids = _forwarded_ids(pipeline, request, composed)
    if ids is None:
        check = pipeline.check_text if request.truncate_prompt_tokens is None else None
        ids = pipeline.tokenizer.encode_chat(messages, options, check)
        ids = fit_prompt(request, ids, pipeline.limits.max_model_len)
    media = features(composed, ids) if composed else None
    if messages and messages[-1].get("tool_calls"):
        text = last_message_text(messages)
    return BuiltPrompt(ids, text, tuple(turns), media)


FORWARDED = "prompt_token_ids"


def _forwarded_ids(
    pipeline: RequestPipeline, request: ChatCompletionRequest, composed: Sequence[Message]
) -> list[int] | None:
    """Returns the tokens from the prefill side; None where `composed` messages have to be rendered."""
    ids = (request.kv_transfer_params or {}).pop(FORWARDED)
    if ids is None or request.echo or composed and features(composed, (0,)):
        return None
    param = f"kv_transfer_params.{FORWARDED}"
    if (
        not isinstance(ids, list)
        or not ids
        or any(type(each) is not int or each < 0 for each in ids)
    ):
        raise bad_request(f"{param} must be a list of token ids that is not empty", param)
    pipeline.limits.check_vocabulary(param, ids)
    return ids


def own_template(template: str | None, kwargs: JsonObject | None, rules: ChatRules) -> str | None:
    """Returns the request's chat template, if any.

    ApiError 400 where requests may not bring one.
    """
    given = template, (kwargs or {}).get("chat_template")
    if given != (None, None) and not rules.trusts_templates:
        raise bad_request("A chat template in the request needs --trust-request-chat-template.")
    return template or None


def chat_options(
    asked: ChatCompletionRequest | TokenizeChatRequest, rules: ChatRules
) -> ChatOptions:
    """Returns the options of the chat template. Raises ApiError like `own_template`. Pauses."""
    template = asked.chat_template
    kwargs: Mapping[str, object] | None = asked.chat_template_kwargs
    if template is not None or kwargs:
        template = own_template(template, asked.chat_template_kwargs, rules)
    if kwargs or rules.template_kwargs or getattr(asked, "reasoning_effort", None) is not None:
        kwargs = template_kwargs(asked, rules.template_kwargs)
    wanted, documents = asked.tools, getattr(asked, "documents", None)
    if rules.hides_unused_tools and getattr(asked, "tool_choice", None) == "none":
        wanted = None
    special = (
        asked.continue_final_message or asked.add_special_tokens or not asked.add_generation_prompt
    )
    if not (special or template or wanted or kwargs or documents):
        return PLAIN_CHAT
    tools = []
    for number, tool in enumerate(wanted or (), 1):
        tools.append(msgspec.to_builtins(tool))
        if number % MOST_TOOLS == 0:
            pause_if_possible()
    return ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=asked.add_special_tokens,
        tools=None if wanted is None else tools,
        documents=documents,
        chat_template=template,
        chat_template_kwargs=kwargs,
    )


def last_message_text(messages: Sequence[Message]) -> str:
    """The text of the last message, whatever its role, with its tool calls (simulator.md 5.2)."""
    if not messages:
        return ""
    text, calls = content_text(messages[-1].get("content")), messages[-1].get("tool_calls")
    for call in calls if isinstance(calls, list) else ():  # unchecked values of other roles
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("name"):
            text += f"[{function.get('name')}({function.get('arguments')})]"
    return text


class TokensAnswer(Struct):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


def routes(pipeline: RequestPipeline, with_info: bool) -> list[Route]:
    body, models, tokenizer = pipeline.body, pipeline.models, pipeline.tokenizer

    def tokenize(context: RequestContext) -> Response:
        """The token ids of a text or of a conversation."""
        asked = decode_first(body.read(context), context.content_type, TOKENIZE_REQUESTS)
        models.resolve(asked.model)
        if isinstance(asked, TokenizeChatRequest):
            ids = tokenizer.encode_chat(asked.messages, chat_options(asked, pipeline.chat_rules))
        else:
            ids = tokenizer.encode(asked.prompt, asked.add_special_tokens)
        texts = tokenizer.token_strings(ids) if asked.return_token_strs else None
        return json_response(TokensAnswer(len(ids), models.max_model_len, ids, texts))

    def detokenize(context: RequestContext) -> Response:
        """The text of token ids."""
        asked = decode(body.read(context), context.content_type, DetokenizeRequest)
        models.resolve(asked.model)
        return json_response({"prompt": tokenizer.decode(asked.tokens, False)})

    def tokenizer_info(context: RequestContext) -> Response:
        """The configuration of the tokenizer; of a remote one only its class."""
        if isinstance(tokenizer, LocalTokenizer):
            return json_response(tokenizer.info())
        return json_response({"tokenizer_class": type(tokenizer).__name__})

    tokenize_docs = RouteDocs(
        body=TOKENIZE_REQUESTS,
        example={"prompt": "hello"},
        answer=TokensAnswer,
    )
    detokenize_docs = RouteDocs(body=(DetokenizeRequest,), example={"tokens": [120, 121]})
    return [
        post("/tokenize", tokenize, docs=tokenize_docs),
        post("/detokenize", detokenize, docs=detokenize_docs),
        *([get("/tokenizer_info", tokenizer_info)] if with_info else []),
    ]
