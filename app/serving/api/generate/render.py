"""The four /render routes: requests of each family as generate requests, as vLLM dumps them."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import fields

from app.engine.core.constraints import Constraints
from app.engine.core.request import ToolCalls
from app.engine.parsing import THINK_BEGIN, THINK_END
from app.serving.api.anthropic import message_chats
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.chat.parts import check_tool_choice, tool_calls_of
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.completions import completion_prompt
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.responses.routes import response_prompt
from app.serving.api.sampling import text_form
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, post
from app.serving.protocol import generate
from app.serving.protocol.anthropic import MessagesRequest
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import EXAMPLE_CHAT
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.options import StreamOptions, StructuredOutputs
from app.serving.protocol.response_chat import chat_request as chat_of_response
from app.serving.protocol.responses import ResponsesRequest
from app.serving.protocol.validation import GenerationRequest, ValidatedRequest, fit_prompt
from config.settings import ToolSettings

BODY: JsonObject = {
    field.name: field.default
    for field in fields(generate.GenerateRequest)
    if field.name != "ignore_eos"
}
"""Fields of ``/inference/v1/generate`` in vLLM's order, with defaults."""


def routes(pipeline: RequestPipeline) -> list[Route]:
    chat_of_message = message_chats(pipeline)

    def render_chat(context: RequestContext) -> Response:
        """The tokens and sampling parameters for a chat."""
        return _rendered_chat(pipeline, context, pipeline.decode(context, ChatCompletionRequest))

    def render_message(context: RequestContext) -> Response:
        """The tokens and sampling parameters for a message."""
        chat = chat_of_message(pipeline.decode(context, MessagesRequest))
        if chat.stream:
            chat.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=True)
        return _rendered_chat(pipeline, context, chat)

    def render_completion(context: RequestContext) -> Response:
        """The tokens and sampling parameters for a text completion: one object per prompt."""
        asked = pipeline.decode(context, CompletionRequest)
        accepted = _admit(pipeline, asked)
        texts = asked.prompts()
        prompts = [completion_prompt(pipeline, asked, prompt) for prompt in texts]
        accepted.check_sampling([len(prompt.ids) for prompt in prompts])
        request_id = pipeline.identity.response_meta("cmpl", context, asked.request_id, "").id
        rendered = []
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            more: JsonObject = {
                "request_id": request_id if len(prompts) == 1 else f"{request_id}-{number}"
            }
            if asked.return_token_offsets and isinstance(text, str):
                more["token_offsets"] = _offsets(pipeline, asked, text, prompt.ids)
            rendered.append(_generate_request(pipeline, accepted, prompt, number, more))
        return json_response(rendered)

    def render_response(context: RequestContext) -> Response:
        """The tokens and sampling parameters for a response that does not follow on another one."""
        asked = pipeline.decode(context, ResponsesRequest)
        chat = chat_of_response(asked)
        accepted = _admit(pipeline, chat)
        if asked.previous_response_id is not None:
            name = "previous_response_id"
            raise ApiError(
                400, "invalid_request_error", f"{name} cannot be rendered: nothing is kept.", name
            )
        prompt = response_prompt(pipeline, asked, chat)
        accepted.check_sampling([len(prompt.ids)])
        more: JsonObject = {
            "request_id": asked.request_id or f"resp_{pipeline.identity.fresh_id()}",
            "reasoning_parser_kwargs": _parser_kwargs(pipeline, chat),
            "stream_options": None,
            "kv_transfer_params": asked.kv_transfer_params,
            "ec_transfer_params": asked.ec_transfer_params,
        }
        return json_response(_generate_request(pipeline, accepted, prompt, 0, more, {}))

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
    response_docs = RouteDocs(body=(ResponsesRequest,), example={"input": "hello"})
    return [
        post("/v1/chat/completions/render", render_chat, docs=chat_docs),
        post("/v1/messages/render", render_message, docs=message_docs),
        post("/v1/completions/render", render_completion, docs=completion_docs),
        post("/v1/responses/render", render_response, docs=response_docs),
    ]


def _admit(
    pipeline: RequestPipeline, asked: GenerationRequest
) -> ValidatedRequest[GenerationRequest]:
    model = pipeline.models.resolve(asked.model)
    if asked.use_beam_search:
        raise bad_request("Beam search cannot be rendered.")
    return ValidatedRequest(asked, model, pipeline.limits)


def _rendered_chat(
    pipeline: RequestPipeline, context: RequestContext, chat: ChatCompletionRequest
) -> Response:
    accepted, reasons = _admit(pipeline, chat), pipeline.limits.reasons
    check_tool_choice(chat, pipeline.settings.tools)
    prompt = chat_prompt(pipeline, chat, chat.messages)
    accepted.check_sampling([len(prompt.ids)])
    ended: bool | None = None if chat.include_reasoning else True
    if chat.include_reasoning and reasons:
        text = pipeline.tokenizer.decode(prompt.ids, False)
        ended = text.rfind(THINK_END) > text.rfind(THINK_BEGIN)
    more: JsonObject = {
        "request_id": pipeline.identity.response_meta("chatcmpl", context, chat.request_id, "").id,
        "reasoning_ended": ended,
        "reasoning_parser_kwargs": _parser_kwargs(pipeline, chat),
    }
    if chat.return_token_offsets and prompt.features is None:
        text = pipeline.tokenizer.render_chat(
            chat.messages, chat_options(chat, pipeline.chat_rules)
        )
        more["token_offsets"] = _offsets(pipeline, chat, text, prompt.ids)
    return json_response(_generate_request(pipeline, accepted, prompt, 0, more))


def _generate_request(
    pipeline: RequestPipeline,
    accepted: ValidatedRequest[GenerationRequest],
    prompt: BuiltPrompt,
    number: int,
    more: JsonObject,
    no_extra_args: JsonObject | None = None,
) -> JsonObject:
    """Returns the body for ``/inference/v1/generate``, with `more`; `no_extra_args` replaces
    missing ones.
    """
    asked, features = accepted.request, prompt.features
    if not prompt.ids:
        raise bad_request("The prompt has no tokens.")
    form = form_of(accepted, pipeline.settings.tools, pipeline.schemas)
    transfers = {
        name: getattr(asked, name) for name in ("kv_transfer_params", "ec_transfer_params")
    }
    extra_args = {**(asked.vllm_xargs or {}), **{name: it for name, it in transfers.items() if it}}
    without_data = {"kwargs_data": None} if asked.mm_payload == "none" else {}
    params = sampling_params(
        accepted, accepted.max_tokens[number], form, extra_args or no_extra_args
    )
    return {
        **BODY,
        "token_ids": prompt.ids,
        "features": None if features is None else {**features, **without_data},
        "sampling_params": params,
        "model": asked.model,
        "stream": bool(asked.stream),
        "stream_options": asked.stream_options if asked.stream else None,
        "cache_salt": asked.cache_salt,
        "priority": asked.priority,
        **more,
    }


def _offsets(
    pipeline: RequestPipeline, asked: GenerationRequest, text: str, ids: Sequence[int]
) -> Sequence[object] | None:
    """Position of each token of the prompt in `text`; None where the tokenizer has no positions."""
    places = pipeline.tokenizer.offsets(text, asked.add_special_tokens)
    if places is None:
        return None
    numbers = fit_prompt(asked, range(len(places)), max(len(places), pipeline.limits.max_model_len))
    return [places[number] for number in numbers] if len(numbers) == len(ids) else None


def _parser_kwargs(pipeline: RequestPipeline, chat: ChatCompletionRequest) -> JsonObject | None:
    if not pipeline.limits.reasons:
        return None
    names = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")
    used = {name: value for name in names if (value := getattr(chat, name)) is not None}
    defaults = pipeline.chat_rules.template_kwargs or {}
    return {"chat_template_kwargs": {**defaults, **(chat.chat_template_kwargs or {}), **used}}


DELTA, FINAL_ONLY = 1, 2
"""Kinds of output: of a stream, of a whole answer."""
BIAS = 100.0
LEAST_TEMPERATURE = 0.01
"""Least temperature of sampling that is not greedy."""
ALWAYS_SHOWN = frozenset(
    (
        *(
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "temperature",
            "top_p",
            "min_p",
        ),
        *(
            "stop",
            "stop_token_ids",
            "output_kind",
            "skip_clone",
            "bad_words",
            "skip_reading_prefix_cache",
        ),
    )
)
DEFAULTS: Mapping[str, object] = {
    **{field.name: field.default for field in fields(generate.SamplingParams)},
    "max_tokens": 16,
}
"""Sampling parameters in vLLM's order, with defaults, which are left out even where a client sets
them.
"""


def sampling_params(
    asked: ValidatedRequest[GenerationRequest],
    max_tokens: int,
    form: StructuredOutputs | None,
    extra_args: JsonObject | None,
) -> JsonObject:
    request = asked.request
    tools = (
        isinstance(request, ChatCompletionRequest)
        and request.tools
        and request.tool_choice != "none"
    )
    temperature = 1.0 if request.temperature is None else request.temperature
    greedy = not temperature
    bias, held_back = request.logit_bias, 0
    if asked.stop and not request.include_stop_str_in_output:
        held_back = max(map(len, asked.stop)) - 1
    own: JsonObject = {
        "n": asked.n,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "repetition_penalty": 1.0
        if request.repetition_penalty is None
        else request.repetition_penalty,
        "temperature": 0.0 if greedy else max(temperature, LEAST_TEMPERATURE),
        "top_p": 1.0 if greedy or request.top_p is None else request.top_p,
        "top_k": 0 if greedy else request.top_k or 0,
        "min_p": 0.0 if greedy else request.min_p or 0.0,
        "seed": asked.seed,
        "stop": list(asked.stop),
        "stop_token_ids": list(dict.fromkeys(request.stop_token_ids or ())),
        "max_tokens": max_tokens,
        "logprobs": asked.logprobs,
        "prompt_logprobs": asked.prompt_logprobs,
        "logprob_token_ids": request.logprob_token_ids or None,
        "skip_special_tokens": request.skip_special_tokens and not tools,
        "output_kind": DELTA if request.stream else FINAL_ONLY,
        "skip_clone": True,
        "output_text_buffer_length": held_back,
        "structured_outputs": form
        and {**msgspec.to_builtins(form), "_backend": None, "_backend_was_auto": False},
        "logit_bias": bias
        and {str(int(token)): min(BIAS, max(-BIAS, bias[token])) for token in bias},
        "extra_args": extra_args,
        "bad_words": list(dict.fromkeys(request.bad_words)),
        "skip_reading_prefix_cache": asked.prompt_logprobs is not None,
    }
    values = {
        name: own[name] if name in own else getattr(request, name, DEFAULTS[name])
        for name in DEFAULTS
    }
    return {name: it for name, it in values.items() if name in ALWAYS_SHOWN or it != DEFAULTS[name]}


def form_of(
    asked: ValidatedRequest[GenerationRequest], settings: ToolSettings, schemas: Constraints
) -> StructuredOutputs | None:
    """Returns the constraint on the reply; required tool calls have their own.

    ApiError 400 as for a chat.
    """
    request = asked.request
    if not isinstance(request, ChatCompletionRequest):
        return asked.structured_outputs
    if (calls := tool_calls_of(request, settings, schemas)) is None:
        return asked.structured_outputs
    if settings.tool_call_parser not in ("", "hermes"):
        form = text_form(None, calls)
        return (
            asked.structured_outputs if form is None else StructuredOutputs(json=form.json_schema)
        )
    strict = {tool.function.name for tool in request.tools or () if tool.function.strict}
    if not calls.min_calls and not strict:
        return asked.structured_outputs
    single = calls.named or request.parallel_tool_calls is False
    return StructuredOutputs(structural_tag=_hermes_tag(calls, strict, single))


def _hermes_tag(calls: ToolCalls, strict: set[str], single: bool) -> str:
    """Returns a structural tag for calls in Hermes form; only strict tools keep to their schemas."""
    tags: list[JsonObject] = [
        {
            "type": "tag",
            "begin": f'<tool_call>{gap}{{"name": "{tool.name}", "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": tool.schema if tool.name in strict else True,
            },
            "end": f"}}{gap}</tool_call>",
        }
        for tool in calls.tools
        for gap in ("\n", "")
    ]
    form: JsonObject = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    if calls.min_calls:
        form = {"type": "tags_with_separator", "tags": tags, "separator": ""}
    form |= {"at_least_one": calls.min_calls > 0, "stop_after_first": single}
    return msgspec.json.encode({"type": "structural_tag", "format": form}).decode()
