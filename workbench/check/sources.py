"""Command lines of vLLM, and where their words are written. Start reading at `CommandLine`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath

from vllm_facts.words import SUFFIXES
from workbench.check.findings import Finding, Place
from workbench.check.text import Text

MAX_BYTES = 256 << 10
"""Size of a file."""
MAX_DOCUMENT_BYTES = 1 << 20
"""Size of a file of documents, such as a dashboard."""
MAX_LINES = 500
"""Most command lines of all files."""
MAX_WORDS = 2_000
"""Most words of a command line."""
_COMMAND = re.compile(
    r"\bvllm[\"']?[\s,]{1,40}[\"']?serve\b|-m[\"']?[\s,]{1,40}[\"']?vllm\.entrypoints\b"
)
_IMAGE = re.compile(r"[\w/]vllm[\w-]*[:@]|\bvllm-openai\b|\bvllm/vllm")


def names_command(text: str) -> bool:
    """Returns whether a text may contain a command line of vLLM's server."""
    return "vllm" in text and _COMMAND.search(text) is not None


def names_server(text: str) -> bool:
    """Returns whether a text may contain a command line of vLLM's server, or its image."""
    return names_command(text) or ("vllm" in text and _IMAGE.search(text) is not None)


_PLACEHOLDER = re.compile(
    r"<[A-Za-z_][^<>|{}\"]{0,80}>|\{\{[^{}]{1,1000}\}\}|\$\{\{[^{}]{1,1000}\}\}"
    r"|(?<![A-Za-z0-9])(?:YOUR|MY|your)[_-]\w[\w-]*|\b(?:REPLACE|CHANGE)[_-]?(?:ME|WITH|THIS)\w*"
    r"|\bPLACEHOLDER\w*|(?<!\w)__[A-Z][A-Z0-9_]*__(?!\w)|@[A-Z][A-Z0-9_]*@|%[A-Z][A-Z0-9_]*%"
)
"""A name that people are to replace, such as <PORT>, YOUR_PORT, or __PORT__."""
_WHOLE_PLACEHOLDER = re.compile(
    r"\.\.\.|\u2026|X{3,}|x{3,}|TODO|TBD|\{[A-Za-z_]\w*\}|\[[A-Za-z][\w .-]{0,80}\]|\[(?=-)[^\]]*\]"
)
"""Words that are no values."""


def placeholder_in(text: str) -> str:
    """Returns the part of a word that stands for another value; empty for none."""
    value = text.partition("=")[2] if text.startswith("-") and "=" in text else text
    if _WHOLE_PLACEHOLDER.fullmatch(value):
        return value
    if value.startswith(("{", "[")) and not value.startswith("{{"):
        return ""  # JSON may hold the marks of a chat
    match = _PLACEHOLDER.search(value)
    return match[0] if match is not None else ""


JSON_SUFFIX = ".json"
_JSON = re.compile(r"\s*\{\s*[\"}]")
_YAML = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---|- \w+:|[\w.-]+:)(?=\s|$)")


def is_document(name: str, text: str = "") -> bool:
    """Returns whether a file is JSON or YAML, by its name or by the beginning of its text."""
    if PurePath(name).suffix in (JSON_SUFFIX, *SUFFIXES):
        return True
    return _JSON.match(text) is not None or _YAML.match(text) is not None


def is_json(name: str, text: str) -> bool:
    """Returns whether a document is JSON, by its name or by the beginning of its text."""
    return PurePath(name).suffix == JSON_SUFFIX or _JSON.match(text) is not None


def is_dockerfile(name: str) -> bool:
    """Returns whether a file is a Dockerfile, by its name."""
    path = PurePath(name.lower())
    begins_so = path.name.startswith(("dockerfile", "containerfile"))
    return begins_so or path.suffix == ".dockerfile"


def is_unit(name: str) -> bool:
    """Returns whether a file is a unit of systemd, by its name."""
    return PurePath(name).suffix == ".service"


def is_code(name: str, text: str) -> bool:
    """Returns whether a text can be the code of a shell, and not a file of another kind."""
    return not (is_document(name, text) or is_dockerfile(name) or is_unit(name))


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line."""

    text: str
    place: Place
    unknown: str = ""
    """The variable whose value is not known, such as $LENGTH."""
    is_quoted: bool = False
    """The word is one word, whatever the values of its variables are."""
    is_whole: bool = False
    """The values of its variables are not split at blanks, because they are in quotes."""
    content: Text | None = None
    """The text with the places of its characters, if the word is a value of a YAML file."""

    @property
    def script(self) -> Text:
        """The text as the code of a shell; the word is in quotes."""
        if self.content is not None:
            return self.content
        start = self.place._replace(column=self.place.column + 1)
        return Text(self.place.file, self.text, start)


@dataclass(slots=True)
class CommandLine:
    """The arguments of `vllm serve`, with variables and the version of the image."""

    place: Place
    words: list[Word] = field(default_factory=list)
    """Arguments, without `vllm serve`."""
    environment: dict[str, Place] = field(default_factory=dict)
    """Variables with a value, by name."""
    version: str = ""
    """Tag of the image; empty without one."""
    is_other_build: bool = False
    """The image is of another project than vLLM, which can have any version of vLLM."""
    is_in_container: bool = False
    """The files that the command line names are not here."""
    findings: list[Finding] = field(default_factory=list)
    """Findings of the reader of the file."""
