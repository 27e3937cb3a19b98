"""Finds the command lines of vLLM in the files of clusters. Start reading at `read_cluster`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config.declaration import ConfigError
from workbench.check.clusters.compose import services_of
from workbench.check.clusters.container import (
    Container,
    ContainerLine,
    Scripts,
    command_lines,
)
from workbench.check.clusters.kinds import READERS
from workbench.check.clusters.pods import containers_of, read_services
from workbench.check.clusters.scripts import TextReader, scripts_of
from workbench.check.clusters.values import (
    containers_in_values,
    single_containers,
    stack_runtimes,
)
from workbench.check.content import FileContent
from workbench.check.documents import Value
from workbench.check.sources import MAX_LINES, CommandLine

MAX_VARIABLES = 100_000
"""Variables of all containers of a file, which aliases can repeat."""


def read_cluster(documents: Sequence[Value], depth: int = 0) -> FileContent:
    """Returns the command lines in the documents of one file, and notes about unread texts.

    `depth` is the number of texts around the documents.

    Raises:
        ConfigError: A document inside of a block is not YAML, or the containers have too many
            variables.
    """
    found: list[tuple[Container, Value]] = []
    objects = list(_objects(documents))
    variable_count = 0
    for document in objects:
        if len(found) > MAX_LINES:
            break  # the command refuses so many
        for container in _containers(document):
            found.append((container, document))
            variable_count += len(container.environment)
            if variable_count > MAX_VARIABLES:
                message = f"{document.file} has more than {MAX_VARIABLES} variables of containers"
                raise ConfigError(message)
    read_services(objects, found)
    scripts = Scripts(scripts_of(objects))
    lines: list[CommandLine] = []
    for container, _ in found:
        lines += command_lines(container, scripts)
    reader = TextReader(lines, version=_version_of(lines), depth=depth)
    for document in documents:
        reader.read(document)
    reader.content.lines[:0] = lines
    return reader.content


def _version_of(lines: Sequence[CommandLine]) -> str:
    """Returns the version of the images of a file; empty for several."""
    versions = {line.version for line in lines if isinstance(line, ContainerLine)}
    return versions.pop() if len(versions) == 1 else ""


def _objects(documents: Sequence[Value]) -> Iterator[Value]:
    """Yields documents; of a `List`, its elements."""
    for document in documents:
        if document["kind"].text == "List":
            yield from document["items"]
        else:
            yield document


def _containers(document: Value) -> Iterator[Container]:
    if document["services"].is_mapping and not document["kind"]:
        yield from services_of(document)
        return
    seen: set[int] = set()
    for read in READERS:
        yield from read(document, seen)
    yield from containers_of(document, seen)
    yield from stack_runtimes(document)
    if not document["kind"]:
        yield from containers_in_values(document, seen)
    yield from single_containers(document, seen)
