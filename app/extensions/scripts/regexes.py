"""Compiles the regular expressions of scripts, with limits on their size."""

import re

import regex

from app.extensions.scripts.rules import ScriptError

MAX_REGEX_CHARACTERS = 4_000
"""Longest regex, in characters."""
MAX_REGEX_NODES = 10_000
"""Most nodes of a regex after its repeats are unrolled.

The `regex` package unrolls a repeat such as `a{500}` in C, which takes 0.4 us and 270 bytes a node
and cannot be interrupted: `a{65535}`, 400 times, took a minute.
"""
MAX_SCRIPT_REGEX_NODES = 300_000
"""Most nodes of all regexes of a script."""
COUNTED_REPEAT = re.compile(r"(.?)\{(\d+)[,}]", re.DOTALL)
VERBOSE_FLAG = re.compile(r"\(\?[A-Za-z0-9-]*x")
SPLIT_COUNT = re.compile(r"\{[\d,]*[\s#]")
"""Start of a count with a blank or comment inside, which a verbose regex may have."""
ENDS_OF_GROUPS = ")}?+*"
"""Characters before a repeat that may repeat more than one character."""


class RegexCompiler:
    """Compiles the regexes of one script, which share a limit on their size."""

    def __init__(self) -> None:
        self.nodes = 0
        """Nodes of all regexes so far, with their counted repeats unrolled."""

    def compile(self, source: str, ignore_case: bool) -> regex.Pattern[str]:
        """Compiles one regex.

        Raises:
            ScriptError: The regex is invalid or too large.
        """
        if len(source) > MAX_REGEX_CHARACTERS:
            raise ScriptError(f"the regex is too long: it has {len(source)} characters")
        nodes = unrolled_nodes(source)
        if nodes > MAX_REGEX_NODES:
            raise ScriptError(
                f"the regex {source[:60]!r} is too large: it has more than {MAX_REGEX_NODES} "
                "elements when its repeat counts are expanded"
            )
        self.nodes += nodes
        if self.nodes > MAX_SCRIPT_REGEX_NODES:
            raise ScriptError(
                f"the regexes have more than {MAX_SCRIPT_REGEX_NODES} elements in total"
            )
        try:
            flags = regex.IGNORECASE if ignore_case else 0
            return regex.compile(source, flags, cache_pattern=False)
        except (regex.error, re.error, RecursionError, OverflowError, MemoryError) as error:
            raise ScriptError(f"invalid regex {source[:60]!r}: {error}") from None


def unrolled_nodes(source: str) -> int:
    """Returns an upper bound of a regex's nodes, with each counted repeat unrolled.

    A repeat behind a single character adds its count. A repeat behind a group may repeat everything
    before it, and multiplies the nodes so far. A bracket in a character class cannot make this
    bound too low.

    Raises:
        ScriptError: A verbose regex has a count that cannot be parsed here.
    """
    is_verbose = VERBOSE_FLAG.search(source) is not None
    if is_verbose and SPLIT_COUNT.search(source):
        raise ScriptError(
            f"the regex {source[:60]!r} contains a space or a comment inside a repeat count"
        )
    nodes = 0
    counted_to = 0
    for repeat in COUNTED_REPEAT.finditer(source):
        # The length bounds the conversion: int() refuses 5,000 digits.
        count = MAX_REGEX_NODES + 1
        if len(repeat[2]) <= len(str(MAX_REGEX_NODES)):
            count = max(1, int(repeat[2]))
        nodes += repeat.start() + 1 - counted_to
        counted_to = repeat.end()
        # In a verbose regex, blanks and comments may separate the repeat from its group.
        if is_verbose or repeat[1] in ENDS_OF_GROUPS:
            nodes *= count
        else:
            nodes += count
    return nodes + len(source) - counted_to
