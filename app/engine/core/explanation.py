"""Why was it late? The phases of one choice, each with its cause, and one sentence in plain words.

Moments of the log are monotonic seconds; an explanation has milliseconds from the arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from typing import Any, TypeVar

from msgspec import Struct

from app.engine.core.delays import Admission, DelayLog, Step, Wait
from app.engine.core.request import EngineRequest, SequenceOutcome

MOST_PIECES, MOST_SHOWN = 16, 20
"""Most pieces of a wait, and most steps and chunks that are shown."""
SHOWN_SHARE, SLOWED_SHARE = 0.1, 0.25
"""Least share of the whole time of a part of the sentence, and of a phase for what slowed it."""
TRANSFER = "the KV cache of its prefill on another engine"
WAITED = {
    "": "in the queue",
    "places": "for a place",
    "budget": "for room in a step",
    "blocks": "for KV blocks",
    "adapter": "for an adapter slot",
    "priority": "behind higher priority",
    "paused": "while the engine was paused",
    "step": "for the step under way",
}
"""Words of the sentence for each cause of a wait."""
SLOW_TOKENS = 256
"""Least tokens of other prompts that make a step noticeably longer:

as long to compute as weights to read.
"""
SLACK_S, MOST_HOLDERS = 1.0, 2000
"""Most disorder of logged admissions, in seconds, and most of them that are searched for a long
prompt.
"""
ENDINGS = {
    "waiting": " (so far)",
    "running": " (so far)",
    "abort": " (aborted)",
    "error": " (failed)",
}
"""Words behind the sentence of a choice that has not ended as it should; its last phase lasts to
the end.
"""


E = TypeVar("E", bound=tuple[Any, ...])


def since(entries: deque[E], moment_s: float, field: int = 0) -> list[E]:
    """Returns the entries of a log from a moment on, oldest first; `field` is the position of
    theirs.
    """
    return list(islice(entries, bisect_left(entries, moment_s, key=itemgetter(field)), None))


class PhaseTime(Struct, omit_defaults=True):
    """A phase of one choice; phases follow one another without overlap.

    `phase` is `line` (front end), `queue`, `transfer`, `prefill`, `preempted` or `decode`, `cause`
    that of a wait (`delays.Cause`).
    """

    phase: str
    from_ms: float
    to_ms: float
    cause: str = ""
    detail: str = ""
    chunks: list[tuple[float, float, int]] = []
    """Begin and end of each step with a part of the prompt, and the part's tokens."""

    @property
    def took_ms(self) -> float:
        return self.to_ms - self.from_ms


class ShownStep(Struct):
    from_ms: float
    to_ms: float
    decodes: int
    prompt_tokens: int
    prompts: list[tuple[str, int]]
    """Request id and tokens of the prompts computed in the step, this choice's among them."""


class Explanation(Struct):
    """`status` is the finish reason, or `waiting` or `running`."""

    choice: int
    status: str
    sentence: str
    total_ms: float
    phases: list[PhaseTime]
    prompt_tokens: int
    cached_tokens: int
    fetched_tokens: int
    tokens: int
    preemptions: int
    steps: int
    """Number of shared steps from the admission to the last token."""
    longest_steps: list[ShownStep]


def explain(request: EngineRequest, outcome: SequenceOutcome, log: DelayLog) -> Explanation:
    """Explains a choice by its outcome, final or as of now (`waiting`, `running`)."""
    case = _Case(request, outcome, log)
    phases, shared = (
        list(case.phases()),
        [it for it in case.steps if it.start_s >= case.scheduled_s],
    )
    longest = sorted(nlargest(MOST_SHOWN, shared, key=lambda it: it.end_s - it.start_s))
    return Explanation(
        choice=request.index,
        status=outcome.reason,
        sentence=case.sentence(phases),
        total_ms=case.ms(case.end_s),
        phases=phases,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=outcome.cached_tokens,
        fetched_tokens=outcome.fetched_tokens,
        tokens=outcome.tokens,
        preemptions=outcome.preemptions,
        steps=len(shared),
        longest_steps=[case.shown(it) for it in longest],
    )


class _Case:
    """One choice, and the log from its arrival to its end."""

    def __init__(self, request: EngineRequest, outcome: SequenceOutcome, log: DelayLog) -> None:
        self._request, self._outcome, self._log = request, outcome, log
        self._key, self._zero_s = id(request), request.arrival_s
        self.end_s = end_s = max(outcome.ended_s, outcome.last_token_s or 0.0)
        self._queued_s = queued_s = min(max(request.arrival_s, outcome.queued_s), end_s)
        self.scheduled_s = end_s if outcome.scheduled_s is None else outcome.scheduled_s
        self.steps = [it for it in since(log.steps, queued_s, 1) if it.start_s < end_s]
        self._chunks = [
            (it, chunk.tokens) for it in self.steps for chunk in it.chunks if chunk.key == self._key
        ]
        self._admissions = [
            it for it in since(log.admissions, queued_s - SLACK_S) if queued_s <= it.at_s <= end_s
        ]
        self._own = [it for it in since(log.interruptions, queued_s) if it.key == self._key]

    def ms(self, moment_s: float) -> float:
        return round((moment_s - self._zero_s) * 1000, 1)

    def shown(self, it: Step) -> ShownStep:
        prompts = [(chunk.request_id, chunk.tokens) for chunk in it.chunks]
        return ShownStep(
            self.ms(it.start_s), self.ms(it.end_s), it.decodes, it.prefill_tokens, prompts
        )

    def _phase(
        self, phase: str, from_s: float, to_s: float, cause: str = "", detail: str = ""
    ) -> PhaseTime:
        chunks = [
            (self.ms(it.start_s), self.ms(it.end_s), tokens)
            for it, tokens in self._chunks
            if from_s <= it.start_s < to_s
        ]
        return PhaseTime(phase, self.ms(from_s), self.ms(to_s), cause, detail, chunks[:MOST_SHOWN])

    def phases(self) -> Iterator[PhaseTime]:
        outcome, at_s = self._outcome, self._queued_s
        if at_s > self._zero_s:
            yield self._phase("line", self._zero_s, at_s)
        for it in self._own:
            if it.until_s < inf and it.at_s < self.scheduled_s:
                yield from self._waits(at_s, it.at_s)
                at_s = min(it.until_s, self.scheduled_s)
                yield self._phase("transfer", it.at_s, at_s)
        yield from self._waits(at_s, self.scheduled_s)
        if outcome.scheduled_s is None:
            return
        # Without steps a sequence has its slot while its cache is transferred.
        prefill = "transfer" if self._request.remote_prefill and not self.steps else "prefill"
        first_s, last_s = outcome.first_token_s, outcome.last_token_s
        if first_s is None or last_s is None:
            yield from self._computed(prefill, self.scheduled_s, self.end_s)
            return
        yield from self._computed(prefill, self.scheduled_s, first_s)
        yield from self._computed(
            "decode", first_s, self.end_s if outcome.reason in ENDINGS else last_s
        )

    def _computed(self, phase: str, from_s: float, to_s: float) -> Iterator[PhaseTime]:
        """Yields prefill or decode, in pieces where a preemption interrupted it."""
        for it in self._own:
            if it.until_s == inf and from_s <= it.at_s < to_s:
                again = (
                    own.at_s
                    for own in self._admissions
                    if own.key == self._key and own.at_s > it.at_s
                )
                yield self._phase(phase, from_s, it.at_s)
                from_s = min(next(again, to_s), to_s)
                yield self._phase("preempted", it.at_s, from_s, "blocks", it.detail)
        yield self._phase(phase, from_s, to_s)

    # Causes of waits.

    def _waits(self, from_s: float, to_s: float) -> Iterator[PhaseTime]:
        """Yields a time in the queue in pieces of one cause; one piece, if they would be too many."""
        pieces = list(self._pieces(from_s, to_s))
        runs = [list(run) for _, run in groupby(pieces, key=lambda it: it[2])]
        for run in runs if len(runs) <= MOST_PIECES else [pieces]:
            took_s: dict[str, float] = {}
            for start_s, stop_s, of, _ in run:
                took_s[of] = took_s.get(of, 0.0) + stop_s - start_s
            cause = max(took_s, key=took_s.__getitem__)
            wait = max(
                (stop_s - start_s, wait) for start_s, stop_s, of, wait in run if of == cause
            )[1]
            detail = self._detail(cause, wait, run[0][0], run[-1][1])
            yield self._phase("queue", run[0][0], run[-1][1], cause, detail)

    def _pieces(self, from_s: float, to_s: float) -> Iterator[tuple[float, float, str, Wait]]:
        """Yields begin and end of each piece, its cause, and its entry of the log."""
        overtakers = self._overtakers
        over_s = overtakers[0].at_s if overtakers else inf
        waits = self._log.waits
        current = next((it for it in reversed(waits) if it.at_s <= from_s), Wait(-inf, ""))
        for wait in (*since(waits, from_s), Wait(inf, "")):
            cuts = [max(from_s, current.at_s), min(to_s, wait.at_s)]
            if cuts[0] < over_s < cuts[1]:
                cuts.insert(1, over_s)
            for start_s, stop_s in zip(cuts, cuts[1:], strict=False):
                if stop_s > start_s:
                    yield start_s, stop_s, self._cause(current, start_s >= over_s), current
            current = wait

    def _cause(self, wait: Wait, is_overtaken: bool) -> str:
        adapter = self._request.adapter
        if adapter is not None and wait.adapters and adapter not in wait.adapters:
            return "adapter"
        if is_overtaken and wait.cause in ("places", "budget", "blocks"):
            return "priority"
        return wait.cause or ("step" if self.steps else "")

    def _detail(self, cause: str, wait: Wait, from_s: float, to_s: float) -> str:
        if cause == "adapter":
            return (
                f"{len(wait.adapters)} of {len(wait.adapters)} held by {', '.join(wait.adapters)}"
            )
        if cause == "step":
            return content_of(
                max(self.steps, key=lambda it: min(it.end_s, to_s) - max(it.start_s, from_s))
            )
        detail = wait.detail + (
            self._longest_prefill(from_s, to_s) if wait.cause == "places" else ""
        )
        if cause == "priority":
            others = counted(len(self._overtakers), "request")
            return f"{others} went first, {WAITED[wait.cause]} too: {detail}"
        return detail

    @cached_property
    def _overtakers(self) -> Sequence[Admission]:
        """Returns later requests of higher priority that began first; none, if they were the lesser
        part.
        """
        begun = [it for it in self._admissions if it.at_s < self.scheduled_s]
        priority, queued_s = self._request.priority, self._queued_s
        over = [it for it in begun if it.priority < priority and it.queued_s > queued_s]
        return (
            over if over and 2 * len(over) >= sum(it.at_s >= over[0].at_s for it in begun) else ()
        )

    def _longest_prefill(self, from_s: float, to_s: float) -> str:
        """Names the request whose prompt held a slot for half of this time; only without steps."""
        if self.steps:
            return ""
        holders = [
            (min(it.first_s, to_s) - max(it.at_s, from_s), it)
            for it in islice(reversed(self._log.admissions), MOST_HOLDERS)
            if it.key != self._key and it.at_s < to_s and from_s < it.first_s < inf
        ]
        held_s, longest = max(holders, default=(0.0, None))
        return (
            f", one by the prompt of {longest.name}"
            if longest and 2 * held_s >= to_s - from_s
            else ""
        )

    # The sentence.

    def sentence(self, phases: Sequence[PhaseTime]) -> str:
        """Returns each part that took a tenth of the whole time, or else the longest one."""
        runs: dict[tuple[str, str], list[PhaseTime]] = {}
        for it in phases:
            runs.setdefault((it.phase, it.cause), []).append(it)
        parts = [(sum(it.took_ms for it in run), run) for run in runs.values()]
        least_ms = min(
            SHOWN_SHARE * self.ms(self.end_s), max((took_ms for took_ms, _ in parts), default=0.0)
        )
        told = [
            self._part(took_ms, run)
            for took_ms, run in parts
            if took_ms >= least_ms and took_ms > 0
        ]
        sentence = "; ".join(told) or "took no time"
        return sentence[0].upper() + sentence[1:] + ENDINGS.get(self._outcome.reason, "") + "."

    def _part(self, took_ms: float, run: Sequence[PhaseTime]) -> str:
        took, longest, outcome = (
            duration(took_ms),
            max(run, key=lambda it: it.took_ms),
            self._outcome,
        )
        if longest.phase == "queue":
            return f"waited {took} {WAITED[longest.cause]}" + (
                longest.detail and f": {longest.detail}"
            )
        if longest.phase == "line":
            return f"spent {took} in the front end"
        if longest.phase == "transfer":
            return f"waited {took} for {TRANSFER}"
        if longest.phase == "preempted":
            return f"was preempted for {took}, as KV blocks had run out: {longest.detail}"
        if longest.phase == "decode":
            return (
                f"{counted(outcome.tokens, 'token')} took "
                f"{took}{self._on_purpose(False)}{self._beside(run)}"
            )
        cached, chunks = (
            outcome.cached_tokens + outcome.fetched_tokens,
            sum(len(it.chunks) for it in run),
        )
        prompt = counted(len(self._request.prompt_ids), "token") + (
            cached and f", {cached:,} of them cached," or ""
        )
        parts = f" in {chunks} chunks" * (chunks > 1)
        return f"prefill of {prompt} took {took}{parts}{self._on_purpose(True)}{self._beside(run)}"

    def _on_purpose(self, is_first: bool) -> str:
        """Returns how long a fault or a script held back the first token, or the others."""
        script, tokens = self._request.script, self._outcome.tokens
        delays = [*self._request.delays, *(script.before.items() if script else ())]
        wait_s = sum(
            seconds for token, seconds in delays if token < tokens and (token == 0) == is_first
        )
        if script is not None:
            wait_s += script.first_token_s if is_first else script.per_token_s * max(0, tokens - 1)
        return (
            f", {duration(wait_s * 1000)} of it on purpose (a fault or a script)" if wait_s else ""
        )

    def _beside(self, run: Sequence[PhaseTime]) -> str:
        """Returns how long prompts of other requests slowed a phase; empty if for a lesser part."""
        others = [
            (min(self.ms(it.end_s), phase.to_ms) - max(self.ms(it.start_s), phase.from_ms), it)
            for phase in run
            for it in self.steps
            if it.prefill_tokens >= SLOW_TOKENS
            and sum(chunk.tokens for chunk in it.chunks if chunk.key != self._key) >= SLOW_TOKENS
        ]
        others = [it for it in others if it[0] > 0]
        took_ms, whole_ms = sum(it[0] for it in others), sum(it.took_ms for it in run)
        if not others or took_ms < SLOWED_SHARE * whole_ms:
            return ""
        share = "all" if took_ms > 0.95 * whole_ms else duration(took_ms)
        return (
            f", {share} of it in steps with other prompts: {content_of(max(others)[1], self._key)}"
        )


def content_of(step: Step, but: int = 0) -> str:
    """Returns what a step computed:

    the largest prompt, but not that of the request with the key `but`.
    """
    largest = max(
        (it for it in step.chunks if it.key != but), key=lambda it: it.tokens, default=None
    )
    if largest is None:
        return counted(step.decodes, "decode")
    return f"{counted(largest.tokens, 'token')} of the prompt of {largest.request_id}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def duration(took_ms: float) -> str:
    """Returns `18.0 s`, `310 ms`, or `0.4 ms`."""
    if took_ms >= 999.5:
        return f"{took_ms / 1000:.1f} s"
    return f"{took_ms:.0f} ms" if took_ms >= 10 else f"{took_ms:.1f} ms"
