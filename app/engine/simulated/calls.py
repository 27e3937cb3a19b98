"""Tool calls (simulator.md section 7) in the markup of Hermes and Qwen models, within a token
limit.

A call that a limit cuts off is no call: in a whole answer its reply is the beginning of the markup
(`Part.raw`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from app.engine.core.constraints import Constraints, Size
from app.engine.core.outputs import Part
from app.engine.core.request import (
    LENGTH,
    STOP,
    EngineRequest,
    JsonSchema,
    Reply,
    ScriptedCall,
    Span,
    ToolCalls,
)
from app.engine.simulated.corpus import Corpus
from app.text.base import Tokenizer
from config.settings import ToolSettings

OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"
USUAL, COMPACT = (", ", ": "), (",", ":")
"""Separators between items, and between name and value, of JSON."""
ROOM = 96
"""Tokens below which a call that is only allowed is not begun, as the recorded model."""
TRIES = 4
"""Draws of usual arguments, and of short ones, until some fit the limit."""
BOUNDS = frozenset(("maxLength", "enum", "const", "pattern", "format"))
"""Keywords that keep a text from running on."""


class CallSpan(NamedTuple):
    """Character offsets of a call in the text of its reply."""

    part: Part
    named: int
    start: int
    end: int
    """End of the arguments, which begin at `start`."""
    until: int


WrittenCalls: TypeAlias = tuple[str, Sequence[CallSpan]]
"""The text of a reply that calls tools, and where the calls are."""


class CallReplies:
    """Makes replies that call tools. SchemaError when no arguments satisfy a tool's schema."""

    def __init__(
        self, tokenizer: Tokenizer, corpus: Corpus, schemas: Constraints, settings: ToolSettings
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._schemas = schemas
        self.settings = settings

    def reply(self, request: EngineRequest, calls: ToolCalls, rng: Random) -> Reply | None:
        """Returns the calls of one reply, within the limit or, if required, cut off; else None."""
        count = calls.least
        while (
            count < calls.most
            and rng.random() * 100 < self.settings.tool_call_extra_call_probability
        ):
            count += 1
        scarce = request.limited and request.max_tokens < ROOM
        if count == 0 or scarce and not calls.least:
            return None
        if (
            scarce
            and not calls.named
            and (field := endless_text(calls.tools[0].schema)) is not None
        ):
            _, texts = self._corpus.compose(request.max_tokens, rng)
            begun = json.dumps({field: "".join(texts)}, ensure_ascii=False).removesuffix('"}')
            return self.marked_up(written([(calls.tools[0].name, begun)]), request.max_tokens)
        most = request.max_tokens if request.limited else sys.maxsize
        too_long: Reply | None = None
        for version in self._versions(calls, count, rng):
            reply = self.marked_up(version, most)
            if reply.finish is STOP and len(reply.ids) < most:  # and the end of text fits, too
                return reply
            too_long = too_long or reply
        return too_long if calls.least else None

    def _versions(self, calls: ToolCalls, count: int, rng: Random) -> Iterator[WrittenCalls]:
        """Yields ever shorter texts: fewer calls, then short arguments, then less markup."""
        fewest = max(calls.least, 1)
        tries = [(count, Size.USUAL), *[(fewest, Size.USUAL)] * (TRIES - 1)]
        for number, size in [*tries, *[(fewest, Size.BRIEF)] * (TRIES - 1), (fewest, Size.LEAST)]:
            made, separators = list[tuple[str, str]](), USUAL if size is Size.USUAL else COMPACT
            for _ in range(number):
                tool = calls.tools[0] if calls.named else rng.choice(calls.tools)
                compiled = self._schemas.compile(tool.schema, calls.lenient)
                arguments = compiled.sample(rng, self.settings, size)
                made.append(
                    (tool.name, json.dumps(arguments, ensure_ascii=False, separators=separators))
                )
            yield written(made, terse=size is Size.LEAST)

    def marked_up(self, written: WrittenCalls, most: int) -> Reply:
        """Returns the reply, cut off after `most` tokens; a token shows only arguments."""
        text, calls = written
        ids = self._tokenizer.encode(text)
        kept = ids[:most]
        pieces = self._tokenizer.pieces(kept)
        raw = "" if len(kept) == len(ids) else "".join(pieces)
        texts, spans = _told(pieces, calls, raw)
        return Reply(texts, kept, LENGTH if raw else STOP, spans)


def written(
    calls: Sequence[tuple[str, str]] | Sequence[ScriptedCall], terse: bool = False
) -> WrittenCalls:
    """Marks up calls of name, arguments and perhaps id; `terse` writes the least that parsers need."""
    comma, colon = COMPACT if terse else USUAL
    text, places = "", list[CallSpan]()
    for number, (name, arguments, *own_id) in enumerate(calls, 1):
        text += ("" if number == 1 else "\n") + (OPENING.rstrip() if terse else OPENING)
        text += f'{{"name"{colon}{json.dumps(name, ensure_ascii=False)}'
        named = len(text)
        text += f'{comma}"arguments"{colon}'
        start = len(text)
        text += arguments
        end = len(text)
        text += "}" if terse and number == len(calls) else "}" + CLOSING
        places.append(
            CallSpan(Part("call", number - 1, name, "", *own_id), named, start, end, len(text))
        )
    return text, places


def _told(
    pieces: Sequence[str], calls: Sequence[CallSpan], raw: str
) -> tuple[list[str], list[Span]]:
    """Returns the shown text of each token, and the spans of the calls, which first have no name."""
    texts: list[str] = []
    spans: list[Span] = []
    at = 0
    for part, named, start, end, until in calls:
        known = Part("call", part.number, part.name, raw, part.id)
        unknown = Part("call", part.number, "", raw)
        while len(texts) < len(pieces) and (at < until or part is calls[-1].part):
            piece, before = pieces[len(texts)], at
            at += len(piece)
            is_shown = before < end and at > start
            texts.append(piece[max(0, start - before) : end - before] if is_shown else "")
            belongs = known if at >= named else unknown
            if spans and spans[-1][1] is belongs:
                spans[-1] = len(texts), belongs
            else:
                spans.append((len(texts), belongs))
    return texts, spans


def endless_text(schema: JsonSchema) -> str | None:
    """Returns a required field of an open object with a text of any length, which models may not
    end.
    """
    if not isinstance(schema, Mapping) or schema.get("additionalProperties") is False:
        return None
    fields, required = schema.get("properties"), schema.get("required")
    if isinstance(fields, Mapping) and isinstance(required, list):
        for name, field in fields.items():
            is_text = isinstance(field, Mapping) and field.get("type") == "string"
            if name in required and is_text and BOUNDS.isdisjoint(field):
                return str(name)
    return None
