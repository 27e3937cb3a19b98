"""Turns a reply of plain text into one whose parts are the calls that a parser finds in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from app.core.base.clock.pause import Slices, call_off_hub
from app.core.engine.outputs import Part, Piece
from app.core.engine.request import Reply, Span, ToolCalls, ToolFunction
from app.extensions.tool_calls.parser import Delta, ParsedText, ToolParser
from app.extensions.tool_calls.parsers import HERMES, PARSERS

HELD: Final[Piece] = (Part("call"), "")
"""Shown for a token with a held or dropped text."""


class CallReader:
    """Reads replies with one parser."""

    def __init__(self, parser_name: str) -> None:
        self._parser: ToolParser = PARSERS.get(parser_name, HERMES)
        self._slices = Slices()

    def read(self, reply: Reply, calls: ToolCalls) -> Reply:
        """Returns the reply with its calls as parts. May pause.

        Thoughts before the text stay, and so does a reply that has calls already.
        """
        earlier_spans = list(reply.spans)
        start = 0
        if earlier_spans:
            _, last_part = earlier_spans.pop()
            if last_part is not None:
                return reply
            if earlier_spans:
                start = earlier_spans[-1][0]
        texts = reply.texts[start:]
        if not texts:
            return reply
        read = self._stream_pieces if calls.streams else self._whole_pieces
        if sum(map(len, texts)) > self._parser.max_inline_characters:
            pieces = call_off_hub(read, texts, calls)
        else:
            pieces = read(texts, calls)
        return replace(
            reply,
            texts=[*reply.texts[:start], *(text for _, text in pieces)],
            spans=[*earlier_spans, *spans_of(pieces, start)],
        )

    def pieces(self, text: str, tools: Sequence[ToolFunction]) -> list[Piece]:
        """Returns the content and the calls of a whole text."""
        return shown_pieces(self._parser.parse(text, tools))

    def stream(self, tools: Sequence[ToolFunction]) -> PieceStream:
        """Returns the reader of a text that comes in parts."""
        return PieceStream(self._parser, tools)

    def _whole_pieces(self, texts: Sequence[str], calls: ToolCalls) -> list[Piece]:
        """Returns the content and the calls, each as one piece.

        Empty pieces follow until there is one for each token. There are more pieces than tokens if
        a few tokens have many calls.
        """
        text = "".join(texts)
        parsed = self._parser.parse(text, calls.tools)
        if not parsed.calls and parsed.content == text:
            return [(None, token_text) for token_text in texts]
        if calls.first_only:
            parsed = parsed._replace(calls=parsed.calls[:1])
        pieces = shown_pieces(parsed)
        last_part = pieces[-1][0]
        return pieces + [(last_part, "")] * (len(texts) - len(pieces))

    def _stream_pieces(self, texts: Sequence[str], calls: ToolCalls) -> list[Piece]:
        """Returns one piece for each token; what the last token still has to show follows.

        In a long text, several tokens are read at once, and the last one shows their additions.
        Pauses between tokens.
        """
        stream = PieceStream(self._parser, calls.tools, calls.first_only)
        characters = sum(map(len, texts)) * len(texts) // 2
        group_size = 1 + characters // self._parser.max_characters
        waiting: deque[Piece] = deque()
        pieces: list[Piece] = []
        unread = ""
        read_characters = 0
        for position, text in enumerate(texts, 1):
            unread += text
            read_characters += len(text)
            is_last = position == len(texts)
            if is_last or position % group_size == 0:
                waiting += stream.read(unread, is_last)
                unread = ""
                self._slices.spend(1 + read_characters // self._parser.characters_per_step)
            pieces.append(waiting.popleft() if waiting else HELD)
        return [*pieces, *waiting]


class PieceStream:
    """Reads a text that comes in parts, all of one reply."""

    def __init__(
        self, parser: ToolParser, tools: Sequence[ToolFunction], first_only: bool = False
    ) -> None:
        self._first_only = first_only
        self._stream = parser.stream(tools)
        self._max_characters = parser.max_characters
        self._names: dict[int, str] = {}
        self._unread = ""
        self._length = 0

    def feed(self, text: str, is_last: bool) -> list[Piece]:
        """Returns what `text` adds; parts of a long text are read together.

        Most parsers read the whole text each time. Reading it after each d of L characters takes
        L * L / (2 * d) characters in all, so d grows with L.
        """
        self._unread += text
        self._length += len(text)
        if not is_last and len(self._unread) * 2 * self._max_characters < self._length**2:
            return []
        pieces = self.read(self._unread, is_last)
        self._unread = ""
        return pieces

    def read(self, text: str, is_last: bool) -> list[Piece]:
        """Returns what `text` adds, which is read now."""
        delta = self._stream.feed(text, is_last)
        if delta is None:
            return []
        return added_pieces(delta, self._names, self._first_only)


def shown_pieces(parsed: ParsedText) -> list[Piece]:
    """Returns the content, unless it is blank beside calls, and each call as one piece."""
    pieces: list[Piece] = []
    if parsed.content.strip() or not parsed.calls:
        pieces.append((None, parsed.content))
    for number, call in enumerate(parsed.calls):
        pieces.append((Part("call", number, call.name), call.arguments))
    return pieces


def added_pieces(delta: Delta, names: dict[int, str], first_only: bool) -> list[Piece]:
    """Returns what a token adds; adds the names of new calls to `names`."""
    pieces: list[Piece] = []
    if delta.content is not None:
        pieces.append((None, delta.content))
    for call in delta.calls:
        if first_only and call.number:
            continue
        if call.name is not None:
            names[call.number] = call.name
        part = Part("call", call.number, names.get(call.number, ""))
        arguments = call.arguments or ""
        if pieces and pieces[-1][0] == part:
            arguments = pieces.pop()[1] + arguments
        pieces.append((part, arguments))
    return pieces


def spans_of(pieces: Sequence[Piece], start: int) -> list[Span]:
    """Returns the spans of pieces that begin at the token `start`."""
    spans: list[Span] = []
    for end, (part, _) in enumerate(pieces, start + 1):
        if spans and spans[-1][1] == part:
            spans.pop()
        spans.append((end, part))
    return spans
