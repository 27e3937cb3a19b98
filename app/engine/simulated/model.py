"""Decides the content of a reply: text, an echo, thoughts, tool calls, JSON or an image."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol
from zlib import crc32

import msgspec
from msgspec.structs import replace

from app.engine.core.constraints import Constraints, SchemaError
from app.engine.core.errors import SchemaUnsatisfiable
from app.engine.core.outputs import Finish, LazySequence, Part
from app.engine.core.request import (
    LENGTH,
    STOP,
    Constraint,
    EngineRequest,
    Reply,
    ScriptedReply,
    joined,
)
from app.engine.simulated.beams import BeamVariants
from app.engine.simulated.calls import CallReplies, written
from app.engine.simulated.corpus import Corpus, LengthSource, RandomMode, ReplySource
from app.engine.simulated.endings import biased, chooser, stopped
from app.engine.simulated.logprobs import Entries
from app.text.base import Tokenizer
from config.settings import Settings

TRIES = 4
"""Texts drawn to find one that fits the limit."""
THOUGHT_TOKENS = 12, 36
"""Fewest and most tokens of thoughts."""
USUAL_SIZE = 160
"""Characters of a text that a grammar derives, where the grammar leaves the choice."""
CHARACTERS_A_TOKEN = 3
SHARES = (1, 0.5, 0.2, 0)
"""Shares of USUAL_SIZE per try; the last gives the shortest text."""


REASONING = Part("reasoning")
THOUGHTS = "<think>\n{}\n</think>\n\n"


def as_thoughts(reply: Reply) -> Reply:
    return replace(reply, spans=[(len(reply.texts), REASONING)])


def delays_of(script: ScriptedReply, tokens: int) -> list[tuple[int, float]]:
    """Returns a script's waits, each as token position and seconds, for a reply of `tokens` tokens."""
    waits = dict.fromkeys(range(1, tokens), script.per_token_s) if script.per_token_s else {}
    if script.first_token_s:
        waits[0] = script.first_token_s
    for token, seconds in script.before.items():
        waits[token] = waits.get(token, 0.0) + seconds
    return list(waits.items())


IMAGE = Part("image")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
    "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""Image of every image reply: one transparent pixel, as PNG."""
ENCODER_TEXT = "!"


class RecordedReply(Protocol):
    """A recorded reply, cut or repeated to the length that a request asks for."""

    @property
    def ids(self) -> Sequence[int]:
        """Ids of the tokens."""

    @property
    def texts(self) -> Sequence[str]:
        """Texts of the tokens."""

    @property
    def missing(self) -> int:
        """Number of tokens to add."""

    @property
    def reached_limit(self) -> bool:
        """True if the reply ends because of its limit."""


class RecordedReplies(Protocol):
    """The port for recorded conversations; the extension `datasets` implements it."""

    def reply(
        self, request: EngineRequest, *, min_tokens: int, max_tokens: int, rng: Random
    ) -> RecordedReply | None:
        """Returns a recorded reply of the request's model; None without one, or after a failure."""


class NullModel:
    """Returns empty replies, as a pooling model does: its outputs are no text."""

    def reply(self, request: EngineRequest) -> Reply:
        return Reply((), (), STOP)

    def beams(self, requests: Sequence[EngineRequest]) -> list[Reply]:
        return [self.reply(request) for request in requests]


class SimulatedModel:
    """Writes the replies of one server (simulator.md sections 5 and 7).

    `text_rng` and `call_rng` are the server's own streams of random numbers. A request with a seed,
    or with temperature 0, gets its own stream, so its reply repeats.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        corpus: Corpus,
        recorded: RecordedReplies | None,
        schemas: Constraints,
        text_rng: Random,
        call_rng: Random,
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._recorded_replies = recorded
        self._random = RandomMode(corpus, tokenizer.eos_token_id is not None)
        self._schemas = schemas
        self._calls = CallReplies(tokenizer, corpus, schemas, settings.tools)
        self._plugins: tuple[ReplySource, ...] = ()
        self._text_rng, self._call_rng = text_rng, call_rng

    def ask_first(self, sources: Sequence[ReplySource], length: LengthSource | None) -> None:
        """Installs plugins:

        `sources` decide about whole replies, `length` about lengths in mode `random`.
        """
        self._plugins = tuple(sources)
        self._random.length = length

    def scripted_reply(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """Returns the reply that `script` has decided, with its delays."""
        reply = self._scripted(request, script)
        reply.delays = delays_of(script, len(reply.ids))
        return reply

    def on_settings(self, settings: Settings) -> None:
        self._settings = settings
        self._calls.settings = settings.tools

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the whole reply; an empty one for no tokens (embeddings).

        Raises SchemaUnsatisfiable.
        """
        if not request.max_tokens:
            return Reply((), (), STOP)
        try:
            reply = self._whole(request)
        except SchemaError as error:
            raise SchemaUnsatisfiable(error) from None
        if request.logprobs is not None:  # the number counts the token itself
            entries = Entries(self._tokenizer, reply.ids, request.logprobs - 1, request.logprob_ids)
            reply.logprobs = LazySequence(entries.entry, range(len(reply.ids)))
        if request.script is not None:
            reply.delays = delays_of(request.script, len(reply.ids))
        if request.prompt_logprobs is not None:
            entry = Entries(self._tokenizer, request.prompt_ids, request.prompt_logprobs).entry
            reply.prompt_logprobs = LazySequence(
                lambda position: entry(position) if position else None,
                range(len(request.prompt_ids)),
            )
        return reply

    def beams(self, requests: Sequence[EngineRequest]) -> list[Reply]:
        """Returns the beams of one prompt, best first. Raises SchemaUnsatisfiable.

        A search looks for the likeliest replies, so that the same prompt always gets the same
        beams. Replies with thoughts or calls have no variants: a changed token could break their
        form. Their beams are separate replies.
        """
        greedy = [replace(request, greedy=True) for request in requests]
        best = self.reply(greedy[0])
        if best.spans:
            others = enumerate(greedy[1:], 1)
            return [
                best,
                *(self.reply(replace(request, seed=number)) for number, request in others),
            ]
        variants = BeamVariants(best, self._tokenizer).first(len(requests) - 1)
        missing = len(requests) - 1 - len(variants)
        return [best, *variants, *[best] * missing]

    def _whole(self, request: EngineRequest) -> Reply:
        """Returns thoughts, if the request reasons, then the reply, then an image, if one is
        wanted.
        """
        if self._settings.model.mm_encoder_only:
            # As many exclamation marks as the client allows, or one without a limit (section 18).
            count = request.max_tokens if request.limited else 1
            ids = self._tokenizer.encode(ENCODER_TEXT)[:1] * count
            return Reply([ENCODER_TEXT] * count, ids, LENGTH)
        own: Random | None = None  # for a reply that request and prompt determine
        if request.seed is not None or request.greedy:
            own = Random(
                (request.seed or 0) * 2**32 + crc32(msgspec.json.encode(request.prompt_ids))
            )
        rng = own or self._text_rng
        decided: Reply | None = None
        if request.script is not None and not request.script.passes:
            decided = self._scripted(request, request.script)
        else:
            for source in self._plugins:
                if (decided := source(request, rng)) is not None:
                    break
        if decided is not None:
            reply = decided
        elif not request.reasoning:
            reply = self._said(request, rng, own)
        elif request.only_thoughts:
            reply = as_thoughts(
                self._said(replace(request, tool_calls=None, constraint=None), rng, own)
            )
        else:
            reply = thoughts = self._thoughts(request, rng)
            room = request.max_tokens - len(thoughts.ids)
            if room > 0 and thoughts.finish.reason != "stop":
                least = max(0, request.min_tokens - len(thoughts.ids))
                rest = replace(request, max_tokens=room, min_tokens=least)
                reply = joined(thoughts, self._said(rest, rng, own))
        if (eos := self._tokenizer.eos_token_id) is not None:
            reply.end(eos, request.max_tokens)
        if request.image:
            return joined(reply, Reply([PIXEL], [], reply.finish, [(1, IMAGE)]))
        return reply

    def _said(self, request: EngineRequest, rng: Random, own: Random | None) -> Reply:
        if request.tool_calls is not None:
            calls = self._calls.reply(request, request.tool_calls, own or self._call_rng)
            if calls is not None:
                return calls
        if request.constraint is not None:
            rng, most, ids = own or self._call_rng, request.max_tokens, list[int]()
            for attempt in range(TRIES):
                ids = self._tokenizer.encode(self._text_of(request.constraint, most, attempt, rng))
                if len(ids) < most:  # and the end of text fits, too
                    break
            # Cut where no draw is short enough.
            said = Reply(self._tokenizer.pieces(ids), ids, STOP).cut(most)
        else:
            said = self._free(request, rng)
        return stopped(said, request) if request.stop or request.stop_token_ids else said

    def _free(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns an unconstrained text, recorded or of the mode, after the request's sampling."""
        eos = self._tokenizer.eos_token_id
        tokens = None if request.sampling is None else chooser(request, self._tokenizer)
        if tokens is not None and eos is not None and tokens.never_keeps(eos):
            request = replace(request, ignore_eos=True)
        if self._settings.reply.mode == "echo":  # the whole text, whatever the limit (5.2)
            ids = self._tokenizer.encode(request.echo_text)
            reached = request.limited and len(ids) >= request.max_tokens
            said = Reply(self._tokenizer.pieces(ids), ids, LENGTH if reached else STOP)
        else:
            recorded = None
            if self._recorded_replies is not None:
                recorded = self._recorded(self._recorded_replies, request, rng)
            said = recorded or self._random.reply(request, rng)
        return said if tokens is None else biased(said, request, tokens, self._tokenizer, rng)

    def _recorded(
        self, replies: RecordedReplies, request: EngineRequest, rng: Random
    ) -> Reply | None:
        """Returns a recorded reply (5.10); None without a dataset for the model, and when it fails."""
        most = request.max_tokens
        least = most if request.ignore_eos else max(1, request.min_tokens)
        found = replies.reply(request, min_tokens=least, max_tokens=most, rng=rng)
        if found is None:
            return None
        ids, texts = self._corpus.compose(found.missing, rng)
        return Reply(
            [*found.texts, *texts], [*found.ids, *ids], LENGTH if found.reached_limit else STOP
        )

    def _thoughts(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns a reasoning model's thoughts, which may use up the limit or meet a stop."""
        most = request.max_tokens
        if request.thinking_budget is not None:
            most = min(most, request.thinking_budget)
        tokens, count = chooser(request, self._tokenizer), rng.randint(*THOUGHT_TOKENS)
        if (
            tokens is not None
            and request.sampling is not None
            and request.sampling.allowed_token_ids
        ):
            count = most  # the end of thoughts is not among the allowed tokens
        if request.limited or count >= most:
            ids, texts = self._corpus.compose(min(count, most), rng)
        else:
            ids, texts = self._corpus.whole_sentences().compose(count, rng)
        said = Reply(texts[:most], ids[:most], LENGTH)
        if tokens is not None:
            said = biased(said, request, tokens, self._tokenizer, rng)
        return as_thoughts(stopped(said, request))

    def _text_of(self, constraint: Constraint, most: int, attempt: int, rng: Random) -> str:
        if constraint.grammar is not None:
            size = min(USUAL_SIZE, most * CHARACTERS_A_TOKEN) * SHARES[attempt]
            return self._schemas.derive_text(
                constraint.grammar, int(size), rng, self._settings.tools, self._speak
            )
        if constraint.choices:
            return rng.choice(constraint.choices)
        if constraint.regex is not None:
            return self._schemas.matching_text(constraint.regex, rng)
        schema = True if constraint.schema is None else constraint.schema
        return json.dumps(
            self._schemas.compile(schema).sample(rng, self._settings.tools), ensure_ascii=False
        )

    def _speak(self, characters: int, rng: Random) -> str:
        _, texts = self._corpus.compose(characters // CHARACTERS_A_TOKEN, rng)
        return "".join(texts)[:characters].rpartition(" ")[0]

    def _scripted(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        if not script.in_parts:
            thoughts = THOUGHTS.format(script.reasoning) if script.reasoning else ""
            calls = written(script.calls)[0] if script.calls else ""
            reply = self._told(request, thoughts + script.text + calls)
        else:
            reply = self._in_parts(request, script)
        reply = reply.cut(request.max_tokens)
        if script.finish is not None and reply.finish == STOP:
            reply.finish = Finish(script.finish)
        return reply

    def _in_parts(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """Omits each part that would begin beyond the limit."""
        made: list[Callable[[EngineRequest], Reply]] = []
        if script.reasoning:
            made.append(lambda request: as_thoughts(self._told(request, script.reasoning)))
        if script.text or not script.calls:
            made.append(lambda request: self._told(request, script.text))
        if script.calls:
            made.append(
                lambda request: self._calls.marked_up(written(script.calls), request.max_tokens)
            )
        reply, room = Reply([], [], STOP), request.max_tokens
        for number, make in enumerate(made):
            if number and room <= 0:
                reply.finish = LENGTH
                break
            part = make(replace(request, max_tokens=room)).cut(room)
            reply = joined(reply, part) if reply.ids else part
            room -= len(part.ids)
            if part.finish != STOP:
                break
        return reply

    def _told(self, request: EngineRequest, text: str) -> Reply:
        ids = self._tokenizer.encode(text)
        reply = Reply(self._tokenizer.pieces(ids), ids, STOP).cut(request.max_tokens)
        return stopped(reply, request) if request.stop or request.stop_token_ids else reply
