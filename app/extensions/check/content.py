"""What a file contains for `check`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.extensions.check.findings import Finding
from app.extensions.check.sources import CommandLine

if TYPE_CHECKING:
    from app.extensions.check.documents import Value


@dataclass(slots=True)
class FileContent:
    """The parts of a file that rules check."""

    lines: list[CommandLine] = field(default_factory=list)
    watchers: list[Value] = field(default_factory=list)
    """All documents of the file, if any document asks for metrics."""
    notes: list[Finding] = field(default_factory=list)
    """Findings about what was not read."""

    def add(self, other: FileContent) -> None:
        """Adds what another file contains."""
        self.lines += other.lines
        self.watchers += other.watchers
        self.notes += other.notes
