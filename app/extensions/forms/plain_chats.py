"""Chats with tools or a response format, answered from the hub without a greenlet.

As in `app.core.api.plain`, that a body can be decoded into the struct proves that it asks for
nothing else. A form, which consists of the tools or the format, is known once it was used before,
and the handler of the route has compiled its schemas: nothing is compiled here, where it would hold
the hub. All other chats are left to that handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from app.core.api.chat.call_chunks import CallChatWriter, call_form
from app.core.api.chat.constraints import constraint_of
from app.core.api.chat.tool_set import tool_set
from app.core.api.chat.tools import last_question, tool_calls_of
from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.plain import PlainChat, PlainChats, Recognised
from app.core.base.caches import RecentKeys
from app.core.engine.outputs import Part, Started, Tokens
from app.core.engine.request import STOP, Constraint, EngineRequest, Reply, ToolCalls
from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.common import GAP, HOLE, encode
from app.core.protocol.options import ResponseFormat, Tool
from app.core.protocol.validation import check_constraint, combine_constraints
from app.core.server.http.errors import ApiError
from app.core.server.http.response import json_response
from app.core.text.base import PLAIN_CHAT, ChatOptions, TokenizerError
from app.core.text.memo import MAX_PROMPT_BYTES, TextMessage
from app.extensions.forms.schema import SchemaError

if TYPE_CHECKING:
    from app.core.api.identity import ResponseMeta
    from app.core.api.pipeline import RequestPipeline
    from app.core.base.caches import LimitedDict
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import PendingResponse, Response
    from app.core.text.memo import PromptMemo
    from app.extensions.forms.constraints import FormConstraints

NO_JSON = Raw()
MAX_FORM_BYTES = 4_000
"""Longest tools or format, as JSON, of a chat that is answered here."""
MAX_TOOLS = 8
"""Most tools of such a chat; each is compared with the message."""
MAX_VALUES = 32
"""Most values of a drawn call or reply.

Where a limit of tokens is too low for them, several are drawn, which takes a few milliseconds.
"""
MAX_CALLING_TOKENS = 512
"""Most tokens of a text that is searched for calls."""
FORM_BYTES = 2_000
"""Memory of a form without its tools or its format."""
MEMORY_PER_BYTE = 80
"""Memory of each byte of the JSON of tools and formats; that of empty objects."""

_decode_tools = msgspec.json.Decoder(list[Tool]).decode
_decode_format = msgspec.json.Decoder(ResponseFormat).decode
_decode_messages = msgspec.json.Decoder(list[TextMessage]).decode


class FormChat(PlainChat, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat with tools, or with a response format."""

    tools: Raw = NO_JSON
    tool_choice: Literal["auto", "required"] | UnsetType = UNSET
    response_format: Raw = NO_JSON

    @property
    def choice(self) -> Literal["auto", "required"]:
        """The choice of tools; by default, no tool has to be called."""
        return "auto" if self.tool_choice is UNSET else self.tool_choice


class Form(Struct, frozen=True):
    """The demands of tools, or of a response format, on replies.

    Attributes:
        options: Options of the chat template.
        calls: The allowed calls, without the message; None without tools.
        constraint: The constraint on the text; None without a format.
        response_options: Fields of `ChatResponseOptions`.
    """

    options: ChatOptions
    calls: ToolCalls | None
    constraint: Constraint | None
    response_options: Mapping[str, Any]


class RecognisedForm(NamedTuple):
    """A chat that is plain but for its form; `question` is the text of the last user message."""

    chat: Recognised
    form: Form
    question: str


class CallBody(Struct, frozen=True):
    """The bytes of a whole answer with one call, between the fields that differ."""

    before_id: bytes
    before_created: bytes
    before_call_id: bytes
    before_name: bytes
    before_arguments: bytes
    before_prompt_tokens: bytes
    before_total_tokens: bytes
    before_completion_tokens: bytes
    end: bytes


class FormChats(PlainChats):
    """Answers chats with a known form. Call `refresh` before the first request."""

    request_type = FormChat
    _options: ChatResponseOptions

    def __init__(
        self,
        pipeline: RequestPipeline,
        known_prompts: PromptMemo,
        *,
        schemas: FormConstraints,
        forms: LimitedDict[bytes, Form],
    ) -> None:
        """`forms` gets the known forms by the bytes of their JSON."""
        super().__init__(pipeline, known_prompts)
        self._forms = forms
        self._schemas = schemas
        self._seen = RecentKeys()
        self._call_bodies: dict[bool, CallBody] = {}
        """Templates of answers with one call, by whether a call is required."""

    def refresh(self) -> None:
        """Decides if any request can be plain now, under the settings in force."""
        super().refresh()
        self._forms.clear()
        self._call_bodies.clear()

    def recognise(self, body: bytes) -> RecognisedForm | None:
        """Returns the chat in `body`; None, with nothing drawn or counted, for other requests."""
        pipeline = self._pipeline
        if not self._names or pipeline.scripts is not None or pipeline.real is not None:
            return None
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        assert isinstance(request, FormChat)
        if request.model not in self._names:
            return None
        choice = b"" if request.tool_choice is UNSET else request.tool_choice.encode()
        key = b"%b\0%b\0%b" % (request.tools, choice, request.response_format)
        form = self._forms.get(key) or self._learn(key, request)
        if form is None:
            return None
        if form.calls is None:
            if request.logprobs:  # of a constrained text, which take long
                return None
            chat = self._derive(request, request.prompt_key, self.known_prompts.ids)
            return None if chat is None else RecognisedForm(chat, form, "")
        return self._with_tools(request, form, form.calls)

    def _with_tools(self, request: FormChat, form: Form, calls: ToolCalls) -> RecognisedForm | None:
        prompt_key = request.prompt_key
        if len(prompt_key) > MAX_PROMPT_BYTES or self._pipeline.tokenizer.is_time_dependent:
            return None
        try:
            messages = msgspec.to_builtins(_decode_messages(prompt_key))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        chat = self._derive(request, prompt_key, lambda key: self._ids_of(messages, form))
        if chat is None or not calls.min_calls and chat.max_tokens > MAX_CALLING_TOKENS:
            return None
        return RecognisedForm(chat, form, last_question(messages))

    def _ids_of(self, messages: Sequence[Message], form: Form) -> Sequence[int] | None:
        """Returns the tokens of a chat with tools; None for one that is long or not supported."""
        tokenizer = self._pipeline.tokenizer
        try:
            text = tokenizer.render_chat(messages, form.options)
            if len(text) > MAX_PROMPT_BYTES:
                return None
            return tokenizer.encode(text, form.options.add_special_tokens)
        except TokenizerError:
            return None

    def _learn(self, key: bytes, request: FormChat) -> Form | None:
        """Returns a form that has been used before, and remembers it; None for other forms."""
        if len(key) > MAX_FORM_BYTES or not self._seen.has(key):
            return None
        form = None
        try:
            if not request.response_format:
                form = self._tools_form(request)
            elif not request.tools and request.tool_choice is UNSET:
                form = self._schema_form(request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ApiError, SchemaError):
            return None  # the handler of the route reports the error
        if form is not None:
            self._forms.add(key, form, FORM_BYTES + MEMORY_PER_BYTE * len(key))
        return form

    def _tools_form(self, request: FormChat) -> Form | None:
        pipeline = self._pipeline
        settings = pipeline.live.current.tools
        known_set = tool_set(_decode_tools(request.tools), pipeline.known_tools)
        # The handler of the route has checked the functions of the set, and drawn a reply.
        if known_set.options.tools_key is None or not known_set.functions:
            return None
        choice = request.choice
        chat = ChatCompletionRequest(messages=[], tools=known_set, tool_choice=choice)
        calls = tool_calls_of(chat, settings, self._schemas)
        if calls is None or len(calls.tools) > MAX_TOOLS:
            return None
        for tool in calls.tools:
            compiled = self._schemas.known(tool.schema, calls.lenient)
            if compiled is None or compiled.max_values(settings) > MAX_VALUES:
                return None
        response_options = {
            "forced_tool": choice == "required",
            "parser_runs": pipeline.responder.engine.recorder.parser_runs,
            "call_form": call_form(choice, settings.tool_call_parser),
        }
        return Form(known_set.options, calls, None, response_options)

    def _schema_form(self, request: FormChat) -> Form | None:
        response_format = _decode_format(request.response_format)
        if response_format.type != "json_schema":
            return None
        chat = ChatCompletionRequest(messages=[], response_format=response_format)
        chat.check_decoded()
        constraints = combine_constraints(chat)
        if constraints is None or constraints.json is None:
            return None
        compiled = self._schemas.known(constraints.json, lenient=True)
        settings = self._pipeline.live.current.tools
        if compiled is None or compiled.max_values(settings) > MAX_VALUES:
            return None
        check_constraint(constraints)
        constraint = constraint_of(constraints, self._schemas)
        if constraint is None:
            return None
        return Form(PLAIN_CHAT, None, constraint, {})

    def answer(self, context: RequestContext, recognised: Any) -> Response | PendingResponse:
        """Answers a recognised chat."""
        chat, form, question = recognised
        pipeline = self._pipeline
        request = chat.request
        context.is_generation = True
        meta = pipeline.identity.response_meta(self.id_prefix, context, "", self._model)
        calls = form.calls
        if calls is not None:
            calls = replace(calls, question=question, streams=bool(request.stream))
        engine_request = EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=self._model,
            prompt_ids=chat.prompt_ids,
            echo_text="",
            max_tokens=chat.max_tokens,
            arrival_s=context.arrival_s,
            sampling=chat.sampling,
            tool_calls=calls,
            constraint=form.constraint,
            cache_hit_threshold=self._min_hit_rate,
            observers=context.observers,
        )
        replies = None
        if not request.stream:
            reply = pipeline.responder.engine.decide(engine_request)
            if reply is not None:
                body = self._whole_body(engine_request, reply, meta, recognised)
                if body is not None:
                    return json_response(body, 200, pipeline.responder.headers)
                replies = (reply,)
        options = replace(chat.options, **form.response_options)
        writer = ChatWriter(meta, options) if calls is None else CallChatWriter(meta, options)
        return pipeline.responder.respond_soon(
            (engine_request,),
            writer,
            stream=bool(request.stream),
            context=context,
            replies=replies,
        )

    def _whole_body(
        self,
        engine_request: EngineRequest,
        reply: Reply,
        meta: ResponseMeta,
        recognised: RecognisedForm,
    ) -> bytes | None:
        """Returns the body of a reply that takes no time; None if the request has to run.

        Raises:
            EngineError: as `EngineClient.submit`.
        """
        chat, form, _ = recognised
        has_call = bool(reply.spans)
        if has_call and not is_single_call(reply):
            return None
        engine = self._pipeline.responder.engine
        if not has_call:
            body = self._body_at_once(engine_request, reply, meta, chat)
        elif chat.options.metrics or chat.options.prompt_details or reply.logprobs is not None:
            body = None
        elif engine.reply_at_once(engine_request, reply):
            body = self._filled(engine_request, reply, meta, form)
        else:
            body = None
        if body is not None and form.calls is not None:
            engine.recorder.parser_runs["non_streaming", has_call] += 1
        return body

    def _filled(
        self, engine_request: EngineRequest, reply: Reply, meta: ResponseMeta, form: Form
    ) -> bytes:
        """Returns the body of an answer with a single call."""
        is_forced = bool(form.response_options["forced_tool"])
        template = self._call_bodies.get(is_forced)
        if template is None:
            template = self._new_call_body(meta, is_forced)
            self._call_bodies[is_forced] = template
        part = reply.spans[-1][1]
        assert part is not None
        prompt_tokens = len(engine_request.prompt_ids)
        tokens = len(reply.ids)
        return b"%b%b%b%d%b%b%b%b%b%b%b%d%b%d%b%d%b" % (
            template.before_id,
            encode(meta.id),
            template.before_created,
            meta.created,
            template.before_call_id,
            encode(part.id or self._pipeline.identity.fresh_call_id()),
            template.before_name,
            encode(part.name),
            template.before_arguments,
            encode("".join(reply.texts)),
            template.before_prompt_tokens,
            prompt_tokens,
            template.before_total_tokens,
            prompt_tokens + tokens,
            template.before_completion_tokens,
            tokens,
            template.end,
        )

    def _new_call_body(self, meta: ResponseMeta, is_forced: bool) -> CallBody:
        """Returns the template of answers with one call, which the writer makes."""
        options = replace(self._options, forced_tool=is_forced, new_call_id=str)
        writer = CallChatWriter(meta, options)
        writer.collect(Started(0, 0.0))
        part = Part("call", 0, "name", id="id")
        writer.collect(Tokens(0, ["text"], [0], 0.0, finish=STOP, part=part))
        answer: Any = writer.whole()
        answer.id = HOLE
        answer.created = HOLE
        [choice] = answer.choices
        [call] = choice.message.tool_calls
        call.id = HOLE
        call.function.name = HOLE
        call.function.arguments = HOLE
        answer.usage.prompt_tokens = HOLE
        answer.usage.total_tokens = HOLE
        answer.usage.completion_tokens = HOLE
        return CallBody(*writer.encode(answer).split(GAP))


def is_single_call(reply: Reply) -> bool:
    """Returns whether a reply consists of one whole call.

    The first span may be that of the tokens before its name.
    """
    spans = reply.spans
    part = spans[-1][1]
    if part is None or part.kind != "call" or part.number or not part.name or part.raw:
        return False
    if len(spans) == 1:
        return reply.finish is STOP
    return reply.finish is STOP and len(spans) == 2 and spans[0][1] == Part("call")
