"""Limits on the templates of scripts, and the budget of work that they share.

Rules can be set while a server runs, and their templates are rendered in the event loop, so three
limits hold:

* compiling: a source has at most `MAX_NODES` nodes, nested at most `MAX_DEPTH` deep. Python's
  compiler is not interruptible: it takes about 20 us a node, and much longer for deeply nested
  code.
* a single operation: no value has more than `MAX_CHARACTERS` characters, and no integer operand
  more than `MAX_BITS` bits.
* rendering: the templates of one answer share a `Budget`, which also lets other requests run in
  between.
"""

from collections.abc import Callable, Mapping

from jinja2 import TemplateError
from jinja2.runtime import Context

from app.extensions.scripts.matched_request import no_pause

MAX_CHARACTERS = 1 << 18
"""Longest text that a template, or an operation in it, may produce."""
MAX_NODES = 500
"""Most nodes in the syntax tree of a template."""
MAX_DEPTH = 50
"""Most levels of that tree.

Python refuses 200 nested parentheses, and a level needs up to three.
"""
MAX_TOKENS = 8 * MAX_NODES
"""Most tokens that are parsed. A node has up to three tokens, and blanks count as tokens, too."""
MAX_SCRIPT_NODES = 100_000
"""Most nodes of all templates of a script; compiling them takes a few seconds of a thread."""
MAX_WORK = 16 * MAX_CHARACTERS
"""Most characters that the templates of one answer read; every operation counts its operands."""
OPERATION_WORK = 100
"""Work of an operation, in characters, in addition to its operands."""
RENDER_WORK = 1_000
"""Work of rendering a template, in characters."""
MAX_BITS = 1024
MAX_DATE_FORMAT = 200
"""Longest format of the filter `date`, in characters: a directive can yield 24 characters."""
MAX_STRIPPED = 100
"""Most characters that the filter `trim` looks for: stripping compares each with each."""
MAX_DIGITS = 20
MAX_HEX_DIGITS = 64
BUDGET_KEY = "render budget"
"""Key of the `Budget` among the values; no template can spell the name."""
Values = Mapping[str, object]
"""Variables of a template, and its `Budget`."""


class Budget:
    """Work that the templates of one answer may still do, in characters.

    `pause` is called before each operation, and may let other requests run.
    """

    __slots__ = ("_pause", "_remaining")

    def __init__(self, pause: Callable[[], None] = no_pause, characters: int = MAX_WORK) -> None:
        self._pause = pause
        self._remaining = characters

    def spend(self, characters: int) -> None:
        """Raises `TemplateError` when the work of this and earlier operations is too much."""
        self._remaining -= characters
        if self._remaining < 0:
            raise TemplateError(f"the rule's templates process more than {MAX_WORK} characters")
        self._pause()


def budget_of(context: Context) -> Budget:
    """Returns the budget among the values of a template that is being rendered."""
    budget = context.parent[BUDGET_KEY]
    assert isinstance(budget, Budget)
    return budget


def size_of(value: object) -> int:
    """Returns roughly the characters in the text of a value.

    Each member of a container counts as at least one, and the walk stops at `MAX_CHARACTERS`, so
    its time is bounded.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    if not isinstance(value, list | tuple | dict):
        return 1
    size = 0
    pending: list[object] = [value]
    while pending and size <= MAX_CHARACTERS:
        member = pending.pop()
        if isinstance(member, dict):
            size += 1 + len(member)
            pending.extend(member)
            pending.extend(member.values())
        elif isinstance(member, list | tuple):
            size += 1 + len(member)
            pending.extend(member)
        else:
            size += size_of(member)
    return size


def too_long() -> TemplateError:
    """Returns the error for a text of more than `MAX_CHARACTERS`."""
    return TemplateError(f"the text has more than {MAX_CHARACTERS} characters")
