"""Requests of each family as generate requests, as vLLM dumps them, and generate answers as theirs.

The four /render routes and the two /derender routes; the latter take token ids of whole answers only.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import msgspec
from msgspec.structs import fields

from app.engine.core.request import ToolCalls
from app.engine.forms.schema import Schemas
from app.engine.parsing import THINK_BEGIN, THINK_END, Read, hermes, listed, plain, thoughts
from app.serving.api.anthropic import message_chats
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.chat.parts import check_tool_choice, tool_calls_of
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.completions import completion_prompt
from app.serving.api.logprobs import token_bytes
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.responses.routes import response_prompt
from app.serving.api.sampling import text_form
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, post
from app.serving.protocol import chat as wire
from app.serving.protocol import common, generate
from app.serving.protocol.anthropic import MessagesRequest
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import EXAMPLE_CHAT
from app.serving.protocol.completions import Completion, CompletionChoice, CompletionRequest
from app.serving.protocol.options import StreamOptions, StructuredOutputs
from app.serving.protocol.responses import ResponsesRequest
from app.serving.protocol.responses import chat_request as chat_of_response
from app.serving.protocol.validation import GenerationRequest, ValidatedRequest, fit_prompt
from config.settings import ToolSettings

BODY: JsonObject = {
    field.name: field.default for field in fields(generate.GenerateRequest) if field.name != "ignore_eos"
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
            more: JsonObject = {"request_id": request_id if len(prompts) == 1 else f"{request_id}-{number}"}
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
            raise ApiError(400, "invalid_request_error", f"{name} cannot be rendered: nothing is kept.", name)
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


def _admit(pipeline: RequestPipeline, asked: GenerationRequest) -> ValidatedRequest[GenerationRequest]:
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
        text = pipeline.tokenizer.render_chat(chat.messages, chat_options(chat, pipeline.chat_rules))
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
    """Returns the body for ``/inference/v1/generate``, with `more`; `no_extra_args` replaces missing ones."""
    asked, features = accepted.request, prompt.features
    if not prompt.ids:
        raise bad_request("The prompt has no tokens.")
    form = form_of(accepted, pipeline.settings.tools, pipeline.schemas)
    transfers = {name: getattr(asked, name) for name in ("kv_transfer_params", "ec_transfer_params")}
    extra_args = {**(asked.vllm_xargs or {}), **{name: it for name, it in transfers.items() if it}}
    without_data = {"kwargs_data": None} if asked.mm_payload == "none" else {}
    params = sampling_params(accepted, accepted.max_tokens[number], form, extra_args or no_extra_args)
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
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p"),
        *("stop", "stop_token_ids", "output_kind", "skip_clone", "bad_words", "skip_reading_prefix_cache"),
    )
)
DEFAULTS: Mapping[str, object] = {
    **{field.name: field.default for field in fields(generate.SamplingParams)},
    "max_tokens": 16,
}
"""Sampling parameters in vLLM's order, with defaults, which are left out even where a client sets them."""


def sampling_params(
    asked: ValidatedRequest[GenerationRequest],
    max_tokens: int,
    form: StructuredOutputs | None,
    extra_args: JsonObject | None,
) -> JsonObject:
    request = asked.request
    tools = isinstance(request, ChatCompletionRequest) and request.tools and request.tool_choice != "none"
    temperature = 1.0 if request.temperature is None else request.temperature
    greedy = not temperature
    bias, held_back = request.logit_bias, 0
    if asked.stop and not request.include_stop_str_in_output:
        held_back = max(map(len, asked.stop)) - 1
    own: JsonObject = {
        "n": asked.n,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "repetition_penalty": 1.0 if request.repetition_penalty is None else request.repetition_penalty,
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
        "logit_bias": bias and {str(int(token)): min(BIAS, max(-BIAS, bias[token])) for token in bias},
        "extra_args": extra_args,
        "bad_words": list(dict.fromkeys(request.bad_words)),
        "skip_reading_prefix_cache": asked.prompt_logprobs is not None,
    }
    values = {name: own[name] if name in own else getattr(request, name, DEFAULTS[name]) for name in DEFAULTS}
    return {name: it for name, it in values.items() if name in ALWAYS_SHOWN or it != DEFAULTS[name]}


def form_of(
    asked: ValidatedRequest[GenerationRequest], settings: ToolSettings, schemas: Schemas
) -> StructuredOutputs | None:
    """Returns the constraint on the reply; required tool calls have their own. ApiError 400 as for a chat."""
    request = asked.request
    if not isinstance(request, ChatCompletionRequest):
        return asked.structured_outputs
    if (calls := tool_calls_of(request, settings, schemas)) is None:
        return asked.structured_outputs
    if settings.tool_call_parser not in ("", "hermes"):
        form = text_form(None, calls)
        return asked.structured_outputs if form is None else StructuredOutputs(json=form.json_schema)
    strict = {tool.function.name for tool in request.tools or () if tool.function.strict}
    if not calls.least and not strict:
        return asked.structured_outputs
    single = calls.named or request.parallel_tool_calls is False
    return StructuredOutputs(structural_tag=_hermes_tag(calls, strict, single))


def _hermes_tag(calls: ToolCalls, strict: set[str], single: bool) -> str:
    """Returns a structural tag for calls in Hermes form; only strict tools keep to their schemas."""
    tags: list[JsonObject] = [
        {
            "type": "tag",
            "begin": f'<tool_call>{gap}{{"name": "{tool.name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": tool.schema if tool.name in strict else True},
            "end": f"}}{gap}</tool_call>",
        }
        for tool in calls.tools
        for gap in ("\n", "")
    ]
    form: JsonObject = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    if calls.least:
        form = {"type": "tags_with_separator", "tags": tags, "separator": ""}
    form |= {"at_least_one": calls.least > 0, "stop_after_first": single}
    return msgspec.json.encode({"type": "structural_tag", "format": form}).decode()


def derender_routes(pipeline: RequestPipeline) -> list[Route]:
    tokenizer, parses = pipeline.tokenizer, pipeline.limits.parses

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion of token ids."""
        asked = pipeline.decode(context, generate.DerenderChatRequest)
        answer, chat, choices = asked.generate_response, asked.chat_request, list[wire.ChatChoice]()
        head = _head(pipeline, asked.model, [answer], asked.prompt_tokens or 0, [asked.prompt_token_ids])
        if parses and chat is None:
            raise bad_request("chat_request is needed beside a parser: the reply would show its markup.")
        shows_ids = chat and chat.return_token_ids and (not parses or chat.include_reasoning)
        for choice in answer.choices:
            skips = not parses and (chat is None or chat.skip_special_tokens)
            message = _message(pipeline, chat, tokenizer.decode(choice.token_ids or (), skips))
            entries, ids = _named(pipeline, choice.logprobs), choice.token_ids if shows_ids else None
            logprobs = None if entries is None else common.LogprobContent(entries)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(wire.ChatChoice(choice.index, message, logprobs, *reasons, ids))
        same = {name: getattr(answer, name) for name in ("prompt_logprobs", "kv_transfer_params", "metrics")}
        return json_response(wire.ChatCompletion(**head, choices=choices, **same))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion of token ids: the choices of all answers, numbered on."""
        asked = pipeline.decode(context, generate.DerenderCompletionRequest)
        answers, request, choices = asked.generate_responses, asked.completion_request, []
        if not answers:
            raise bad_request("generate_responses must not be empty")
        tokens, prompts = sum(asked.prompt_tokens or ()), asked.prompt_token_ids or ()
        head = _head(pipeline, asked.model, answers, tokens, prompts)
        for index, choice in enumerate(chain.from_iterable(answer.choices for answer in answers)):
            skips = request is None or request.skip_special_tokens
            text, logprobs = tokenizer.decode(choice.token_ids or (), skips), _lists(pipeline, choice)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(CompletionChoice(index, text, logprobs, *reasons, None, None, None))
        transfers = [answer.kv_transfer_params for answer in answers]
        same: dict[str, Any] = {
            "kv_transfer_params": transfers[0] if transfers.count(transfers[0]) == len(answers) else None,
            "metrics": answers[0].metrics if len(answers) == 1 else None,
        }
        return json_response(Completion(**head, choices=choices, **same))

    generated = {"request_id": "x", "choices": [{"index": 0, "token_ids": [5, 6]}]}
    chat_docs = RouteDocs(
        body=(generate.DerenderChatRequest,),
        example={"generate_response": generated},
    )
    completion_docs = RouteDocs(
        body=(generate.DerenderCompletionRequest,),
        example={"generate_responses": [generated]},
    )
    return [
        post("/v1/chat/completions/derender", derender_chat, docs=chat_docs),
        post("/v1/completions/derender", derender_completion, docs=completion_docs),
    ]


def _head(
    pipeline: RequestPipeline,
    model: str | None,
    answers: Sequence[generate.GenerateOutput],
    prompt_tokens: int,
    prompts: Sequence[Sequence[int] | None],
) -> dict[str, Any]:
    """Returns the first fields of an answer. ApiError 404 for a wrong model.

    ApiError 400 without tokens, or for more than a server of this context could have returned.
    """
    shown, most = pipeline.models.resolve(model), pipeline.limits.max_model_len
    given = [(choice, choice.token_ids or ()) for answer in answers for choice in answer.choices]
    if any(len(ids or ()) > most for ids in (*prompts, *(ids for _, ids in given))):
        raise bad_request(f"there are more tokens than max_model_len, {most}")
    for choice, ids in given:
        if not ids:
            raise bad_request(f"choice {choice.index} has no token_ids")
    tokens = sum(len(ids) for _, ids in given)
    return {
        "id": answers[0].request_id or pipeline.identity.fresh_id(),
        "created": pipeline.identity.now_s(),
        "model": model or shown,
        "system_fingerprint": None,
        "usage": common.Usage(prompt_tokens, prompt_tokens + tokens, tokens, None, None),
    }


def _message(pipeline: RequestPipeline, chat: ChatCompletionRequest | None, text: str) -> wire.ChatMessage:
    content, raw, reasoning, calls = "", "", "", dict[int, tuple[str, str]]()
    for part, piece in _reader(pipeline, chat)(text, True):
        if part is None:
            content += piece
        elif part.kind == "reasoning":
            reasoning += piece
        elif part.raw:
            raw = part.raw  # the whole reply, where its last call is cut off
        else:
            calls[part.number] = part.name, calls.get(part.number, ("", ""))[1] + piece
    said, parses = raw or content, pipeline.limits.parses
    forced = chat is not None and parses and chat.tool_choice not in ("none", "auto", None)
    is_open = said or forced or not (calls or reasoning)
    message = wire.ChatMessage("assistant", said if is_open else None)
    if calls and not raw:
        made = [(pipeline.identity.fresh_id(), wire.FunctionCall(*call)) for call in calls.values()]
        message.tool_calls = [wire.ToolCall(id, "function", function=call) for id, call in made]
    if reasoning and chat is not None and chat.include_reasoning:
        message.reasoning = reasoning
    return message


def _reader(pipeline: RequestPipeline, chat: ChatCompletionRequest | None) -> Read:
    if chat is None or not pipeline.limits.parses:
        return plain
    read: Read = plain
    if chat.tools and chat.tool_choice != "none":
        read = listed if pipeline.settings.tools.tool_call_parser == "llama3_json" else hermes
    return partial(thoughts, then=read) if pipeline.limits.reasons else read


def _named(pipeline: RequestPipeline, logprobs: generate.Logprobs | None) -> list[common.ChatLogprob] | None:
    if logprobs is None or logprobs.content is None:
        return None
    entries = []
    for entry in logprobs.content:
        candidates = (entry, *entry.top_logprobs)
        texts = pipeline.tokenizer.token_texts([it.token_id for it in candidates])
        own, *tops = [
            common.ChatAlternative(text, it.logprob, token_bytes(text))
            for text, it in zip(texts, candidates, strict=True)
        ]
        entries.append(common.ChatLogprob(own.token, own.logprob, own.bytes, tops))
    return entries


def _lists(pipeline: RequestPipeline, choice: generate.RenderedChoice) -> common.CompletionLogprobs | None:
    if (entries := _named(pipeline, choice.logprobs)) is None:
        return None
    tokens = [entry.token for entry in entries]
    tops = [{it.token: it.logprob for it in entry.top_logprobs} or None for entry in entries]
    offsets = list(accumulate(map(len, tokens), initial=0))[: len(tokens)]
    return common.CompletionLogprobs(offsets, [entry.logprob for entry in entries], tokens, tops)
