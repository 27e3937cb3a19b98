"""Replies that are tool calls (simulator.md section 7), marked up as Hermes and Qwen models do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Script
from app.engine.request import Calls, Generation, Tool
from app.schema import Ranges, Schemas
from app.simulated.corpus import Corpus
from app.tokenization import Tokenizer
from config.settings import ToolSettings

OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"
ANYTHING = "{"
"""Where arguments begin whose schema names none."""


class Caller:
    """Makes calls. `settings` may be replaced while the server runs."""

    def __init__(
        self, tokenizer: Tokenizer, phrasebook: Corpus, schemas: Schemas, settings: ToolSettings
    ) -> None:
        self.settings = settings
        self._schemas = schemas
        self._tokenizer = tokenizer
        self._phrasebook = phrasebook

    def script(self, generation: Generation, calls: Calls, rng: Random) -> Script | None:
        """The calls of one reply; None when it makes none. SchemaError when no arguments can be made.

        A limit of fewer tokens than `tool-call-room` cuts a call off that has to be made, and keeps one
        from being begun that need not be. Otherwise calls are whole, whatever the limit (7.3).
        """
        if calls.named:
            return self._bare(calls, rng)
        count = self._count(calls, rng)
        if count == 0:
            return None
        if generation.limited and generation.max_tokens < self.settings.tool_call_room:
            return self._cut_off(calls.tools[0], generation.max_tokens, rng) if calls.least else None
        return self._marked_up([self._call(calls, rng.choice(calls.tools), rng) for _ in range(count)])

    def _count(self, calls: Calls, rng: Random) -> int:
        count = calls.least
        while count < calls.most and rng.random() * 100 < self.settings.tool_call_extra_call_probability:
            count += 1
        return count

    def _call(self, calls: Calls, tool: Tool, rng: Random) -> tuple[str, str]:
        """Name and arguments."""
        schema = self._schemas.compile(tool.schema, calls.lenient)
        arguments = schema.sample(rng, Ranges.of(self.settings))
        return tool.name, json.dumps(arguments, ensure_ascii=False)

    def _bare(self, calls: Calls, rng: Random) -> Script:
        name, arguments = self._call(calls, calls.tools[0], rng)
        ids = self._tokenizer.encode(arguments)
        texts = self._tokenizer.pieces(ids)
        return Script(texts, ids, STOP, [(len(texts), Part("call", 0, name))])

    def _marked_up(self, calls: Sequence[tuple[str, str]]) -> Script:
        """Every token of a call's markup belongs to the call; only those of its arguments have a text."""
        text, regions = "", []
        for number, (name, arguments) in enumerate(calls):
            text += ("\n" if number else "") + _head(name)
            start = len(text)
            text += arguments
            regions.append((start, len(text), Part("call", number, name)))
            text += "}" + CLOSING
        ids = self._tokenizer.encode(text)
        pieces = self._tokenizer.pieces(ids)
        texts, spans = [], []
        for end, part, told in _visible(pieces, regions):
            texts += told
            spans.append((end, part))
        return Script(texts, ids, STOP, spans)

    def _cut_off(self, tool: Tool, most: int, rng: Random) -> Script:
        """A call whose first argument never ends: what the parser of a real server leaves as text."""
        fields: Any = tool.schema.get("properties") if isinstance(tool.schema, dict) else None
        first = next(iter(fields), None) if isinstance(fields, dict) else None
        opened = ANYTHING if first is None else ANYTHING + json.dumps(first) + ': "'
        ids = self._tokenizer.encode(_head(tool.name) + opened)
        texts = self._tokenizer.pieces(ids)
        more_ids, more_texts = self._phrasebook.compose(max(0, most - len(ids)), rng)
        return Script([*texts, *more_texts][:most], [*ids, *more_ids][:most], LENGTH)


def _head(name: str) -> str:
    return f'{OPENING}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


def _visible(
    pieces: Sequence[str], regions: Sequence[tuple[int, int, Part]]
) -> Iterator[tuple[int, Part, list[str]]]:
    """For each call the number of its last token + 1, its part, and what its tokens show."""
    at, token = 0, 0
    for number, (start, end, part) in enumerate(regions):
        last = number == len(regions) - 1
        told = []
        while token < len(pieces) and (last or at < end + len("}" + CLOSING)):
            piece = pieces[token]
            told.append(piece[max(0, start - at) : max(0, end - at)])
            at += len(piece)
            token += 1
        yield token, part, told
