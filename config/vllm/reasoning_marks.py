"""The marks around thoughts that vLLM's reasoning parsers look for."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class ReasoningMarks(NamedTuple):
    """Texts before and after the thoughts of a reply."""

    opening: str
    closing: str


THINK = ReasoningMarks("<think>", "</think>")
"""The marks of most parsers."""
PARSER_MARKS: Mapping[str, ReasoningMarks] = {
    "cohere_command3": ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    "cohere_command4": ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    "k2_horizon": ReasoningMarks("<ifm|think>", "</ifm|think>"),
    "minimax_m3": ReasoningMarks("<mm:think>", "</mm:think>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
    "plamo3": ReasoningMarks("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "seed_oss": ReasoningMarks("<seed:think>", "</seed:think>"),
}
"""Other marks that are a token each. Parsers whose marks are several tokens are not here."""


def marks_of(parser: str, encode: Callable[[str], list[int]]) -> ReasoningMarks:
    """Returns the marks of a reasoning parser; those of most parsers if they are no tokens.

    `encode` is that of the tokenizer. The built-in vocabulary has only the tokens of `THINK`.
    """
    marks = PARSER_MARKS.get(parser, THINK)
    if all(len(encode(mark)) == 1 for mark in marks):
        return marks
    return THINK
