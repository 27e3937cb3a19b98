"""The four /render routes: requests of each family as generate requests, as vLLM dumps them."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import fields

from app.core.api.answer_limits import MAX_ANSWER_BYTES
from app.core.api.chat.media import BuiltPrompt
from app.core.api.chat.prompt import chat_options, chat_prompt
from app.core.api.chat.tools import check_tool_choice
from app.core.api.completions import completion_prompt
from app.core.api.pipeline import RequestPipeline
from app.core.base.callers import claim_memory
from app.core.base.clock.pause import paced
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.options import StreamOptions
from app.core.protocol.validation import GenerationRequest, ValidatedRequest, fit_prompt
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, post
from app.extensions.anthropic.protocol import MessagesRequest
from app.extensions.anthropic.routes import message_chats
from app.extensions.responses.chat import chat_request as chat_of_response
from app.extensions.responses.routes import response_prompt
from app.extensions.responses.rules import ResponseRules
from app.extensions.scale_out.parse_context import parse_context_of
from app.extensions.scale_out.protocol import GenerateRequest
from app.extensions.scale_out.rules import rules_of
from app.extensions.scale_out.sampling_params import rendered_form, sampling_params
from vllm_facts.reasoning_marks import marks_of, reasoning_has_ended

TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
"""Fields of transfers, which requests may also have among their extra arguments."""
RENDERED = "GenerateRequest."
"""Beginning of the names of a rendered request's fields in the history."""
COHERE_FORMAT = ("cohere_format", "cmd4")
"""Variable of the chat template that vLLM sets for each model, and its value."""


def routes(pipeline: RequestPipeline) -> list[Route]:
    """Returns the four routes."""
    handlers = RenderHandlers(pipeline)
    chat_docs = RouteDocs(
        body=(ChatCompletionRequest,),
        example={"messages": EXAMPLE_CHAT, "max_tokens": 8},
    )
    message_docs = RouteDocs(
        body=(MessagesRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT, "max_tokens": 8},
    )
    completion_docs = RouteDocs(
        body=(CompletionRequest,),
        example={"prompt": "hello", "max_tokens": 8},
    )
    response_docs = RouteDocs(
        body=(pipeline.version.rules(ResponseRules).request_type,), example={"input": "hello"}
    )
    return [
        post("/v1/chat/completions/render", handlers.render_chat, docs=chat_docs),
        post("/v1/messages/render", handlers.render_message, docs=message_docs),
        post("/v1/completions/render", handlers.render_completion, docs=completion_docs),
        post("/v1/responses/render", handlers.render_response, docs=response_docs),
    ]


def text_prompt(prompt: BuiltPrompt, text: object, request: GenerationRequest) -> JsonObject:
    """Returns a prompt as vLLM up to 0.17 renders it; one that was sent as ids has no text."""
    fields: JsonObject = {"prompt_token_ids": prompt.ids}
    if isinstance(text, str):
        fields["prompt"] = text
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    return fields


class RenderHandlers:
    """Handlers of the four routes."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        self._pipeline = pipeline
        self._defaults = body_defaults(rules_of(pipeline).describes_parsing)
        self._chat_of_message = message_chats(pipeline)
        absent = pipeline.version.absent_fields
        self._absent = {name.removeprefix(RENDERED) for name in absent if name.startswith(RENDERED)}

    def render_chat(self, context: RequestContext) -> Response:
        """The tokens and sampling parameters for a chat."""
        chat = self._pipeline.decode(context, ChatCompletionRequest)
        return self.respond_chat(context, chat)

    def render_message(self, context: RequestContext) -> Response:
        """The tokens and sampling parameters for a message."""
        message = self._pipeline.decode(context, MessagesRequest)
        chat = self._chat_of_message(message)
        if chat.stream:
            chat.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=True)
        has_choice = chat.tools is not None or message.tool_choice is not None
        return self.respond_chat(context, chat, has_choice=has_choice)

    def render_completion(self, context: RequestContext) -> Response:
        """The tokens and sampling parameters for a text completion: one object per prompt."""
        pipeline = self._pipeline
        request = pipeline.decode(context, CompletionRequest)
        validated = self._validate(request)
        texts = request.prompts()
        prompts = [completion_prompt(pipeline, request, prompt) for prompt in texts]
        validated.check_sampling([len(prompt.ids) for prompt in prompts])
        if rules_of(pipeline).renders_texts:
            pairs = zip(prompts, texts, strict=True)
            return json_response([text_prompt(prompt, text, request) for prompt, text in pairs])
        request_id = pipeline.identity.response_meta("cmpl", context, request.request_id, "").id
        answer = RenderedPrompts()
        for number, (prompt, text) in enumerate(paced(zip(prompts, texts, strict=True))):
            prompt_id = request_id if len(prompts) == 1 else f"{request_id}-{number}"
            extra_fields: JsonObject = {"request_id": prompt_id}
            if request.return_token_offsets and isinstance(text, str):
                extra_fields["token_offsets"] = self._offsets(request, text, prompt.ids)
            body = self._generate_request(validated, prompt, validated.max_tokens[number])
            answer.add(self._rendered(body, extra_fields))
        return json_response(answer.json())

    def render_response(self, context: RequestContext) -> Response:
        """The tokens and sampling parameters for a response without a previous response."""
        pipeline = self._pipeline
        request = pipeline.decode(context, pipeline.version.rules(ResponseRules).request_type)
        chat = chat_of_response(request)
        validated = self._validate(chat)
        if request.previous_response_id is not None:
            name = "previous_response_id"
            message = f"{name} cannot be rendered: nothing is kept."
            raise ApiError(400, "invalid_request_error", message, name)
        prompt = response_prompt(pipeline, request, chat, renders_only=True)
        validated.check_sampling([len(prompt.ids)])
        extra_fields: JsonObject = {
            "request_id": request.request_id or f"resp_{pipeline.identity.fresh_id()}",
            "reasoning_parser_kwargs": self._parser_kwargs(chat),
            "stream_options": None,
        }
        if rules_of(pipeline).describes_parsing:
            extra_fields["return_token_ids"] = None
        else:
            extra_fields["kv_transfer_params"] = request.kv_transfer_params
            extra_fields["ec_transfer_params"] = request.ec_transfer_params
        body = self._generate_request(
            validated, prompt, validated.max_tokens[0], missing_extra_args={}
        )
        return json_response(self._rendered(body, extra_fields))

    def respond_chat(
        self, context: RequestContext, chat: ChatCompletionRequest, *, has_choice: bool = True
    ) -> Response:
        """Returns the tokens and sampling parameters for `chat`.

        Without `has_choice`, the parse context has null as the choice of tools.

        Raises:
            ApiError: As for a chat.
        """
        pipeline = self._pipeline
        validated = self._validate(chat)
        check_tool_choice(chat, pipeline.live.current.tools)
        prompt = chat_prompt(pipeline, chat, chat.messages, renders_only=True)
        validated.check_sampling([len(prompt.ids)])
        if rules_of(pipeline).renders_texts:
            options = chat_options(chat, pipeline.chat_rules)
            text = pipeline.tokenizer.render_chat(chat.messages, options)
            return json_response([chat.messages, [text_prompt(prompt, text, chat)]])
        reasoning_ended: bool | None = None
        if not chat.include_reasoning:
            reasoning_ended = True
        elif pipeline.limits.reasons:
            text = pipeline.tokenizer.decode(prompt.ids, False)
            parser = pipeline.live.current.reply.reasoning_parser
            marks = marks_of(parser, pipeline.tokenizer.encode)
            reasoning_ended = reasoning_has_ended(text, marks)
        meta = pipeline.identity.response_meta("chatcmpl", context, chat.request_id, "")
        extra_fields: JsonObject = {
            "request_id": meta.id,
            "reasoning_ended": reasoning_ended,
            "reasoning_parser_kwargs": self._parser_kwargs(chat),
        }
        if rules_of(pipeline).describes_parsing:
            parse_context = parse_context_of(chat, self._template_kwargs(chat))
            if not has_choice:
                parse_context["tool_choice"] = None
            extra_fields["parse_context"] = parse_context
        if chat.return_token_offsets and prompt.features is None:
            options = chat_options(chat, pipeline.chat_rules)
            text = pipeline.tokenizer.render_chat(chat.messages, options)
            extra_fields["token_offsets"] = self._offsets(chat, text, prompt.ids)
        body = self._generate_request(validated, prompt, validated.max_tokens[0])
        return json_response(self._rendered(body, extra_fields))

    def _rendered(self, body: JsonObject, extra_fields: JsonObject) -> JsonObject:
        """Returns a rendered request, with the fields that its version has."""
        fields = body | extra_fields | {"assistant_tokens_mask": None}
        return {name: value for name, value in fields.items() if name not in self._absent}

    def _validate(self, request: GenerationRequest) -> ValidatedRequest[GenerationRequest]:
        model = self._pipeline.models.resolve(request.model)
        if request.use_beam_search:
            raise bad_request("Requests with beam search cannot be rendered.")
        return ValidatedRequest(request, model, self._pipeline.limits)

    def _generate_request(
        self,
        validated: ValidatedRequest[GenerationRequest],
        prompt: BuiltPrompt,
        max_tokens: int,
        missing_extra_args: JsonObject | None = None,
    ) -> JsonObject:
        """Returns the body for `/inference/v1/generate`, without the fields of a family.

        `missing_extra_args` stands for the extra arguments of a request that has none.
        """
        request = validated.request
        if not prompt.ids:
            raise bad_request("The prompt has no tokens.")
        settings = self._pipeline.live.current
        form = rendered_form(validated, settings.tools, self._pipeline.schemas)
        features: JsonObject | None = None
        if prompt.features is not None:
            features = {**prompt.features}
            if request.mm_payload == "none":
                features["kwargs_data"] = None
        extra_args = self._extra_args(request) or missing_extra_args
        moved_fields: JsonObject = {}
        if rules_of(self._pipeline).describes_parsing:
            extra_args, moved_fields = move_transfers(extra_args)
            moved_fields["return_token_ids"] = request.return_token_ids
        params = sampling_params(
            validated,
            max_tokens,
            structured_outputs=form,
            extra_args=extra_args,
            reasoning_parser=settings.reply.reasoning_parser,
        )
        return (
            self._defaults
            | moved_fields
            | {
                "token_ids": prompt.ids,
                "features": features,
                "sampling_params": params,
                "model": request.model,
                "stream": bool(request.stream),
                "stream_options": request.stream_options if request.stream else None,
                "cache_salt": request.cache_salt,
                "priority": request.priority,
            }
        )

    def _extra_args(self, request: GenerationRequest) -> JsonObject:
        extra_args: JsonObject = {**(request.vllm_xargs or {})}
        for name in TRANSFERS:
            if value := getattr(request, name):
                extra_args[name] = value
        return extra_args

    def _offsets(
        self, request: GenerationRequest, text: str, ids: Sequence[int]
    ) -> Sequence[object] | None:
        """Returns the position of each token of the prompt in `text`.

        Returns None where the tokenizer has no positions.
        """
        offsets = self._pipeline.tokenizer.offsets(text, request.add_special_tokens)
        if offsets is None:
            return None
        limit = max(len(offsets), self._pipeline.limits.max_model_len)
        numbers = fit_prompt(request, range(len(offsets)), limit, rules=self._pipeline.limits.rules)
        if len(numbers) != len(ids):
            return None
        return [offsets[number] for number in numbers]

    def _parser_kwargs(self, chat: ChatCompletionRequest) -> JsonObject | None:
        """Returns the variables of the chat template that a parser of thoughts reads."""
        if not self._pipeline.limits.reasons:
            return None
        return {"chat_template_kwargs": self._template_kwargs(chat)}

    def _template_kwargs(self, chat: ChatCompletionRequest) -> JsonObject:
        """Returns the variables of the chat template, without those that null or auto unset."""
        kwargs: JsonObject = {**(chat.chat_template_kwargs or {})}
        sets_thinking = chat.reasoning_effort is not None and "enable_thinking" not in kwargs
        for name in (
            "add_generation_prompt",
            "continue_final_message",
            "documents",
            "reasoning_effort",
        ):
            value = getattr(chat, name)
            if value is not None:
                kwargs[name] = value
        if sets_thinking:
            kwargs["enable_thinking"] = chat.reasoning_effort != "none"
        defaults: JsonObject = {**self._pipeline.chat_rules.template_kwargs}
        defaults.setdefault(*COHERE_FORMAT)
        set_kwargs = {name: value for name, value in kwargs.items() if value not in (None, "auto")}
        return defaults | set_kwargs


class RenderedPrompts:
    """The answer for all prompts of a request, which repeats the request's fields for each one."""

    def __init__(self) -> None:
        self._size = 0
        self._parts: list[bytes] = []

    def add(self, rendered: JsonObject) -> None:
        """Adds the rendered request of the next prompt, and claims the memory of its text.

        Raises:
            ApiError: 400 if the answer is too large.
            MemoryFullError, MemoryExceededError: as `claim_memory`.
        """
        part = msgspec.json.encode(rendered)
        self._size += len(part)
        if self._size > MAX_ANSWER_BYTES:
            raise bad_request(
                "The rendered requests repeat their parameters for each prompt, and exceed the "
                f"limit of {MAX_ANSWER_BYTES >> 20} MiB for a response. Send fewer prompts at once."
            )
        claim_memory(2 * len(part))  # the part, and its copy in the answer
        self._parts.append(part)

    def json(self) -> bytes:
        """Returns the answer: a list."""
        return b"[%b]" % b",".join(self._parts)


def body_defaults(has_parse_context: bool) -> JsonObject:
    """Returns the fields of `/inference/v1/generate` in vLLM's order, with defaults."""
    defaults: JsonObject = {}
    for field in fields(GenerateRequest):
        if field.name != "ignore_eos":
            defaults[field.name] = field.default
    if not has_parse_context:
        del defaults["parse_context"]
    return defaults


def move_transfers(extra_args: JsonObject | None) -> tuple[JsonObject | None, JsonObject]:
    """Splits the fields of transfers from the other extra arguments; empty ones stay."""
    if not extra_args:
        return extra_args, {}
    transfers: JsonObject = {name: extra_args.get(name) for name in TRANSFERS}
    remaining = {name: value for name, value in extra_args.items() if name not in TRANSFERS}
    return remaining or None, transfers
