"""Finds the characters of a YAML or JSON string in the text of its file, in all styles."""

from __future__ import annotations

import re

import yaml

from workbench.check.text import Part

_FOLD = r"(?P<fold>[ \t]*\n[ \t\n]*)"
"""Ends of lines, which YAML joins by a blank."""
_ESCAPE = r"(?P<joined>\\\n[ \t]*)|\\(?:u[dD][89abAB]\w\w\\u\w{4}|u\w{4}|U\w{8}|x\w\w|.)"
_CHANGES = {
    '"': re.compile(f"{_ESCAPE}|{_FOLD}"),
    "'": re.compile(f"''|{_FOLD}"),
}
"""Style of quotation -> what is written otherwise than it is read."""
_BLANKS = re.compile(" *")
_CHANGES_OF_PLAIN = re.compile(_FOLD)


def parts_of(node: yaml.ScalarNode, source: str) -> list[Part]:
    """Returns where the characters of a string are written in the text of its document.

    The parts are right up to the first character that is written in an unknown way.
    """
    start = node.start_mark.index
    end = len(source) if node.end_mark is None else node.end_mark.index
    text = str(node.value)
    if node.style in ("|", ">"):
        return _parts_of_block(text, source[start:end], start, is_folded=node.style == ">")
    if node.style is not None:
        start += 1
        end -= 1
    changes = _CHANGES.get(node.style or "", _CHANGES_OF_PLAIN)
    return _parts_of_line(text, source, start, end, changes)


def _parts_of_line(
    text: str, source: str, start: int, end: int, changes: re.Pattern[str]
) -> list[Part]:
    """Returns the parts of a string that is written with escapes, or in several lines."""
    parts = [Part(0, start)]
    offset = 0
    written = start
    for match in changes.finditer(source, start, end):
        size = match.start() - written
        if text[offset : offset + size] != source[written : match.start()]:
            break
        offset += size + _size_of(match)
        written = match.end()
        parts.append(Part(offset, written))
    return parts


def _size_of(match: re.Match[str]) -> int:
    """Returns the number of characters that are read there."""
    groups = match.groupdict()
    if groups.get("joined") is not None:
        return 0
    fold = groups.get("fold")
    return 1 if fold is None else max(1, fold.count("\n") - 1)


def _parts_of_block(text: str, written: str, start: int, *, is_folded: bool) -> list[Part]:
    """Returns the parts of a block: a line of the text is the end of a line of the block."""
    lines = written.splitlines(keepends=True)
    parts = []
    offset = 0
    outer = start + len(lines[0])
    for line in lines[1:]:
        content = line.strip("\r\n")
        end = text.find("\n", offset)
        size = (len(text) if end < 0 else end) - offset
        indent = max(0, len(content) - size)
        if is_folded:  # a line with more blanks than the first one keeps them
            blanks = _BLANKS.match(text, min(offset, len(text)))
            kept = blanks.end() - offset if blanks is not None else 0
            indent = max(0, len(content) - len(content.lstrip(" ")) - kept)
        content = content[indent:]
        if offset > len(text) or text[offset : offset + len(content)] != content:
            break
        parts.append(Part(offset, outer + indent))
        offset += len(content) + 1
        outer += len(line)
    return parts or [Part(0, outer)]
