"""The content of a file for `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workbench.check.findings import Finding, Place
from workbench.check.sources import CommandLine
from workbench.check.text import Text

if TYPE_CHECKING:
    from workbench.check.documents import Value


@dataclass(slots=True)
class InnerFile:
    """A text of a file that is a file of another kind, such as a manifest in a here-document."""

    text: Text
    name: str
    """The file that the text becomes, or its key; may be empty."""
    depth: int
    """Number of texts around it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the script around it."""
    environment: Mapping[str, Place] = field(default_factory=dict)
    version: str = ""
    """Version of vLLM in the image around it."""
    is_in_container: bool = False


@dataclass(slots=True)
class FileContent:
    """The parts of a file that rules check."""

    lines: list[CommandLine] = field(default_factory=list)
    watchers: list[Value] = field(default_factory=list)
    """All documents of the file, if any document asks for metrics."""
    notes: list[Finding] = field(default_factory=list)
    """Findings about what was not read."""
    inner: list[InnerFile] = field(default_factory=list)

    def add(self, other: FileContent) -> None:
        """Adds what another file contains."""
        self.lines += other.lines
        self.watchers += other.watchers
        self.notes += other.notes
        self.inner += other.inner
