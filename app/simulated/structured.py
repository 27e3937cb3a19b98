"""Replies that have a form: JSON of a schema, a match of an expression, one of some texts, tool calls.

Tool calls (simulator.md section 7) are marked up as Hermes and Qwen models do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Reply
from app.engine.request import Constraint, EngineRequest, Tool, ToolCalls
from app.schema import Ranges, Schemas
from app.simulated.corpus import Corpus
from app.tokenization import Tokenizer
from config.settings import ToolSettings

TRIES = 4
"""Texts drawn to find one that fits the limit."""
OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"
ANYTHING = "{"
"""Where arguments begin whose schema names none."""


class StructuredReplies:
    """Makes them. All raise SchemaError when nothing satisfies what is asked for."""

    def __init__(
        self, tokenizer: Tokenizer, corpus: Corpus, schemas: Schemas, settings: ToolSettings
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._schemas = schemas
        self.use(settings)

    def use(self, settings: ToolSettings) -> None:
        """Make them by these settings from now on."""
        self._settings = settings
        self._ranges = Ranges.of(settings)

    def constrained(self, constraint: Constraint, most: int, rng: Random) -> Reply:
        """A text that satisfies `constraint`, cut off at `most` tokens when none that is drawn is short."""
        ids: list[int] = []
        for _ in range(TRIES):
            ids = self._tokenizer.encode(self._text(constraint, rng))
            if len(ids) <= most:
                break
        return Reply(self._tokenizer.pieces(ids), ids, STOP).cut(most)

    def _text(self, constraint: Constraint, rng: Random) -> str:
        if constraint.choices:
            return rng.choice(constraint.choices)
        if constraint.regex is not None:
            return self._schemas.matching_text(constraint.regex, rng)
        schema = True if constraint.schema is None else constraint.schema
        return json.dumps(self._schemas.compile(schema).sample(rng, self._ranges), ensure_ascii=False)

    def tool_calls(self, request: EngineRequest, calls: ToolCalls, rng: Random) -> Reply | None:
        """The calls of one reply; None when it makes none.

        A limit of fewer tokens than `tool-call-room` cuts a call off that has to be made, and keeps one
        from being begun that need not be. Otherwise calls are whole, whatever the limit (7.3).
        """
        if calls.named:
            return self._bare_arguments(calls, rng)
        count = self._count(calls, rng)
        if count == 0:
            return None
        if request.limited and request.max_tokens < self._settings.tool_call_room:
            return self._cut_off(calls.tools[0], request.max_tokens, rng) if calls.least else None
        return self._marked_up([self._call(calls, rng.choice(calls.tools), rng) for _ in range(count)])

    def _count(self, calls: ToolCalls, rng: Random) -> int:
        count = calls.least
        while count < calls.most and rng.random() * 100 < self._settings.tool_call_extra_call_probability:
            count += 1
        return count

    def _call(self, calls: ToolCalls, tool: Tool, rng: Random) -> tuple[str, str]:
        """Name and arguments."""
        arguments = self._schemas.compile(tool.schema, calls.lenient).sample(rng, self._ranges)
        return tool.name, json.dumps(arguments, ensure_ascii=False)

    def _bare_arguments(self, calls: ToolCalls, rng: Random) -> Reply:
        name, arguments = self._call(calls, calls.tools[0], rng)
        ids = self._tokenizer.encode(arguments)
        texts = self._tokenizer.pieces(ids)
        return Reply(texts, ids, STOP, [(len(texts), Part("call", 0, name))])

    def _marked_up(self, calls: Sequence[tuple[str, str]]) -> Reply:
        """Every token of a call's markup belongs to the call; only those of its arguments have a text."""
        text, regions = "", []
        for number, (name, arguments) in enumerate(calls):
            text += ("\n" if number else "") + _head(name)
            start = len(text)
            text += arguments
            regions.append((start, len(text), Part("call", number, name)))
            text += "}" + CLOSING
        ids = self._tokenizer.encode(text)
        texts: list[str] = []
        spans: list[tuple[int, Part | None]] = []
        for end, part, shown in _visible(self._tokenizer.pieces(ids), regions):
            texts += shown
            spans.append((end, part))
        return Reply(texts, ids, STOP, spans)

    def _cut_off(self, tool: Tool, most: int, rng: Random) -> Reply:
        """A call whose first argument never ends: what the parser of a real server leaves as text."""
        fields = tool.schema.get("properties") if isinstance(tool.schema, Mapping) else None
        first = next(iter(fields), None) if isinstance(fields, Mapping) else None
        opened = ANYTHING if first is None else ANYTHING + json.dumps(first) + ': "'
        ids = self._tokenizer.encode(_head(tool.name) + opened)
        texts = self._tokenizer.pieces(ids)
        more_ids, more_texts = self._corpus.compose(max(0, most - len(ids)), rng)
        return Reply([*texts, *more_texts][:most], [*ids, *more_ids][:most], LENGTH)


def _head(name: str) -> str:
    return f'{OPENING}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


def _visible(
    pieces: Sequence[str], regions: Sequence[tuple[int, int, Part]]
) -> Iterator[tuple[int, Part, list[str]]]:
    """For each call the number of its last token + 1, its part, and what its tokens show."""
    at, token = 0, 0
    for number, (start, end, part) in enumerate(regions):
        last = number == len(regions) - 1
        shown = []
        while token < len(pieces) and (last or at < end + len("}" + CLOSING)):
            piece = pieces[token]
            shown.append(piece[max(0, start - at) : max(0, end - at)])
            at += len(piece)
            token += 1
        yield token, part, shown
