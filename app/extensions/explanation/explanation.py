"""Explains why a choice was late: its phases, each with its cause, and one sentence.

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
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from app.core.engine.request import DECODE, PREFILL, EngineRequest, SequenceOutcome
from app.extensions.explanation.delays import Admission, DelayLog, Step, Wait

MAX_PIECES = 16
"""Maximum pieces of a wait."""
MAX_SHOWN = 20
"""Maximum steps and chunks that are shown."""
SHOWN_SHARE = 0.1
"""Minimum share of the whole time of a part of the sentence."""
SLOWED_SHARE = 0.25
"""Minimum share of a phase that other prompts took, to be mentioned."""
NEARLY_ALL = 0.95
"""Share of a phase that counts as the whole phase."""
TRANSFER = "the KV cache of its prefill on another engine"
WAITED = {
    "": "in the queue",
    "places": "for a slot",
    "budget": "for room in a step",
    "blocks": "for KV blocks",
    "adapter": "for an adapter slot",
    "priority": "behind higher priority",
    "paused": "while the engine was paused",
    "step": "for the running step",
}
"""Words of the sentence for each cause of a wait."""
SLOW_TOKENS = 256
"""Minimum tokens of other prompts that make a step noticeably longer.

Computing them takes as long as reading the weights.
"""
SLACK_S = 1.0
"""Maximum disorder of logged admissions, in seconds."""
MAX_HOLDERS = 2000
"""Maximum admissions that are searched for a long prompt."""
ENDINGS = {
    "waiting": " (so far)",
    "running": " (so far)",
    "abort": " (aborted)",
    "error": " (failed)",
}
"""Ending of the sentence for a choice that did not finish; its last phase lasts to the end."""

E = TypeVar("E", bound=tuple[Any, ...])
_longest_wait = attrgetter("took_s", "wait")
_took_ms = attrgetter("took_ms")


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
    """Start and end of each step with a part of the prompt, and the part's tokens."""

    @property
    def took_ms(self) -> float:
        """Length of the phase in milliseconds."""
        return self.to_ms - self.from_ms


class ShownStep(Struct):
    """A step in an explanation."""

    from_ms: float
    to_ms: float
    decodes: int
    prompt_tokens: int
    prompts: list[tuple[str, int]]
    """Request id and tokens of the prompts computed in the step, this choice's among them."""


class Explanation(Struct):
    """Why a choice took its time; `status` is the finish reason, or `waiting` or `running`."""

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


class Piece(NamedTuple):
    """A part of a wait that has one cause."""

    start_s: float
    stop_s: float
    cause: str
    wait: Wait
    """Entry of the log in force during the piece."""

    @property
    def took_s(self) -> float:
        """Length of the piece in seconds."""
        return self.stop_s - self.start_s


def explain(
    request: EngineRequest, outcome: SequenceOutcome, log: DelayLog, key: int | None = None
) -> Explanation:
    """Explains a choice by its outcome, final or as of now (`waiting`, `running`).

    `key` is the `id()` of the engine's request where `request` is a copy.
    """
    case = _Case(request, outcome, log, key=id(request) if key is None else key)
    phases = list(case.phases())
    shared_steps = [step for step in case.steps if step.start_s >= case.scheduled_s]
    longest_steps = sorted(nlargest(MAX_SHOWN, shared_steps, key=_step_length))
    return Explanation(
        choice=request.index,
        status=outcome.reason,
        sentence=_Sentence(case, phases).text(),
        total_ms=case.ms(case.end_s),
        phases=phases,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=outcome.cached_tokens,
        fetched_tokens=outcome.fetched_tokens,
        tokens=outcome.tokens,
        preemptions=outcome.preemptions,
        steps=len(shared_steps),
        longest_steps=[case.shown(step) for step in longest_steps],
    )


class _Case:
    """One choice, and the log from its arrival to its end."""

    def __init__(
        self, request: EngineRequest, outcome: SequenceOutcome, log: DelayLog, key: int
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.key = key
        self._log = log
        self._zero_s = request.arrival_s
        self.end_s = end_s = max(outcome.ended_s, outcome.last_token_s or 0.0)
        self._queued_s = queued_s = min(max(request.arrival_s, outcome.queued_s), end_s)
        self.scheduled_s = end_s if outcome.scheduled_s is None else outcome.scheduled_s
        self.steps = [step for step in since(log.steps, queued_s, 1) if step.start_s < end_s]
        self._chunks = [
            (step, chunk.tokens)
            for step in self.steps
            for chunk in step.chunks
            if chunk.key == self.key
        ]
        self._admissions = [
            admission
            for admission in since(log.admissions, queued_s - SLACK_S)
            if queued_s <= admission.at_s <= end_s
        ]
        self._interruptions = [
            interruption
            for interruption in since(log.interruptions, queued_s)
            if interruption.key == self.key and interruption.at_s <= end_s
        ]

    def ms(self, moment_s: float) -> float:
        """Returns the milliseconds from the arrival to a moment."""
        return round((moment_s - self._zero_s) * 1000, 1)

    def shown(self, step: Step) -> ShownStep:
        """Returns a step as it is shown."""
        return ShownStep(
            from_ms=self.ms(step.start_s),
            to_ms=self.ms(step.end_s),
            decodes=step.decodes,
            prompt_tokens=step.prefill_tokens,
            prompts=[(chunk.request_id, chunk.tokens) for chunk in step.chunks],
        )

    def _phase(
        self, phase: str, from_s: float, to_s: float, cause: str = "", detail: str = ""
    ) -> PhaseTime:
        chunks = [
            (self.ms(step.start_s), self.ms(step.end_s), tokens)
            for step, tokens in self._chunks
            if from_s <= step.start_s < to_s
        ]
        return PhaseTime(
            phase=phase,
            from_ms=self.ms(from_s),
            to_ms=self.ms(to_s),
            cause=cause,
            detail=detail,
            chunks=chunks[:MAX_SHOWN],
        )

    def phases(self) -> Iterator[PhaseTime]:
        """Yields the phases in order."""
        outcome = self.outcome
        at_s = self._queued_s
        if at_s > self._zero_s:
            yield self._phase("line", self._zero_s, at_s)
        for transfer in self._interruptions:
            if transfer.until_s < inf and transfer.at_s < self.scheduled_s:
                yield from self._waits(at_s, transfer.at_s)
                at_s = min(transfer.until_s, self.scheduled_s)
                yield self._phase("transfer", transfer.at_s, at_s)
        yield from self._waits(at_s, self.scheduled_s)
        # Without steps a sequence has its slot while its cache is transferred.
        is_transfer = self.request.remote_prefill and not self.steps
        times = outcome.phases(self._zero_s)
        if PREFILL in times:
            yield from self._computed("transfer" if is_transfer else PREFILL, *times[PREFILL])
        if DECODE in times:
            yield from self._computed(DECODE, *times[DECODE])

    def _computed(self, phase: str, from_s: float, to_s: float) -> Iterator[PhaseTime]:
        """Yields prefill or decode, in pieces where a preemption interrupted it."""
        for preemption in self._interruptions:
            if preemption.until_s == inf and from_s <= preemption.at_s < to_s:
                yield self._phase(phase, from_s, preemption.at_s)
                from_s = min(self._readmitted_s(preemption.at_s), to_s)
                yield self._phase(
                    "preempted", preemption.at_s, from_s, "blocks", detail=preemption.detail
                )
        yield self._phase(phase, from_s, to_s)

    def _readmitted_s(self, preempted_s: float) -> float:
        """Returns when the choice ran again after a preemption; infinity if it did not."""
        for admission in self._admissions:
            if admission.key == self.key and admission.at_s > preempted_s:
                return admission.at_s
        return inf

    # Causes of waits.

    def _waits(self, from_s: float, to_s: float) -> Iterator[PhaseTime]:
        """Yields a time in the queue in pieces of one cause; in one, if they are too many."""
        pieces = list(self._pieces(from_s, to_s))
        runs = [list(run) for _, run in groupby(pieces, key=attrgetter("cause"))]
        if len(runs) > MAX_PIECES:
            runs = [pieces]
        for run in runs:
            seconds: dict[str, float] = {}
            for piece in run:
                seconds[piece.cause] = seconds.get(piece.cause, 0.0) + piece.took_s
            cause = max(seconds, key=seconds.__getitem__)
            longest = max([piece for piece in run if piece.cause == cause], key=_longest_wait)
            start_s = run[0].start_s
            stop_s = run[-1].stop_s
            detail = self._detail(cause, longest.wait, start_s, stop_s)
            yield self._phase("queue", start_s, stop_s, cause, detail=detail)

    def _pieces(self, from_s: float, to_s: float) -> Iterator[Piece]:
        overtakers = self._overtakers
        overtaken_s = overtakers[0].at_s if overtakers else inf
        waits = self._log.waits
        current = Wait(-inf, "")
        for wait in reversed(waits):
            if wait.at_s <= from_s:
                current = wait
                break
        for wait in (*since(waits, from_s), Wait(inf, "")):
            cuts = [max(from_s, current.at_s), min(to_s, wait.at_s)]
            if cuts[0] < overtaken_s < cuts[1]:
                cuts.insert(1, overtaken_s)
            for start_s, stop_s in zip(cuts, cuts[1:], strict=False):
                if stop_s > start_s:
                    cause = self._cause(current, start_s >= overtaken_s)
                    yield Piece(start_s, stop_s, cause, current)
            current = wait

    def _cause(self, wait: Wait, is_overtaken: bool) -> str:
        adapter = self.request.adapter
        if adapter is not None and wait.adapters and adapter not in wait.adapters:
            return "adapter"
        if is_overtaken and wait.cause in ("places", "budget", "blocks"):
            return "priority"
        return wait.cause or ("step" if self.steps else "")

    def _detail(self, cause: str, wait: Wait, from_s: float, to_s: float) -> str:
        if cause == "adapter":
            count = len(wait.adapters)
            return f"{count} of {count} held by {', '.join(wait.adapters)}"
        if cause == "step":

            def overlap_s(step: Step) -> float:
                return min(step.end_s, to_s) - max(step.start_s, from_s)

            return content_of(max(self.steps, key=overlap_s))
        detail = wait.detail
        if wait.cause == "places":
            detail += self._longest_prefill(from_s, to_s)
        if cause == "priority":
            others = counted(len(self._overtakers), "request")
            return f"{others} went first, {WAITED[wait.cause]} too: {detail}"
        return detail

    @cached_property
    def _overtakers(self) -> Sequence[Admission]:
        """Later requests of higher priority that started first.

        Empty if they were fewer than half of the requests that started since then.
        """
        started = [admission for admission in self._admissions if admission.at_s < self.scheduled_s]
        overtakers = [
            admission
            for admission in started
            if admission.priority < self.request.priority and admission.queued_s > self._queued_s
        ]
        if not overtakers:
            return ()
        since_then = sum(admission.at_s >= overtakers[0].at_s for admission in started)
        return overtakers if 2 * len(overtakers) >= since_then else ()

    def _longest_prefill(self, from_s: float, to_s: float) -> str:
        """Names the request whose prompt held a slot for half of this time; only without steps."""
        if self.steps:
            return ""
        holders = [
            (min(admission.first_s, to_s) - max(admission.at_s, from_s), admission)
            for admission in islice(reversed(self._log.admissions), MAX_HOLDERS)
            if admission.key != self.key
            and admission.at_s < to_s
            and from_s < admission.first_s < inf
        ]
        if not holders:
            return ""
        held_s, holder = max(holders)
        if 2 * held_s < to_s - from_s:
            return ""
        return f", one by the prompt of {holder.name}"


class _Sentence:
    """The sentence of an explanation."""

    def __init__(self, case: _Case, phases: Sequence[PhaseTime]) -> None:
        self._case = case
        self._phases = phases

    def text(self) -> str:
        """Returns each part that took a tenth of the whole time, or else the longest one."""
        runs: dict[tuple[str, str], list[PhaseTime]] = {}
        for phase in self._phases:
            runs.setdefault((phase.phase, phase.cause), []).append(phase)
        parts = [(sum(map(_took_ms, run)), run) for run in runs.values()]
        max_ms = max((took_ms for took_ms, _ in parts), default=0.0)
        min_ms = min(SHOWN_SHARE * self._case.ms(self._case.end_s), max_ms)
        clauses = [
            self._clause(took_ms, run)
            for took_ms, run in parts
            if took_ms >= min_ms and took_ms > 0
        ]
        sentence = "; ".join(clauses) or "took no time"
        ending = ENDINGS.get(self._case.outcome.reason, "")
        return f"{sentence[0].upper()}{sentence[1:]}{ending}."

    def _clause(self, took_ms: float, run: Sequence[PhaseTime]) -> str:
        took = duration(took_ms)
        longest = max(run, key=_took_ms)
        if longest.phase == "queue":
            clause = f"waited {took} {WAITED[longest.cause]}"
            return f"{clause}: {longest.detail}" if longest.detail else clause
        if longest.phase == "line":
            return f"spent {took} in the front end"
        if longest.phase == "transfer":
            return f"waited {took} for {TRANSFER}"
        if longest.phase == "preempted":
            return f"was preempted for {took}, as KV blocks had run out: {longest.detail}"
        if longest.phase == "decode":
            tokens = counted(self._case.outcome.tokens, "token")
            return f"{tokens} took {took}{self._deliberate_delay(False)}{self._slowed_by(run)}"
        return self._prefill(took, run)

    def _prefill(self, took: str, run: Sequence[PhaseTime]) -> str:
        outcome = self._case.outcome
        prompt = counted(len(self._case.request.prompt_ids), "token")
        cached_tokens = outcome.cached_tokens + outcome.fetched_tokens
        if cached_tokens:
            prompt += f", {cached_tokens:,} of them cached,"
        chunks = sum(len(phase.chunks) for phase in run)
        parts = f" in {chunks} chunks" if chunks > 1 else ""
        causes = f"{self._deliberate_delay(True)}{self._slowed_by(run)}"
        return f"prefill of {prompt} took {took}{parts}{causes}"

    def _deliberate_delay(self, is_first: bool) -> str:
        """Returns how long a fault or a script held back the first token, or the later ones."""
        script = self._case.request.script
        tokens = self._case.outcome.tokens
        delays = list(self._case.request.delays)
        delay_s = 0.0
        if script is not None:
            delays += script.token_delays.items()
            delay_s = script.first_token_s if is_first else script.per_token_s * max(0, tokens - 1)
        for token, seconds in delays:
            if token < tokens and (token == 0) == is_first:
                delay_s += seconds
        if not delay_s:
            return ""
        return f", {duration(delay_s * 1000)} of it on purpose (a fault or a script)"

    def _slowed_by(self, run: Sequence[PhaseTime]) -> str:
        """Returns how long prompts of other requests slowed a phase; empty if for a minor part."""
        case = self._case
        slow_steps: list[tuple[float, Step]] = []
        for phase in run:
            for step in case.steps:
                overlap_ms = min(case.ms(step.end_s), phase.to_ms) - max(
                    case.ms(step.start_s), phase.from_ms
                )
                if overlap_ms > 0 and self._is_slow(step):
                    slow_steps.append((overlap_ms, step))
        slowed_ms = sum(overlap_ms for overlap_ms, _ in slow_steps)
        whole_ms = sum(map(_took_ms, run))
        if not slow_steps or slowed_ms < SLOWED_SHARE * whole_ms:
            return ""
        share = "all" if slowed_ms > NEARLY_ALL * whole_ms else duration(slowed_ms)
        _, longest = max(slow_steps)
        return f", {share} of it in steps with other prompts: {content_of(longest, case.key)}"

    def _is_slow(self, step: Step) -> bool:
        others = [chunk.tokens for chunk in step.chunks if chunk.key != self._case.key]
        return sum(others) >= SLOW_TOKENS


def since(entries: deque[E], moment_s: float, field: int = 0) -> list[E]:
    """Returns the entries of a log from a moment on, oldest first.

    `field` is the position of the entries' moments.
    """
    start = bisect_left(entries, moment_s, key=itemgetter(field))
    return list(islice(entries, start, None))


def content_of(step: Step, excluded_key: int = 0) -> str:
    """Returns the largest prompt of a step, other than that of the request `excluded_key`.

    Returns the number of decodes, if there is no such prompt.
    """
    chunks = [chunk for chunk in step.chunks if chunk.key != excluded_key]
    if not chunks:
        return counted(step.decodes, "decode")
    largest = max(chunks, key=attrgetter("tokens"))
    return f"{counted(largest.tokens, 'token')} of the prompt of {largest.request_id}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 token` or `2 tokens`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(took_ms: float) -> str:
    """Returns `18.0 s`, `310 ms`, or `0.4 ms`."""
    if took_ms >= 999.5:
        return f"{took_ms / 1000:.1f} s"
    if took_ms >= 10:
        return f"{took_ms:.0f} ms"
    return f"{took_ms:.1f} ms"


def _step_length(step: Step) -> float:
    return step.end_s - step.start_s
