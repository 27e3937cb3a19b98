"""What one choice is asked for, in the same words for all API families, and who is told how it went.

Those who are told (traces, rate limits) the engine does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from app.engine.outputs import StopCause
from app.engine.wire import Sampling, TextForm
from app.schema.derivation import Grammar

log = logging.getLogger(__name__)

JsonSchema = Mapping[str, object] | bool


class Tool(Struct, frozen=True):
    """A function that may be called; `schema` is that of its arguments."""

    name: str
    schema: JsonSchema = True


class ToolCalls(Struct, frozen=True, kw_only=True):
    """The tool calls that a reply may consist of: at least `least`, at most `most`, of `tools`."""

    tools: tuple[Tool, ...]
    least: int = 0
    most: int = 1
    named: bool = False
    """The client named the tool: it is called once, whatever the room for it."""
    lenient: bool = False
    """What is wrong in a schema is left out of it, instead of being an error."""


class Constraint(Struct, frozen=True, kw_only=True):
    """What the text must be: JSON of `schema`, a match of `regex`, one of `choices`, a text of `grammar`."""

    schema: JsonSchema | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    grammar: Grammar | None = None


class ScriptedCall(NamedTuple):
    """A tool call: arguments are JSON, an empty id is drawn by the writer."""

    name: str
    arguments: str
    id: str = ""


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """What a script has decided about a reply; waits are in seconds, on top of the engine's own."""

    passes: bool = False
    """The model decides what is said; only the waits are the script's."""
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    in_parts: bool = True
    """Thoughts and calls are told apart from the text; else they are in it, marked up."""
    finish: StopCause | None = None
    """How it ends where no limit ends it."""
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    before: Mapping[int, float] = {}
    """Token, counted from 0, to the wait before it."""


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One choice of one request. Every API family translates into this once.

    Token counts are in tokens, `arrival_s` in seconds of the monotonic clock.
    """

    request_id: str
    index: int
    """Place of this choice in the answer: prompt index * n + choice (vllm-api.md 3.2)."""
    model: str
    prompt_ids: Sequence[int]
    echo_text: str
    """What mode `echo` says: the last message, or the prompt."""
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, for datasets that know prompts by them; else empty."""
    max_tokens: int
    """Already limited to what fits the context."""
    limited: bool
    """True when the client gave `max_tokens`; the length model differs (simulator.md 5.4)."""
    arrival_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    seed: int | None = None
    greedy: bool = False
    """Temperature 0: the same prompt gets the same reply."""
    logprobs: int | None = None
    """Alternatives wanted per generated token; None when no log probabilities are wanted."""
    logprob_ids: tuple[int, ...] = ()
    """Tokens that are the alternatives, where the client names them."""
    prompt_logprobs: int | None = None
    tool_calls: ToolCalls | None = None
    constraint: Constraint | None = None
    sampling: Sampling | None = None
    """How a model chooses tokens; None where a simulation chooses them as it likes."""
    form: TextForm | None = None
    """`constraint` and forced `tool_calls` as they were written, for a model that computes."""
    reasoning: bool = False
    """The model thinks aloud before it replies."""
    only_thoughts: bool = False
    """The model is told not to think, and the parser takes its whole reply for thoughts."""
    thinking_budget: int | None = None
    """Most tokens of thoughts."""
    image: bool = False
    """An image follows the reply."""
    adapter: str | None = None
    """LoRA adapter that must be resident while this runs."""
    priority: int = 0
    """Lower is earlier, where the scheduling policy looks at it."""
    cache_salt: str | None = None
    """Prompts with another salt share no cached block with this one."""
    media: tuple[tuple[str, int, int], ...] = ()
    """(identifier, first token, tokens) of each image or the like in the prompt."""
    least_hit_rate: float = 0.0
    """With a smaller share of its prompt cached the request ends at once, with `cache_threshold`."""
    remote_prefill: bool = False
    """The prefill was done elsewhere: its cache is fetched instead of computed."""
    delays: tuple[tuple[int, float], ...] = ()
    """Extra waits on purpose: (before token n of the reply, seconds)."""
    script: ScriptedReply | None = None
    remote_decode: bool = False
    """The decode will be done elsewhere: the answer says where this cache is."""
    n: int = 1
    """Choices that this prompt was asked for (metrics only)."""
    beams: bool = False
    """The choices are the beams of a search."""
    together: int = 1
    """Choices of the whole request. Several take turns token by token, as in the steps of an engine."""
    observers: Sequence[Observer] = ()
    """Asked about this sequence when it is admitted."""


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """How a sequence went.

    Moments are seconds of the monotonic clock, None where it did not come to that: without `scheduled_s` it
    never got a slot, without `first_token_s` it ended before its first token.
    """

    reason: str
    """`stop`, `length`, `abort` (the client is gone) or `error`."""
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    cached_tokens: int
    tokens: int
    """Generated, until the end."""


Watch = Callable[[Outcome], None]
"""Called once, when a sequence is over, by whoever ended it, perhaps the hub: it must not wait."""

Observer: TypeAlias = Callable[[EngineRequest], Watch | None]
"""Called in the request's greenlet for each sequence that is submitted; None when it is of no interest."""


def watches_of(request: EngineRequest) -> list[Watch]:
    """Who wants to be told how this sequence went."""
    watches = (observer(request) for observer in request.observers)
    return [watch for watch in watches if watch is not None]


def notify(watches: Iterable[Watch], outcome: Outcome) -> None:
    """Call all of them. One that fails keeps nothing else from being called, or done."""
    for watch in watches:
        try:
            watch(outcome)
        except Exception:
            log.exception("an observer of a sequence failed")
