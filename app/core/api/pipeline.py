"""Shared path of the generating API families, from a body to engine requests and the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from app.core.api.answer_limits import check_answer_size
from app.core.api.chat.rules import ChatRules
from app.core.api.headers import RANK_HEADER, pinned_engine
from app.core.base.caches import LimitedDict
from app.core.base.clock.pause import pause_if_possible
from app.core.engine.request import Constraint
from app.core.protocol.decoding import Request, decode
from app.core.protocol.validation import GenerationRequest, ValidatedRequest, too_long
from app.core.server.http.errors import ApiError

if TYPE_CHECKING:
    from random import Random

    from app.core.api.chat.media import BuiltPrompt, MediaReader
    from app.core.api.chat.tool_set import KnownTools
    from app.core.api.engine_requests import RequestBuilder
    from app.core.api.identity import Identity, ResponseMeta
    from app.core.api.models import ServedModels
    from app.core.api.reply_rules import ReplyRules
    from app.core.api.responder import Responder
    from app.core.api.sampling import RealModel
    from app.core.api.weight_spans import Weights
    from app.core.api.writer import ResponseWriter
    from app.core.engine.constraints import Constraints
    from app.core.engine.tool_replies import ToolReplies
    from app.core.protocol.validation import AcceptedRequest, ModelLimits
    from app.core.server.http.body_limits import BodyLimits
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response
    from app.core.text.base import Tokenizer
    from app.core.versions.chain import PlayedVersion
    from config.validation import LiveSettings

SLICE = 12_000
"""Values processed between two pauses: about 4 ms."""
KNOWN_TOOLS_BYTES = 16 << 20
"""Maximum memory of remembered tools. Those of most clients take a tenth of their estimate."""
CHARS_PER_VALUE = 2
"""Characters of a text to tokenize that count as one processed value."""

_ids_of = attrgetter("ids")
T = TypeVar("T", bound=Request)
R = TypeVar("R", bound=GenerationRequest)


def always_fast() -> bool:
    """Returns True: no extension needs to see plain requests."""
    return True


class RequestPipeline(Struct):
    """Decodes, admits and submits requests, with the parts of the server that they need."""

    live: LiveSettings
    """The settings in force."""
    version: PlayedVersion
    body: BodyLimits
    models: ServedModels
    tokenizer: Tokenizer
    identity: Identity
    weights: Weights
    responder: Responder
    limits: ModelLimits
    schemas: Constraints
    builder: RequestBuilder
    images: Random
    """Draws which replies have an image."""
    chat_rules: ChatRules = ChatRules()
    known_tools: KnownTools = field(default_factory=partial(LimitedDict, KNOWN_TOOLS_BYTES))
    rank: int = 0
    real: RealModel | None = None
    keeps_turns: bool = False
    """Prompts carry the texts of their messages, which datasets look up."""
    scripts: ReplyRules | None = None
    """Rules that decide replies; None while there are none."""
    media: Callable[[], MediaReader] | None = None
    """Returns the reader of images, sounds and films; None without the extension for it."""
    tool_replies: ToolReplies | None = None
    """Reads calls in texts; None without the extension for it."""
    keeps_fast_path: Callable[[], bool] = always_fast
    """Returns whether plain requests may take the fast path under the settings in force."""
    values_left: int = SLICE
    """Values that all requests may still process until the next pause."""

    def decode(self, context: RequestContext, request_type: type[T]) -> T:
        """Returns the request in the body.

        Raises:
            ApiError: 400, 408 or 413.
        """
        content_type = context.headers.get("content-type")
        body = self.body.read(context)
        if context.label in self.version.readings:
            body = self.version.read(context.label, body)
        return decode(
            body,
            content_type,
            request_type,
            ignored_fields=self.version.shape.absent_fields(request_type),
            nullable_fields=self.version.nullable_fields,
        )

    def admit(self, request: R, context: RequestContext) -> ValidatedRequest[R]:
        """Validates the request as far as possible before its prompts are tokens."""
        self.responder.faults.inject(context, request.model)
        model = self.models.resolve(request.model)
        self.responder.engine.check_accepting(request.n or 1)
        return ValidatedRequest(request, model, self.limits)

    def spend(self, values: int) -> None:
        """Counts processed values, and pauses after each slice."""
        self.values_left -= values
        if self.values_left < 0:
            self.values_left = SLICE
            pause_if_possible()

    def check_text(self, text: str) -> None:
        """Checks the length of a text before any work. May pause.

        Raises:
            ApiError: 400 for a text that cannot fit the context.
        """
        self.spend(1 + len(text) // CHARS_PER_VALUE)
        max_tokens = self.limits.max_model_len
        if len(text) <= max_tokens or self.tokenizer.longest_token is None:
            return
        max_chars = max_tokens * self.tokenizer.longest_token
        if len(text) > max_chars:
            size = (
                f"{len(text)} characters (more than {max_chars} characters, which is the upper "
                f"bound for {max_tokens} input tokens)"
            )
            raise too_long(max_tokens, size, "input_text", len(text))

    def options(self, accepted: AcceptedRequest, may_force_usage: bool = True) -> dict[str, Any]:
        """Returns the fields of `ResponseOptions` for an answer."""
        api = self.live.current.api
        request = accepted.request
        stream_options = request.stream_options
        include_usage = stream_options is not None and bool(stream_options.include_usage)
        continuous_usage = (
            stream_options is not None
            and include_usage
            and bool(stream_options.continuous_usage_stats)
        )
        is_forced = may_force_usage and api.enable_force_include_usage
        weights = None
        if request.return_weight_versions and not request.use_beam_search:
            weights = self.weights
        token_id_names = request.return_tokens_as_token_ids
        if token_id_names is None:
            token_id_names = api.return_tokens_as_token_ids
        return {
            "n": accepted.n,
            "include_usage": include_usage or is_forced,
            "continuous_usage": continuous_usage
            or (is_forced and self.limits.rules.continues_forced_usage),
            "token_ids": bool(request.return_token_ids),
            "token_id_names": token_id_names,
            "prompt_details": api.enable_prompt_tokens_details and not request.use_beam_search,
            "metrics": api.enable_per_request_metrics,
            "weights": weights,
            "shape": self.version.shape,
        }

    def _prepare(
        self,
        writer: ResponseWriter,
        request: GenerationRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
    ) -> None:
        """Sets what the writer of few requests needs: joined tokens, and transfers."""
        if request.stream and request.stream_interval is not None and request.stream_interval > 1:
            from app.core.api.token_joiner import TokenJoiner

            writer.joiner = TokenJoiner(request.stream_interval)
        if prompts and (request.kv_transfer_params or prompts[-1].features):
            from app.core.api.transfers import describe_transfers

            describe_transfers(
                request, meta, prompts, identity=self.identity, media=self.media, writer=writer
            )

    def submit(
        self,
        accepted: AcceptedRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
        context: RequestContext,
        responder: Responder | None = None,
    ) -> Response:
        """Submits the request. A stream carries the rejections of the engine after its 200."""
        request = accepted.request
        stream = bool(request.stream)
        responder = responder or self.responder
        writer.encode = self.version.shape.encode
        self._prepare(writer, request, meta, prompts)
        prompt_ids = list(map(_ids_of, prompts))
        prompt_tokens = list(map(len, prompt_ids))
        accepted.check_sampling(prompt_tokens)
        constraint = None
        form = accepted.structured_outputs
        if form is not None and form.structural_tag is not None:
            from app.core.api.chat.constraints import tag_of  # few requests have constraints

            constraint = Constraint(grammar=tag_of(form.structural_tag, request, self.schemas))
        try:
            if RANK_HEADER in context.headers and writer.follows_rank:
                accepted.engine = pinned_engine(context, self.live.current.server, self.rank)
            accepted.check_engine(prompt_ids)
            if form is not None and constraint is None:
                from app.core.api.chat.constraints import constraint_of

                constraint = constraint_of(form, self.schemas)
        except ApiError as error:
            if stream:
                return responder.broken(error, writer, context.arrival_s)
            raise
        # Without a limit replies are short, unless their end is ignored.
        if not stream and (accepted.requested is not None or request.ignore_eos):
            check_answer_size(accepted, sum(prompt_tokens))
        num_choices = len(prompts) * accepted.n
        if num_choices > 1:  # a hostile request must not make too many engine requests
            responder.engine.check_admission(num_choices)
        requests = self.builder.build(
            accepted, meta, prompts, context=context, constraint=constraint, writer=writer
        )
        if self.scripts is not None:
            requests = self.scripts.direct(
                request, prompts, requests, writer=writer, context=context
            )
        return responder.respond(requests, writer, stream, context)
