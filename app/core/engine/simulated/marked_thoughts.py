"""Thoughts within the text of a constrained reply.

With `structured-output-in-reasoning`, a constraint holds from the first token, so its text may
contain thoughts and their marks. vLLM's reasoning parsers find them: a reply begins with thoughts,
which end after the closing mark, before a tool call, or with the reply.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.engine.outputs import Part
from app.core.engine.request import MARK, REASONING, Reply, Span
from vllm_facts.reasoning_marks import ReasoningMarks

CALL_BEGIN = "<tool_call>"
CALL_ENDING_PARSERS = frozenset(
    [
        "glm45",
        "glm47",
        "granite_thinking_parser",
        "ling3",
        "mimo",
        "nemotron_v3",
        "qwen3",
        "step3p5",
    ]
)
"""Parsers with these marks for which a call ends the thoughts."""


def split_thoughts(
    reply: Reply,
    parser: str,
    has_tools: bool,
    *,
    reasoning_marks: ReasoningMarks,
    strict_parsers: frozenset[str],
) -> Reply:
    """Returns a reply of plain text with its thoughts as a part.

    `parser` is the reasoning parser; calls end thoughts only for a request that has tools. A reply
    with parts is returned unchanged, and so is one without both marks for `strict_parsers`.
    """
    if reply.spans:
        return reply
    opening_mark, closing_mark = reasoning_marks
    text = "".join(reply.texts)
    opening = text.find(opening_mark)
    closing = text.find(closing_mark)
    if parser in strict_parsers and min(opening, closing) < 0:
        return reply
    end = len(text)
    marks: list[range] = []
    if closing >= 0:
        end = closing + len(closing_mark)
        marks.append(range(closing, end))
    if has_tools and parser in CALL_ENDING_PARSERS:
        call = text.find(CALL_BEGIN, 0, end)
        if call >= 0:
            end = call
            marks.clear()
    if 0 <= opening < end:
        marks.insert(0, range(opening, opening + len(opening_mark)))
    texts, spans = _without_marks(reply.texts, marks, end)
    return Reply(texts, reply.ids, reply.finish, spans)


def _without_marks(
    texts: Sequence[str], marks: Sequence[range], end: int
) -> tuple[list[str], list[Span]]:
    """Returns the texts without the marks, and the spans of marks, thoughts and the rest.

    The thoughts end at the character `end`. If a token crosses this end, the token before it shows
    the rest of the thoughts.
    """
    shown: list[str] = []
    spans: list[Span] = []
    start = 0
    for text in texts:
        stop = start + len(text)
        before = "".join(
            character
            for position, character in enumerate(text[: max(0, end - start)], start)
            if not any(position in mark for mark in marks)
        )
        after = text[max(0, end - start) :]
        part: Part | None = None
        if stop <= end:
            part = MARK if text and not before else REASONING
        elif before and shown:
            shown[-1] += before
            before = ""
        shown.append(before + after)
        if spans and spans[-1][1] is part:
            spans.pop()
        spans.append((len(shown), part))
        start = stop
    return shown, spans
