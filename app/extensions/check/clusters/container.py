"""A container that runs vLLM, whatever kind of file it is from. Start reading at `Container`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.extensions.check.findings import Place
from app.extensions.check.shell_commands import IMAGE, arguments_of, behind_entry_point
from app.extensions.check.shell_words import MAX_VALUE
from app.extensions.check.sources import CommandLine, Word
from app.extensions.check.text import InnerText

_REFERENCE = re.compile(r"\$(\$?)\(([\w.-]+)\)")
_NUMBER = re.compile(r"v?(\d+\.\d+)(?![\d])")
DEFAULT_PORT = 8000
"""Port of vLLM without --port."""


class Probe(NamedTuple):
    """A check of a container's health."""

    kind: str
    """`startup`, `liveness` or `readiness`."""
    port: str
    """Number or name of a port; empty for a command."""
    path: str
    """Path of a GET request; empty for another check."""
    seconds: float
    """Time until the container is stopped, or is not ready."""
    place: Place


class Port(NamedTuple):
    """A port that a file names."""

    number: int
    name: str
    place: Place


@dataclass(slots=True)
class Container:
    """The facts about a container that its rules need; unknown ones are None or empty."""

    place: Place
    image: str = ""
    image_place: Place | None = None
    words: list[Word] = field(default_factory=list)
    """The command and its arguments."""
    has_command: bool = False
    """The first word is a program, and not an argument of the image's entry point."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables; None for a value that is elsewhere, such as in a secret."""
    places: dict[str, Place] = field(default_factory=dict)
    """Places of the variables."""
    device: str = ""
    """Name of the device, as `--device` takes it."""
    device_count: int | None = None
    """Devices of the server."""
    device_place: Place | None = None
    has_shared_memory: bool | None = None
    """True if /dev/shm is larger than the default of 64 MiB."""
    probes: list[Probe] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    """Ports of the container."""
    other_ports: set[int] = field(default_factory=set)
    """Ports of the other containers of the pod."""
    services: list[list[Port]] = field(default_factory=list)
    """Ports that each service sends requests to."""
    links: list[tuple[str, Place]] = field(default_factory=list)
    """Names of services whose addresses Kubernetes puts into variables."""

    @property
    def is_of_vllm_project(self) -> bool:
        """Returns whether vLLM publishes the image; other images add to vLLM."""
        owner = self.image.partition("@")[0].rpartition("/")[0]
        return IMAGE.fullmatch(self.image) is not None and owner.rpartition("/")[2] == "vllm"

    @property
    def version(self) -> str:
        """The version of vLLM by the tag of the image; empty if the tag is of another project."""
        match = IMAGE.fullmatch(self.image)
        if match is None:
            return ""
        tag = match["tag"] or "latest"
        number = _NUMBER.match(tag)
        if number is None:
            return tag if self.is_of_vllm_project else ""
        return "" if "lmcache" in self.image else number[1]


@dataclass(slots=True)
class ContainerLine(CommandLine):
    """The command line of a container."""

    container: Container = field(kw_only=True)


def command_line(container: Container) -> ContainerLine | None:
    """Returns the command line of vLLM in a container; None if it runs another program."""
    words = [_resolved(word, container.environment) for word in container.words]
    if not words:
        return None
    variables = {name: text for name, text in container.environment.items() if text is not None}
    line: CommandLine | None
    if container.has_command or IMAGE.fullmatch(container.image) is None:
        line = arguments_of(words, variables)
    else:
        line = CommandLine(container.place)
        line = behind_entry_point(line, words, variables, has_entry_point=True)
    if line is None:
        return None
    return ContainerLine(
        place=line.place,
        words=line.words,
        environment={**container.places, **line.environment},
        version=container.version,
        is_in_container=True,
        findings=line.findings,
        container=container,
    )


def _replaced(text: str, environment: Mapping[str, str | None]) -> str:
    """Returns a text with Kubernetes' references `$(NAME)` as variables of a shell."""

    def variable(match: re.Match[str]) -> str:
        if match[1] or match[2] not in environment:
            return match[0]
        return f"${{{match[2]}}}"  # as long as it was

    return _REFERENCE.sub(variable, text)


def _resolved(word: Word, environment: Mapping[str, str | None]) -> Word:
    """Returns a word with the values of Kubernetes' references `$(NAME)`."""
    missing: list[str] = []
    left = MAX_VALUE

    def value(match: re.Match[str]) -> str:
        nonlocal left
        if match[1]:
            return match[0][1:]
        known = environment.get(match[2])
        if known is None or len(known) > left:
            missing.append(match[0])
            return match[0]
        left -= len(known)
        return known

    text = _REFERENCE.sub(value, word.text)
    unknown = missing[0] if missing else word.unknown
    if "{{" in text:
        unknown = text
    content = word.content
    if isinstance(content, InnerText):
        content = content.replaced(_replaced(content.text, environment))
    return Word(text, word.place, unknown, is_quoted=True, content=content)


def is_of_vllm(image: str, words: Iterable[str]) -> bool:
    """Returns whether a container has vLLM's image, or names its server."""
    if IMAGE.fullmatch(image) is not None:
        return True
    return any("vllm" in word for word in words)
