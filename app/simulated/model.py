"""Decides what a reply says: text, an echo, thoughts, tool calls, JSON, an image."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from zlib import crc32

import msgspec
from msgspec.structs import replace

from app.dataset import Datasets
from app.engine.errors import SchemaUnsatisfiable
from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Reply, joined
from app.engine.request import EngineRequest, ScriptedReply
from app.schema import SchemaError, Schemas
from app.simulated.biased import biased, chooser
from app.simulated.calls import CallReplies
from app.simulated.corpus import Corpus
from app.simulated.endings import stopped
from app.simulated.logprobs import prompt_logprobs, reply_logprobs
from app.simulated.modes import DatasetMode, EchoMode, LengthSource, RandomMode, ReplySource
from app.simulated.scripted import ScriptedReplies, as_thoughts, delays_of
from app.simulated.structured import StructuredReplies
from app.tokenization import Tokenizer
from config.settings import Settings

IMAGE = Part("image")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
    "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""The image of every image reply: one transparent pixel, as PNG."""
ENCODER_TEXT = "!"
"""What an encoder-only model says, once per token."""


class Silent:
    """Says nothing, as a pooling model does: what it computes of a prompt is no text."""

    def reply(self, request: EngineRequest) -> Reply:
        return Reply((), (), STOP)


class SimulatedModel:
    """Writes the replies of one server (simulator.md sections 5 and 7).

    `text_rng` and `call_rng` are the server's own streams of randomness; a request with a seed, or with
    temperature 0, gets a stream of its own and so repeats itself.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        corpus: Corpus,
        datasets: Datasets,
        schemas: Schemas,
        text_rng: Random,
        call_rng: Random,
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._random = RandomMode(corpus, tokenizer.eos_token_id is not None)
        echoes = settings.reply.mode == "echo"
        self._mode = EchoMode(tokenizer).reply if echoes else self._random.reply
        self._recorded: ReplySource | None = None
        if datasets and not echoes:
            self._recorded = DatasetMode(datasets, corpus).reply
        self._structured = StructuredReplies(tokenizer, corpus, schemas, settings.tools)
        self._calls = CallReplies(tokenizer, corpus, schemas, settings.tools)
        self._scripted = ScriptedReplies(tokenizer, self._calls)
        self._plugins: tuple[ReplySource, ...] = ()
        self._text_rng, self._call_rng = text_rng, call_rng

    def ask_first(self, sources: Sequence[ReplySource], length: LengthSource | None) -> None:
        """From now on `sources` decide about whole replies, `length` about those of mode `random`."""
        self._plugins = tuple(sources)
        self._random.length = length

    def worded(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """The reply that says what `script` has decided, at its pace."""
        reply = self._scripted.reply(request, script)
        reply.delays = delays_of(script, len(reply.ids))
        return reply

    def on_settings(self, settings: Settings) -> None:
        """Live settings have changed."""
        self._settings = settings
        self._structured.use(settings.tools)
        self._calls.use(settings.tools)

    def reply(self, request: EngineRequest) -> Reply:
        """The whole reply. SchemaUnsatisfiable when it should satisfy a schema that nothing satisfies.

        A request for no token wants an embedding: nothing is said.
        """
        if not request.max_tokens:
            return Reply((), (), STOP)
        try:
            reply = self._whole(request)
        except SchemaError as error:
            raise SchemaUnsatisfiable(error) from None
        if request.logprobs is not None:
            named = request.logprob_ids
            reply.logprobs = reply_logprobs(self._tokenizer, reply.ids, request.logprobs, named)
        if request.script is not None:
            reply.delays = delays_of(request.script, len(reply.ids))
        if request.prompt_logprobs is not None:
            reply.prompt_logprobs = prompt_logprobs(
                self._tokenizer, request.prompt_ids, request.prompt_logprobs
            )
        return reply

    def _whole(self, request: EngineRequest) -> Reply:
        """Thoughts, if it thinks, then what it says, then an image, if one is wanted."""
        if self._settings.model.mm_encoder_only:
            return self._encoded(request)
        own = self._own_stream(request)
        rng = own or self._text_rng
        decided = self._decided(request, rng) if self._plugins or request.script is not None else None
        if decided is not None:
            reply = decided
        elif not request.reasoning:
            reply = self._said(request, rng, own)
        elif request.only_thoughts:
            reply = as_thoughts(self._said(replace(request, tool_calls=None, constraint=None), rng, own))
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

    def _decided(self, request: EngineRequest, rng: Random) -> Reply | None:
        """A whole reply that a script or a plugin decides about."""
        if request.script is not None and not request.script.passes:
            return self._scripted.reply(request, request.script)
        for source in self._plugins:
            if (reply := source(request, rng)) is not None:
                return reply
        return None

    def _said(self, request: EngineRequest, rng: Random, own: Random | None) -> Reply:
        if request.tool_calls is not None:
            calls = self._calls.reply(request, request.tool_calls, own or self._call_rng)
            if calls is not None:
                return calls
        if request.constraint is not None:
            said = self._structured.constrained(request.constraint, request.max_tokens, own or self._call_rng)
        else:
            said = self._free(request, rng)
        return stopped(said, request) if request.stop or request.stop_token_ids else said

    def _free(self, request: EngineRequest, rng: Random) -> Reply:
        """A text of no form: recorded, or of the mode, with the tokens that the request asks for."""
        eos = self._tokenizer.eos_token_id
        tokens = None if request.sampling is None else chooser(request, self._tokenizer)
        if tokens is not None and eos is not None and tokens.never_keeps(eos):
            request = replace(request, ignore_eos=True)
        recorded = None if self._recorded is None else self._recorded(request, rng)
        said = recorded or self._mode(request, rng)
        return said if tokens is None else biased(said, request, tokens, self._tokenizer, rng)

    def _encoded(self, request: EngineRequest) -> Reply:
        """Exclamation marks, as many as were allowed or else one (section 18)."""
        count = request.max_tokens if request.limited else 1
        ids = self._tokenizer.encode(ENCODER_TEXT)[:1] * count
        return Reply([ENCODER_TEXT] * count, ids, LENGTH)

    def _thoughts(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns what a reasoning model thinks aloud, which may use up the limit, or meet a stop."""
        mean = self._settings.reply.reasoning_tokens
        most = request.max_tokens
        if request.thinking_budget is not None:
            most = min(most, request.thinking_budget)
        tokens, count = chooser(request, self._tokenizer), rng.randint((mean + 1) // 2, mean + mean // 2)
        if tokens is not None and request.sampling is not None and request.sampling.allowed_token_ids:
            count = most  # what closes thoughts is not among the tokens that may come
        count = min(count, most)
        ids, texts = self._corpus.compose(count, rng)
        said = Reply(texts, ids, LENGTH)
        if tokens is not None:
            said = biased(said, request, tokens, self._tokenizer, rng)
        return as_thoughts(stopped(said, request))

    def _own_stream(self, request: EngineRequest) -> Random | None:
        """The randomness of a reply that request and prompt determine; None for any other."""
        if request.seed is None and not request.greedy:
            return None
        prompt = crc32(msgspec.json.encode(request.prompt_ids))
        return Random((request.seed or 0) * 2**32 + prompt)
