"""The output of a failing command: the names that it quotes, and the lines that have failed."""

from __future__ import annotations

import os
import re

from workbench.check.findings import Place
from workbench.rehearse.client_code import ClientCode

FRAME = re.compile(r"([^\s\"'()<>|]{1,300}?)(?:[\"'], line |:)(\d{1,7})(?!\w)")
"""A line of a file, as tracebacks write it: `File "a.py", line 3`, `a.py:3` and `a.mjs:3:7`."""
MAX_TEXT_LENGTH = 1 << 16
"""Most characters that are searched, from the end."""


class Failure:
    """The output of a command that fails with the new version; false without a failure."""

    def __init__(self, text: str | None) -> None:
        """`text` is None without a failure."""
        self._has_failed = text is not None
        self._text = (text or "")[-MAX_TEXT_LENGTH:]

    def __bool__(self) -> bool:
        return self._has_failed

    def quotes(self, name: str) -> bool:
        """Returns whether the output has a name as a whole word."""
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._text) is not None

    def place(self, name: str, code: ClientCode) -> Place | None:
        """Returns the place of a name in the lines where the command has failed, the last first."""
        for match in reversed(list(FRAME.finditer(self._text))):
            place = code.place_in_line(os.path.relpath(match[1]), int(match[2]), name)
            if place is not None:
                return place
        return None

    def last_place(self, code: ClientCode) -> Place | None:
        """Returns the last line of the client's code in the output."""
        for match in reversed(list(FRAME.finditer(self._text))):
            file = os.path.relpath(match[1])
            if file in code.texts:
                return Place(file, int(match[2]))
        return None
