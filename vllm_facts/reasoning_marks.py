"""The marks around thoughts that vLLM's reasoning parsers look for."""

from collections.abc import Callable, Mapping

ReasoningMarks = tuple[str, str]
"""Texts before and after the thoughts of a reply."""
THINK: ReasoningMarks = ("<think>", "</think>")
"""The marks of most parsers."""
PARSER_MARKS: Mapping[str, ReasoningMarks] = {
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "cohere_command4": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "k2_horizon": ("<ifm|think>", "</ifm|think>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "plamo3": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
}
"""Other marks that are a token each. Parsers whose marks are several tokens are not here."""


def reasoning_has_ended(text: str, marks: ReasoningMarks) -> bool:
    """Returns whether the last mark in a text ends thoughts."""
    opening, closing = marks
    return text.rfind(closing) > text.rfind(opening)


def marks_of(parser: str, encode: Callable[[str], list[int]]) -> ReasoningMarks:
    """Returns the marks of a reasoning parser; those of most parsers if they are no tokens.

    `encode` is that of the tokenizer. The built-in vocabulary has only the tokens of `THINK`.
    """
    marks = PARSER_MARKS.get(parser, THINK)
    if all(len(encode(mark)) == 1 for mark in marks):
        return marks
    return THINK
