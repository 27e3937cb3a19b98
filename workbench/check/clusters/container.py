"""A container that runs vLLM, whatever kind of file it is from. Start reading at `Container`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_facts.images import read_image
from workbench.check.findings import Finding, Place
from workbench.check.shell_commands import ShellReader, container_lines
from workbench.check.shell_words import MAX_VALUE
from workbench.check.sources import MAX_DOCUMENT_BYTES, CommandLine, Word
from workbench.check.text import InnerText, Text

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


class Mount(NamedTuple):
    """A ConfigMap whose files are in a container."""

    path: str
    name: str
    key: str
    """The only key that is mounted, at the path itself; empty for all keys, below the path."""


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
    device_key: str = ""
    """Key of the number of devices, such as nvidia.com/gpu."""
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
    mounts: list[Mount] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Findings of the reader of the file."""

    def device_setting(self, count: int) -> str:
        """Returns what to write for a number of devices."""
        return f"{self.device_key or 'nvidia.com/gpu'}: {count}"

    @property
    def is_of_vllm_project(self) -> bool:
        """Returns whether vLLM publishes the image; other images add to vLLM."""
        image = read_image(self.image)
        return image is not None and image.is_of_vllm_project

    @property
    def version(self) -> str:
        """The version of vLLM by the tag of the image; empty if the tag is of another project."""
        image = read_image(self.image)
        if image is None:
            return ""
        number = _NUMBER.match(image.tag)
        if number is None:
            return image.tag if image.is_of_vllm_project else ""
        return "" if "lmcache" in self.image else number[1]


@dataclass(slots=True)
class ContainerLine(CommandLine):
    """The command line of a container."""

    container: Container = field(kw_only=True)


class Scripts:
    """The texts of ConfigMaps by name and key, which containers may mount and run.

    Each container reads a script with its own variables, so that the sum of all is limited.
    """

    def __init__(self, texts: Mapping[tuple[str, str], Text]) -> None:
        self._texts = texts
        self._left = MAX_DOCUMENT_BYTES

    def take(self, name: str, key: str) -> Text | None:
        """Returns a script to read; None if there is none, or if too much was read."""
        text = self._texts.get((name, key))
        if text is None or self._left < 0:
            return None
        self._left -= len(text.text)
        return text


def command_lines(container: Container, scripts: Scripts) -> list[ContainerLine]:
    """Returns the command lines of vLLM in a container; none if it runs another program."""
    words = [_resolved(word, container.environment) for word in container.words]
    variables = {name: text for name, text in container.environment.items() if text is not None}
    lines: list[CommandLine] = []
    if words:
        lines = container_lines(
            read_image(container.image),
            words,
            container.place,
            variables=variables,
            has_command=container.has_command,
        )
    if not lines:
        for file in dict.fromkeys(_mounted_files(container)):
            text = scripts.take(*file)
            if text is not None:
                lines += ShellReader(variables).read(text)
    if container.findings and not lines:
        lines.append(CommandLine(container.place))
    if len(lines) > 1:  # the devices of each server are not known
        container.device_count = None
    return [_of_container(line, container) for line in lines]


def _of_container(line: CommandLine, container: Container) -> ContainerLine:
    return ContainerLine(
        place=line.place,
        words=line.words,
        environment={**container.places, **line.environment},
        version=container.version,
        is_other_build=line.is_other_build,
        is_in_container=True,
        findings=[*container.findings, *line.findings],
        container=container,
    )


def _mounted_files(container: Container) -> Iterator[tuple[str, str]]:
    """Yields the ConfigMaps and keys of the files that the words of a container may name."""
    mounts = {mount.path: mount for mount in container.mounts}
    for word in container.words:
        folder, _, key = word.text.rpartition("/")
        whole = mounts.get(word.text)
        around = mounts.get(folder)
        if whole is not None and whole.key:
            yield whole.name, whole.key
        elif around is not None and not around.key:
            yield around.name, key


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
    """Returns whether a container has an image with vLLM, or names its server."""
    if read_image(image) is not None:
        return True
    return any("vllm" in word for word in words)
