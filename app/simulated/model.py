"""Decides what a reply says: text, an echo, thoughts, tool calls, JSON, an image."""

from __future__ import annotations

from random import Random
from zlib import crc32

import msgspec
from msgspec.structs import replace

from app.dataset import Datasets
from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Script, joined
from app.engine.request import Generation
from app.schema import Ranges, Schemas
from app.simulated.corpus import Corpus
from app.simulated.lengths import reply_length
from app.simulated.stops import stopped
from app.simulated.structured import constrained
from app.simulated.tool_calls import Caller
from app.tokenization import Tokenizer
from config.settings import Settings

REASONING = Part("reasoning")
IMAGE = Part("image")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
    "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""The image of every image reply: one transparent pixel, as PNG."""
ENCODER_TEXT = "!"
"""What an encoder-only model says, once per token."""


class SimulatedModel:
    """Writes the replies of one server (simulator.md sections 5 and 7).

    `text_rng` and `call_rng` are the server's own streams of randomness; a request with a seed, or with
    temperature 0, gets a stream of its own and so repeats itself.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        phrasebook: Corpus,
        datasets: Datasets,
        schemas: Schemas,
        text_rng: Random,
        call_rng: Random,
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._phrasebook = phrasebook
        self._datasets = datasets
        self._schemas = schemas
        self._caller = Caller(tokenizer, phrasebook, schemas, settings.tools)
        self._text_rng, self._call_rng = text_rng, call_rng

    def change(self, settings: Settings) -> None:
        """Live settings have changed."""
        self._settings = settings
        self._caller.settings = settings.tools

    def write(self, generation: Generation) -> Script:
        """The whole reply. SchemaError when it should satisfy a schema that nothing satisfies."""
        if self._settings.model.mm_encoder_only:
            return self._encoded(generation)
        own = self._own_stream(generation)
        rng = own or self._text_rng
        if not generation.reasoning:
            script = self._reply(generation, rng, own)
        else:
            thoughts = self._thoughts(generation, rng)
            room = generation.max_tokens - len(thoughts.ids)
            if room <= 0:
                return thoughts
            script = joined(thoughts, self._reply(replace(generation, max_tokens=room), rng, own))
        if generation.image:
            return joined(script, Script([PIXEL], [], script.finish, [(1, IMAGE)]))
        return script

    def _reply(self, generation: Generation, rng: Random, own: Random | None) -> Script:
        if generation.calls is not None:
            calls = self._caller.script(generation, generation.calls, own or self._call_rng)
            if calls is not None:
                return calls
        if generation.constraint is not None:
            said = constrained(
                generation.constraint,
                generation.max_tokens,
                self._tokenizer,
                self._schemas,
                Ranges.of(self._settings.tools),
                own or self._call_rng,
            )
        elif self._settings.reply.mode == "echo":
            said = self._echoed(generation)
        else:
            said = self._recalled(generation, rng) or self._composed(generation, rng)
        return stopped(said, generation)

    def _recalled(self, generation: Generation, rng: Random) -> Script | None:
        """A recorded reply (5.10); None without a dataset for the model, and when it fails."""
        dataset = self._datasets.of(generation.model)
        if dataset is None:
            return None
        most = generation.max_tokens
        least = most if generation.ignore_eos else max(1, generation.min_tokens)
        found = dataset.reply(generation.prompt_ids, generation.turns, least, most, rng)
        if found is None:
            return None
        ids, texts = self._phrasebook.compose(found.missing, rng)
        return Script([*found.texts, *texts], [*found.ids, *ids], LENGTH if found.reached_limit else STOP)

    def _composed(self, generation: Generation, rng: Random) -> Script:
        most = generation.max_tokens
        count = most if generation.ignore_eos else reply_length(most, generation.limited, rng)
        count = max(count, generation.min_tokens)
        ids, texts = self._phrasebook.compose(count, rng)
        return Script(texts, ids, LENGTH if count >= most else STOP)

    def _echoed(self, generation: Generation) -> Script:
        """The text as it came, whatever the limit; `length` tells that the limit was reached (5.2)."""
        ids = self._tokenizer.encode(generation.echo_text)
        reached = generation.limited and len(ids) >= generation.max_tokens
        return Script(self._tokenizer.pieces(ids), ids, LENGTH if reached else STOP)

    def _encoded(self, generation: Generation) -> Script:
        """Exclamation marks, as many as were allowed or else one (section 18)."""
        count = generation.max_tokens if generation.limited else 1
        ids = self._tokenizer.encode(ENCODER_TEXT)[:1] * count
        return Script([ENCODER_TEXT] * count, ids, LENGTH)

    def _thoughts(self, generation: Generation, rng: Random) -> Script:
        """What a reasoning model thinks aloud; it may use up the whole limit."""
        mean = self._settings.reply.reasoning_tokens
        most = generation.max_tokens
        if generation.thinking_budget is not None:
            most = min(most, generation.thinking_budget)
        count = min(rng.randint((mean + 1) // 2, mean + mean // 2), most)
        ids, texts = self._phrasebook.compose(count, rng)
        return Script(texts, ids, LENGTH, [(count, REASONING)])

    def _own_stream(self, generation: Generation) -> Random | None:
        """The randomness of a reply that request and prompt determine; None for any other."""
        if generation.seed is None and not generation.greedy:
            return None
        prompt = crc32(msgspec.json.encode(generation.prompt_ids))
        return Random((generation.seed or 0) * 2**32 + prompt)
