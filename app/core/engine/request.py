"""The engine's request for one choice, the whole reply to it, and the outcome for its observers.

The engine does not know its observers (traces, rate limits). Start with `EngineRequest` and
`Reply`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from app.core.base.metrics.recorder import PhaseSeconds, phase_seconds
from app.core.engine.choice_request import ChoiceRequest
from app.core.engine.constraints import Grammar
from app.core.engine.outputs import Finish, Part, StopCause, TokenLogprob

STOP = Finish("stop")
LENGTH = Finish("length")
QUEUED, PREFILL, DECODE = PHASES = ("queued", "prefill", "decode")
UNFINISHED = frozenset(("waiting", "running", "abort", "error"))
"""Reasons of outcomes whose last phase lasts to the end."""
REASONING = Part("reasoning")
MARK = Part("mark")
"""Part of the tokens before and after thoughts. No answer shows their text."""
PARSERS_WITHOUT_SWITCH = frozenset(["deepseek_r1", "ernie45", "minimax_m2", "step3", "step3p5"])
"""Parsers that take all text up to the end tag as thoughts, whatever the request switches off."""
JsonSchema = Mapping[str, object] | bool
Span = tuple[int, Part | None]
"""Number of the last token + 1, and the part of tokens up to there."""
log = logging.getLogger(__name__)


class ToolFunction(Struct, frozen=True):
    """A function that a reply may call; `schema` is that of its arguments."""

    name: str
    schema: JsonSchema = True
    description: str = ""
    strict: bool = False
    """May be called where a constraint on the text forbids other calls."""


class ToolCalls(Struct, frozen=True, kw_only=True):
    """Tool calls that a reply may contain: `min_calls` to `max_calls` calls of `tools`."""

    tools: tuple[ToolFunction, ...]
    min_calls: int = 0
    max_calls: int = 1
    draws_call: bool = False
    """At least one call is made where calls are drawn, although none is required."""
    named: bool = False
    """The client named the tool, which is called exactly once even if few tokens are left."""
    lenient: bool = False
    """Invalid parts of a schema are ignored instead of raising errors."""
    question: str = ""
    """Text of the last user message; empty right after the result of a tool."""
    streams: bool = False
    """The answer is a stream: a parser sees the text of the reply token by token."""
    first_only: bool = False
    """Of the calls in the text of the reply, the client gets the first one."""


class Constraint(Struct, frozen=True, kw_only=True):
    """Constraint on the text.

    It is JSON of `schema`, a match of `regex`, one of `choices`, or a text of `grammar`.
    """

    schema: JsonSchema | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    grammar: Grammar | None = None


class ScriptedCall(NamedTuple):
    """A tool call. `arguments` is JSON, or any text of an unchecked call of a script.

    The response writer generates an `id` if empty.
    """

    name: str
    arguments: str
    id: str = ""


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """A reply decided by a script; waits are in seconds, added to the engine's own."""

    passes: bool = False
    """The model decides the text; only the waits come from the script."""
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    in_parts: bool = True
    """Thoughts and calls are separate parts; if False, they are markup within the text."""
    finish: StopCause | None = None
    """Finish reason unless a limit ends the reply."""
    max_tokens: int = 0
    """Limit of the reply if it is above that of the request."""
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    token_delays: Mapping[int, float] = {}
    """Token number, from 0, to the wait before that token."""

    def delays(self, tokens: int) -> list[tuple[int, float]]:
        """Returns the waits, as token number and seconds, for a reply of `tokens` tokens."""
        if not (self.first_token_s or self.per_token_s or self.token_delays):
            return []
        delays: dict[int, float] = {}
        if self.per_token_s:
            delays = dict.fromkeys(range(1, tokens), self.per_token_s)
        if self.first_token_s:
            delays[0] = self.first_token_s
        for token, seconds in self.token_delays.items():
            delays[token] = delays.get(token, 0.0) + seconds
        return list(delays.items())


class EngineRequest(ChoiceRequest, frozen=True, kw_only=True):
    """One choice of one request, into which every API family translates its requests."""

    index: int
    """Position of this choice in the response: prompt index * n + choice."""
    model: str
    echo_text: str
    """Reply text of mode `echo`: the last message, or the prompt."""
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, for datasets keyed by messages; else empty."""
    tool_calls: ToolCalls | None = None
    """For a simulated model, like `constraint`; a real one has the original `form` of both."""
    constraint: Constraint | None = None
    reasoning: bool = False
    only_thoughts: bool = False
    """The model must not think, and the parser treats the whole reply as thoughts."""
    raw: bool = False
    """The reply is a text with its markup, without parts."""
    image: bool = False
    adapter: str | None = None
    """LoRA adapter that must be in memory while the choice runs."""
    media: tuple[tuple[str, int, int], ...] = ()
    """(identifier, first token, tokens) of each image, audio or video in the prompt."""
    cache_hit_threshold: float = 0.0
    """Minimum cached share of the prompt.

    With less, the request ends at once with `cache_threshold`.
    """
    remote_prefill: bool = False
    """The prefill ran on another engine: its cache is transferred instead of computed."""
    delays: tuple[tuple[int, float], ...] = ()
    """Deliberate extra waits: (before token n of the reply, seconds)."""
    script: ScriptedReply | None = None
    address: object = None
    """Location of this prompt's cache in the response, for another engine; None for no location."""
    source: Mapping[str, object] | None = None
    """`kv_transfer_params` of the request, with the location of a remote prefill's cache."""
    n: int = 1
    """Choices requested for this prompt (metrics only)."""
    beams: bool = False
    length_penalty: float = 1.0
    """Power of its length that divides the log probability of a beam."""
    engine: int | None = None
    """Position of the only engine that may run the choice, among those of the server."""
    num_choices: int = 1
    """Choices of the whole request.

    Several advance in turn, token by token, as in an engine's steps.
    """
    observers: Sequence[Observer] = ()


class SequenceOutcome(Struct, frozen=True, kw_only=True, gc=False):
    """Outcome of one sequence, with monotonic seconds; None for phases that it did not reach."""

    reason: str
    """`stop`, `length`, `abort` (the client disconnected) or `error`."""
    queued_s: float
    """When the scheduler saw the sequence."""
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    cached_tokens: int
    fetched_tokens: int
    tokens: int
    preemptions: int
    text: str
    """The reply without thoughts, calls and images."""

    def seconds(self) -> PhaseSeconds:
        """Returns the durations of the phases, for metrics; spans show `phases`."""
        durations = phase_seconds(
            self.queued_s,
            self.scheduled_s,
            first_s=self.first_token_s,
            last_s=self.last_token_s or 0.0,
            now_s=self.ended_s,
        )
        return PhaseSeconds(*durations)

    def phases(self, arrival_s: float) -> dict[str, tuple[float, float]]:
        """Returns begin and end of each of `PHASES` that the sequence reached.

        The last phase of a sequence that was aborted, failed, or still runs lasts to its end.
        """
        possible_begins = (arrival_s, self.scheduled_s, self.first_token_s)
        begins = [begin_s for begin_s in possible_begins if begin_s is not None]
        last_token_s = self.last_token_s
        last_end_s = max(self.ended_s, last_token_s or 0.0)
        if last_token_s is not None and self.reason not in UNFINISHED:
            last_end_s = last_token_s
        ends = [*begins[1:], last_end_s]
        return {
            phase: (begin_s, max(begin_s, end_s))
            for phase, begin_s, end_s in zip(PHASES, begins, ends, strict=False)
        }


def unix_moment_s(moment_s: float, offset_s: float) -> float:
    """Returns a monotonic moment in Unix seconds, in microseconds: a float holds no more."""
    return round(moment_s + offset_s, 6)


class RequestMoments(NamedTuple):
    """The first moments of a request's ended choices, and the last token, in Unix seconds.

    None for moments that no choice reached.
    """

    queued_s: float | None
    scheduled_s: float | None
    first_s: float | None
    last_s: float | None

    @classmethod
    def of(cls, outcomes: Sequence[SequenceOutcome], offset_s: float) -> RequestMoments:
        """`offset_s` leads from monotonic to Unix seconds."""

        def choose(pick: Callable[[list[float]], float], name: str) -> float | None:
            moments_s = [getattr(outcome, name) for outcome in outcomes]
            reached_s = [moment_s for moment_s in moments_s if moment_s is not None]
            return unix_moment_s(pick(reached_s), offset_s) if reached_s else None

        return cls(
            queued_s=choose(min, "queued_s"),
            scheduled_s=choose(min, "scheduled_s"),
            first_s=choose(min, "first_token_s"),
            last_s=choose(max, "last_token_s"),
        )


Watch = Callable[[SequenceOutcome], None]
"""Receives the outcome once, when a sequence ends, perhaps in the hub: must not wait."""

Observer: TypeAlias = Callable[[EngineRequest], Watch | None]
"""Returns a watch for a submitted sequence, or None for no interest.

Called in the request's greenlet.
"""


def watches_of(request: EngineRequest) -> list[Watch]:
    """Returns the watches of a request's observers."""
    watches: list[Watch] = []
    for observer in request.observers:
        watch = observer(request)
        if watch is not None:
            watches.append(watch)
    return watches


def notify(watches: Iterable[Watch], outcome: SequenceOutcome) -> None:
    """Calls all watches; an error of one is logged and stops nothing else."""
    for watch in watches:
        try:
            watch(outcome)
        except Exception:
            log.exception("a sequence observer failed")


class Reply(Struct, gc=False):
    """A reply: `texts[i]` is the text that token `ids[i]` adds, `finish` the way the reply ends.

    Items of `texts` beyond the last id are not tokens but, for example, images. `spans` assigns
    tokens to parts. Plain text has no spans.
    """

    texts: Sequence[str]
    ids: Sequence[int]
    finish: Finish
    spans: Sequence[Span] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """One entry per prompt token, if requested; the first is None."""
    delays: Sequence[tuple[int, float]] = ()

    def all_spans(self) -> Sequence[Span]:
        """Returns the spans; for plain text one of the whole reply."""
        return self.spans or [(len(self.texts), None)]

    def content(self, tokens: int) -> str:
        """Returns the first `tokens` without thoughts, calls and images."""
        if not self.spans:
            return "".join(self.texts[:tokens])
        texts: list[str] = []
        start = 0
        for end, part in self.spans:
            if part is None:
                texts += self.texts[start : min(end, tokens)]
            start = end
        return "".join(texts)

    def cut(self, max_tokens: int) -> Reply:
        """Returns the first `max_tokens` tokens; a longer reply finishes with LENGTH."""
        if len(self.ids) <= max_tokens:
            return self
        cut = replace(self, texts=self.texts[:max_tokens], ids=self.ids[:max_tokens], finish=LENGTH)
        if self.spans:
            cut.spans = without_empty([(min(end, max_tokens), part) for end, part in self.spans])
        return cut


def without_empty(spans: Sequence[Span]) -> list[Span]:
    """Returns the spans that have tokens."""
    starts = (0, *(end for end, _ in spans))
    return [span for start, span in zip(starts, spans, strict=False) if span[0] > start]


def joined(first: Reply, second: Reply) -> Reply:
    """Returns the reply that consists of two; it ends as the second one."""
    shift = len(first.texts)
    spans = [*first.all_spans(), *((end + shift, part) for end, part in second.all_spans())]
    return Reply(
        texts=[*first.texts, *second.texts],
        ids=[*first.ids, *second.ids],
        finish=second.finish,
        spans=without_empty(spans),
    )


def as_thoughts(reply: Reply) -> Reply:
    """Returns a reply that consists of thoughts."""
    return replace(reply, spans=[(len(reply.texts), REASONING)])


class RecordedReply(Struct, frozen=True):
    """A recorded reply, cut to the limit: `texts[i]` is the text of token `ids[i]`."""

    ids: Sequence[int]
    texts: Sequence[str]
    missing: int
    """Tokens to append so that the reply has its minimum length."""
    reached_limit: bool
    """The reply reaches its limit, missing tokens included.

    It finishes with `length`, else with `stop`.
    """


class Model(Protocol):
    """Decides replies; the engine decides timing."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the whole reply. Calls come in order of arrival.

        Raises:
            UnsatisfiableSchemaError: No reply can have the requested form.
        """
