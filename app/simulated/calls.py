"""Tool calls (simulator.md section 7), marked up as Hermes and Qwen models do, within a limit of tokens.

A call that a limit cuts off is none: in a whole answer its reply is the beginning of the markup (`Part.raw`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from app.engine.outputs import Part
from app.engine.reply import LENGTH, STOP, Reply, Span
from app.engine.request import EngineRequest, JsonSchema, ScriptedCall, ToolCalls
from app.schema import Ranges, Schemas, Size
from app.simulated.corpus import Corpus
from app.tokenization import Tokenizer
from config.settings import ToolSettings

OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"
USUAL, COMPACT = (", ", ": "), (",", ":")
"""What stands between the items, and between name and value, of JSON."""
TRIES = 4
"""Draws of usual arguments, and of short ones, to find some that fit the limit."""
BOUNDS = frozenset(("maxLength", "enum", "const", "pattern", "format"))
"""Keywords that keep a text from running on."""


class Call(NamedTuple):
    """Where a call stands in the text of its reply: offsets of characters."""

    part: Part
    named: int
    """Behind its name."""
    start: int
    end: int
    """Its arguments."""
    until: int
    """Behind its markup."""


class Written(NamedTuple):
    """The text of a reply that calls tools."""

    text: str
    calls: Sequence[Call]


class CallReplies:
    """Makes replies that call tools. They raise SchemaError when no arguments satisfy a tool's schema."""

    def __init__(
        self, tokenizer: Tokenizer, corpus: Corpus, schemas: Schemas, settings: ToolSettings
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._schemas = schemas
        self.use(settings)

    def use(self, settings: ToolSettings) -> None:
        self._settings = settings
        self._ranges = Ranges.of(settings)

    def reply(self, request: EngineRequest, calls: ToolCalls, rng: Random) -> Reply | None:
        """The calls of one reply; None when it makes none.

        Arguments are chosen that fit the client's limit; where none do, a call that has to be made is cut
        off. So is one under a limit below `tool-call-room` whose schema lets a text run on.
        """
        count = self._count(calls, rng)
        room = self._settings.tool_call_room
        scarce = request.limited and request.max_tokens < room
        if count == 0 or scarce and not calls.least:
            return None
        if scarce and not calls.named and (field := endless_text(calls.tools[0].schema)) is not None:
            return self._endless(calls.tools[0].name, field, request.max_tokens, rng)
        most = request.max_tokens if room and request.limited else sys.maxsize
        too_long: Reply | None = None
        for written in self._versions(calls, count, rng):
            reply = self.marked_up(written, most)
            if reply.finish is STOP and len(reply.ids) < most:  # and the end of text fits, too
                return reply
            too_long = too_long or reply
        return too_long if calls.least else None

    def _count(self, calls: ToolCalls, rng: Random) -> int:
        count = calls.least
        while count < calls.most and rng.random() * 100 < self._settings.tool_call_extra_call_probability:
            count += 1
        return count

    def _versions(self, calls: ToolCalls, count: int, rng: Random) -> Iterator[Written]:
        """Texts, the later the shorter: of fewer calls, of short arguments, of less markup."""
        yield written([self._call(calls, rng) for _ in range(count)])
        fewest = max(calls.least, 1)
        for _ in range(TRIES - 1):
            yield written([self._call(calls, rng) for _ in range(fewest)])
        for number in range(TRIES):
            last = number == TRIES - 1
            short = [self._call(calls, rng, Size.LEAST if last else Size.BRIEF) for _ in range(fewest)]
            yield written(short, terse=last)

    def _call(self, calls: ToolCalls, rng: Random, size: Size = Size.USUAL) -> tuple[str, str]:
        tool = calls.tools[0] if calls.named else rng.choice(calls.tools)
        arguments = self._schemas.compile(tool.schema, calls.lenient).sample(rng, self._ranges, size)
        return tool.name, json.dumps(
            arguments, ensure_ascii=False, separators=USUAL if size is Size.USUAL else COMPACT
        )

    def _endless(self, name: str, field: str, most: int, rng: Random) -> Reply:
        """A call whose argument `field` has no end within the limit."""
        _, texts = self._corpus.compose(most, rng)
        said = json.dumps("".join(texts), ensure_ascii=False)[:-1]
        return self.marked_up(written([(name, f"{{{json.dumps(field, ensure_ascii=False)}: {said}")]), most)

    def marked_up(self, written: Written, most: int) -> Reply:
        """The reply, cut off after `most` tokens: each belongs to a call, and shows what is of arguments."""
        ids = self._tokenizer.encode(written.text)
        kept = ids[:most]
        pieces = self._tokenizer.pieces(kept)
        raw = "" if len(kept) == len(ids) else "".join(pieces)
        texts, spans = _told(pieces, written.calls, raw)
        return Reply(texts, kept, LENGTH if raw else STOP, spans)


def written(calls: Sequence[tuple[str, str]] | Sequence[ScriptedCall], terse: bool = False) -> Written:
    """Calls, as name, arguments and perhaps id, marked up; `terse` with no more than parsers need."""
    comma, colon = COMPACT if terse else USUAL
    text, places = "", list[Call]()
    for number, (name, arguments, *own_id) in enumerate(calls, 1):
        text += ("" if number == 1 else "\n") + (OPENING.rstrip() if terse else OPENING)
        text += f'{{"name"{colon}{json.dumps(name, ensure_ascii=False)}'
        named = len(text)
        text += f'{comma}"arguments"{colon}'
        start = len(text)
        text += arguments
        end = len(text)
        text += "}" if terse and number == len(calls) else "}" + CLOSING
        places.append(Call(Part("call", number - 1, name, "", *own_id), named, start, end, len(text)))
    return Written(text, places)


def _told(pieces: Sequence[str], calls: Sequence[Call], raw: str) -> tuple[list[str], list[Span]]:
    """What each token shows, and the spans of the calls.

    Until its name is complete nobody can tell which function a call calls, so its part has no name.
    """
    texts: list[str] = []
    spans: list[Span] = []
    at = 0
    for part, named, start, end, until in calls:
        known = Part("call", part.number, part.name, raw, part.id)
        unknown = Part("call", part.number, "", raw)
        while len(texts) < len(pieces) and (at < until or part is calls[-1].part):
            piece = pieces[len(texts)]
            texts.append(piece[max(0, start - at) : max(0, end - at)])
            at += len(piece)
            belongs = known if at >= named else unknown
            if spans and spans[-1][1] is belongs:
                spans[-1] = len(texts), belongs
            else:
                spans.append((len(texts), belongs))
    return texts, spans


def endless_text(schema: JsonSchema) -> str | None:
    """The field of an open object that has to be there, and is a text of any length; None without one.

    A model may not come to its end in it, as was recorded; where an object is closed it does.
    """
    if not isinstance(schema, Mapping) or schema.get("additionalProperties") is False:
        return None
    fields, required = schema.get("properties"), schema.get("required")
    if not isinstance(fields, Mapping) or not isinstance(required, list):
        return None
    return next((str(name) for name, field in fields.items() if name in required and _runs_on(field)), None)


def _runs_on(field: object) -> bool:
    return isinstance(field, Mapping) and field.get("type") == "string" and BOUNDS.isdisjoint(field)
