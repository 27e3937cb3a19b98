"""Decides the content of a reply: text, an echo, thoughts, tool calls, JSON or an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.constraints import Constraints, SchemaError
from app.core.engine.endings import append_end_of_text, ended
from app.core.engine.errors import UnsatisfiableSchemaError
from app.core.engine.outputs import LazySequence, Part, TokenLogprob
from app.core.engine.request import (
    LENGTH,
    MARK,
    REASONING,
    STOP,
    Constraint,
    EngineRequest,
    RecordedReply,
    Reply,
    ScriptedReply,
    as_thoughts,
    joined,
)
from app.core.engine.simulated.corpus import Corpus
from app.core.engine.simulated.json_text import write_usual_json
from app.core.engine.simulated.random_mode import LengthSource, RandomMode
from app.core.text.base import Tokenizer
from config.validation import LiveSettings

if TYPE_CHECKING:
    from app.core.engine.sampling import Sampling
    from app.core.engine.simulated.calls import CallReplies
    from app.core.engine.simulated.logprobs import Logprobs
    from app.core.engine.simulated.scripted import ScriptedReplies
    from app.core.engine.simulated.thought_marks import ThoughtMarks
    from app.core.engine.simulated.token_chooser import TokenChooser
    from app.core.engine.tool_replies import ToolReplies

TRIES = 4
"""Texts drawn to find one that fits the limit."""
MIN_THOUGHT_TOKENS = 12
MAX_THOUGHT_TOKENS = 36
USUAL_SIZE = 160
"""Characters of a text that a grammar derives, where the grammar leaves the choice."""
CHARACTERS_PER_TOKEN = 3
SHARES = (1, 0.5, 0.2, 0)
"""Shares of USUAL_SIZE per try; the last gives the shortest text."""
UNKNOWN_VOCABULARY_SIZE = 50_000
"""Assumed number of tokens of a remote tokenizer."""
IMAGE = Part("image")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
    "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""Image of every image reply: one transparent pixel, as PNG."""
ENCODER_TEXT = "!"
ReplySource = Callable[[EngineRequest, Random], Reply | None]
"""Returns the reply to a request, from the request's random stream.

None: the next source decides.
"""


class RandomStreams(Struct, frozen=True):
    """The random numbers of a server's model: for texts, and for tool calls and forms."""

    text: Random
    calls: Random


class RecordedReplies(Protocol):
    """The port for recorded conversations; the extension `datasets` implements it."""

    def reply(
        self, request: EngineRequest, *, min_tokens: int, max_tokens: int, rng: Random
    ) -> RecordedReply | None:
        """Returns a recorded reply of the request's model; None without one, or after a failure."""


class NullModel:
    """Returns empty replies, as a pooling model does: its outputs are not text."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns an empty reply."""
        return Reply((), (), STOP)


class SimulatedModel:
    """Writes the replies of one server.

    `streams` are the server's random numbers. A request with a seed, or with temperature 0, gets a
    separate stream, so its reply repeats.
    """

    def __init__(
        self,
        live: LiveSettings,
        tokenizer: Tokenizer,
        corpus: Corpus,
        *,
        recorded: RecordedReplies | None,
        schemas: Constraints,
        streams: RandomStreams,
    ) -> None:
        self._live = live
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._recorded_replies = recorded
        self._random = RandomMode(corpus, tokenizer.eos_token_id is not None)
        self._schemas = schemas
        self.tool_replies: ToolReplies | None = None
        """Chooses and reads tool calls; set before the first request."""
        self.strict_parsers: frozenset[str] = frozenset()
        """Reasoning parsers for which a constrained text without both marks has no thoughts; set
        before the first request, by the version."""
        self._plugins: tuple[ReplySource, ...] = ()
        self._streams = streams

    @cached_property
    def _calls(self) -> CallReplies:
        from app.core.engine.simulated.calls import CallReplies

        return CallReplies(
            self._tokenizer,
            self._corpus,
            self._schemas,
            self._live,
            tool_replies=self.tool_replies,
        )

    @cached_property
    def _scripted(self) -> ScriptedReplies:
        from app.core.engine.simulated.scripted import ScriptedReplies

        return ScriptedReplies(self._tokenizer, self._calls, self._marks)

    @cached_property
    def _marks(self) -> ThoughtMarks:
        from app.core.engine.simulated.thought_marks import ThoughtMarks

        return ThoughtMarks(self._tokenizer, self._live)

    @cached_property
    def _logprobs(self) -> Logprobs:
        from app.core.engine.simulated.logprobs import Logprobs

        return Logprobs(self._tokenizer)

    def ask_first(self, sources: Sequence[ReplySource], length: LengthSource | None) -> None:
        """Installs plugins.

        `sources` decide about whole replies, `length` about lengths in mode `random`.
        """
        self._plugins = tuple(sources)
        self._random.length = length

    def scripted_reply(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """Returns the reply that `script` has decided, with its delays."""
        reply = self._scripted.reply(request, script)
        reply.delays = script.delays(len(reply.ids))
        return reply

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the whole reply; an empty one for no tokens (embeddings).

        Raises:
            UnsatisfiableSchemaError: No reply can have the requested form.
        """
        if not request.max_tokens:
            return Reply((), (), STOP)
        try:
            reply = self._whole(request)
        except SchemaError as error:
            raise UnsatisfiableSchemaError(error) from None
        if request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None:
            self._logprobs.add(reply, request)
            if request.constraint is not None and reply.logprobs is not None:
                self._limit_logprobs(reply, request.constraint)
        if request.raw and reply.spans:
            self._marks.show_markup(reply)
        if request.script is not None:
            reply.delays = request.script.delays(len(reply.ids))
        return reply

    def _limit_logprobs(self, reply: Reply, constraint: Constraint) -> None:
        """Gives the tokens of a constrained text the log probabilities that this leaves."""
        from app.core.engine.simulated.constrained_logprobs import (
            ConstrainedEntries,
            allowed_texts_of,
        )

        allowed_texts = allowed_texts_of(constraint, self._schemas)
        if allowed_texts is None or reply.logprobs is None:
            return
        start = 0
        if not self._live.current.reply.structured_output_in_reasoning:
            ends = [end for end, part in reply.spans if part in (REASONING, MARK)]
            start = max(ends, default=0)
        entries = ConstrainedEntries(
            reply.ids, self._tokenizer, allowed_texts=allowed_texts, start=start
        )
        unlimited = reply.logprobs

        def entry(position: int) -> TokenLogprob:
            return entries.limited(unlimited[position], position)

        reply.logprobs = LazySequence(entry, range(len(reply.ids)))

    def _whole(self, request: EngineRequest) -> Reply:
        """Returns thoughts, if the request reasons, then the reply, then an image, if requested."""
        if self._live.current.model.mm_encoder_only:
            return self._encoder_reply(request)
        repeatable: Random | None = None  # for a reply that request and prompt determine
        sampling = request.sampling
        if sampling.seed is not None or sampling.temperature == 0:
            prompt = msgspec.json.encode(request.prompt_ids)
            repeatable = Random((request.sampling.seed or 0) * 2**32 + crc32(prompt))
        rng = repeatable or self._streams.text
        decided: Reply | None = None
        script = request.script
        if script is not None and not script.passes:
            max_tokens = max(request.max_tokens, script.max_tokens)
            request = replace(request, max_tokens=max_tokens)
            decided = self._scripted.reply(request, script)
        elif self._plugins:
            decided = self._plugin_reply(request, rng)
        if decided is not None:
            reply = decided
        elif not request.reasoning:
            reply = self._text_or_calls(request, rng, repeatable)
        else:
            reply = self._thoughts_and_text(request, rng, repeatable)
        eos = self._tokenizer.eos_token_id
        if eos is not None:
            append_end_of_text(reply, eos, request.max_tokens)
        calls = request.tool_calls
        if (
            decided is None
            and calls is not None
            and not request.raw
            and not calls.min_calls  # required calls are not text
            and self.tool_replies is not None
        ):
            parser = self._live.current.tools.tool_call_parser
            reply = self.tool_replies.reader(parser).read(reply, calls)
        if request.image:
            return joined(reply, Reply([PIXEL], [], reply.finish, [(1, IMAGE)]))
        return reply

    def _encoder_reply(self, request: EngineRequest) -> Reply:
        """Returns as many exclamation marks as the client allows, or one without a limit."""
        count = 1
        if request.sampling.is_limited:
            count = request.max_tokens
        ids = self._tokenizer.encode(ENCODER_TEXT)[:1] * count
        return Reply([ENCODER_TEXT] * count, ids, LENGTH)

    def _plugin_reply(self, request: EngineRequest, rng: Random) -> Reply | None:
        for source in self._plugins:
            reply = source(request, rng)
            if reply is not None:
                return reply
        return None

    def _thoughts_and_text(
        self, request: EngineRequest, rng: Random, repeatable: Random | None
    ) -> Reply:
        if request.constraint is not None:
            settings = self._live.current.reply
            if settings.structured_output_in_reasoning:
                from app.core.engine.simulated.marked_thoughts import split_thoughts

                reply = self._text_or_calls(request, rng, repeatable)
                has_tools = request.tool_calls is not None
                return split_thoughts(
                    reply,
                    settings.reasoning_parser,
                    has_tools,
                    reasoning_marks=self._marks.current(),
                    strict_parsers=self.strict_parsers,
                )
        if request.only_thoughts:
            plain = replace(request, tool_calls=None, constraint=None)
            return as_thoughts(self._text_or_calls(plain, rng, repeatable))
        return self._marks.between_parts(
            request,
            partial(self._thoughts, rng=rng),
            partial(self._text_or_calls, rng=rng, repeatable=repeatable),
        )

    def _text_or_calls(
        self, request: EngineRequest, rng: Random, repeatable: Random | None
    ) -> Reply:
        """Returns the reply without thoughts; `repeatable` is set for a seeded request."""
        if request.tool_calls is not None:
            calls = self._calls.reply(
                request, request.tool_calls, repeatable or self._streams.calls
            )
            if calls is not None:
                return calls
        if request.constraint is not None:
            rng = repeatable or self._streams.calls
            max_tokens = request.max_tokens
            ids: list[int] = []
            for attempt in range(TRIES):
                text = self._constrained_text(request.constraint, max_tokens, attempt, rng)
                ids = self._ids_of(text, request.sampling.stop)
                if len(ids) < max_tokens:  # and the end of text fits, too
                    break
            # Cut where no draw is short enough.
            reply = Reply(self._tokenizer.pieces(ids), ids, STOP).cut(max_tokens)
        else:
            reply = self._free_text(request, rng)
        return ended(reply, request.sampling)

    def _ids_of(self, text: str, stops: Sequence[str]) -> list[int]:
        """Returns the tokens of a constrained text; a stop string begins with a token."""
        starts = [start for start in map(text.find, stops) if start > 0]
        if not starts:
            return self._tokenizer.encode(text)
        start = min(starts)
        return self._tokenizer.encode(text[:start]) + self._tokenizer.encode(text[start:])

    def _free_text(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns an unconstrained text, recorded or of the mode, after the request's sampling."""
        eos = self._tokenizer.eos_token_id
        tokens: TokenChooser | None = None
        if request.sampling.logit_bias or request.sampling.allowed_token_ids:
            tokens = self._chooser(request.sampling)
        if tokens is not None and eos is not None and tokens.never_keeps(eos):
            sampling = replace(request.sampling, ignore_eos=True)
            request = replace(request, sampling=sampling)
        reply: Reply | None = None
        if self._live.current.reply.mode == "echo":  # the whole text, whatever the limit
            ids = self._tokenizer.encode(request.echo_text)
            finish = STOP
            if request.sampling.is_limited and len(ids) >= request.max_tokens:
                finish = LENGTH
            reply = Reply(self._tokenizer.pieces(ids), ids, finish)
        elif self._recorded_replies is not None:
            reply = self._recorded(self._recorded_replies, request, rng)
        if reply is None:
            reply = self._random.reply(request, rng)
        if tokens is None:
            return reply
        return tokens.rewrite(reply, request, self._tokenizer, rng)

    def _chooser(self, sampling: Sampling) -> TokenChooser | None:
        """Returns the chooser of a reply's tokens by its biases; None without any."""
        if not (sampling.logit_bias or sampling.allowed_token_ids):
            return None
        from app.core.engine.simulated.token_chooser import TokenChooser

        vocab_size = self._tokenizer.vocab_size or UNKNOWN_VOCABULARY_SIZE
        return TokenChooser(sampling, vocab_size)

    def _recorded(
        self, replies: RecordedReplies, request: EngineRequest, rng: Random
    ) -> Reply | None:
        """Returns a recorded reply; None without a dataset for the model, and when it fails."""
        max_tokens = request.max_tokens
        min_tokens = max(1, request.sampling.min_tokens)
        if request.sampling.ignore_eos:
            min_tokens = max_tokens
        recorded = replies.reply(request, min_tokens=min_tokens, max_tokens=max_tokens, rng=rng)
        if recorded is None:
            return None
        ids, texts = self._corpus.compose(recorded.missing, rng)
        finish = STOP
        if recorded.reached_limit:
            finish = LENGTH
        return Reply([*recorded.texts, *texts], [*recorded.ids, *ids], finish)

    def _thoughts(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns a reasoning model's thoughts, which may use up the limit or meet a stop."""
        max_tokens = request.max_tokens
        if request.sampling.thinking_token_budget is not None:
            max_tokens = min(max_tokens, request.sampling.thinking_token_budget)
        tokens = self._chooser(request.sampling)
        count = rng.randint(MIN_THOUGHT_TOKENS, MAX_THOUGHT_TOKENS)
        if request.sampling.allowed_token_ids:
            count = max_tokens  # the end of thoughts is not among the allowed tokens
        if request.sampling.is_limited or count >= max_tokens:
            ids, texts = self._corpus.compose(min(count, max_tokens), rng)
        else:
            ids, texts = self._corpus.whole_sentences.compose(count, rng)
        reply = Reply(texts[:max_tokens], ids[:max_tokens], LENGTH)
        if tokens is not None:
            reply = tokens.rewrite(reply, request, self._tokenizer, rng)
        return as_thoughts(ended(reply, request.sampling))

    def _constrained_text(
        self, constraint: Constraint, max_tokens: int, attempt: int, rng: Random
    ) -> str:
        tools = self._live.current.tools
        if constraint.grammar is not None:
            size = min(USUAL_SIZE, max_tokens * CHARACTERS_PER_TOKEN) * SHARES[attempt]
            return self._schemas.derive_text(constraint.grammar, int(size), rng, tools, self._prose)
        if constraint.choices:
            return rng.choice(constraint.choices)
        if constraint.regex is not None:
            return self._schemas.matching_text(constraint.regex, rng)
        schema = True if constraint.schema is None else constraint.schema
        compiled = self._schemas.compile(schema, lenient=True)
        return write_usual_json(compiled.sample(rng, tools))

    def _prose(self, characters: int, rng: Random) -> str:
        _, texts = self._corpus.compose(characters // CHARACTERS_PER_TOKEN, rng)
        return "".join(texts)[:characters].rpartition(" ")[0]
