"""Finds the command lines of vLLM in the files of clusters. Start reading at `cluster_lines`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.extensions.check.clusters.compose import services_of
from app.extensions.check.clusters.container import Container, command_line
from app.extensions.check.clusters.kinds import READERS
from app.extensions.check.clusters.pods import containers_of, read_services
from app.extensions.check.clusters.values import (
    containers_in_values,
    single_containers,
    stack_runtimes,
)
from app.extensions.check.documents import Value
from app.extensions.check.sources import MAX_LINES, CommandLine


def cluster_lines(documents: Sequence[Value]) -> list[CommandLine]:
    """Returns the command lines in the documents of one file.

    Raises:
        ConfigError: A document inside of a block is not YAML.
    """
    found: list[tuple[Container, Value]] = []
    objects = list(_objects(documents))
    for document in objects:
        if len(found) > MAX_LINES:
            break  # the command refuses so many
        found += [(container, document) for container in _containers(document)]
    read_services(objects, found)
    lines: list[CommandLine] = []
    for container, _ in found:
        line = command_line(container)
        if line is not None:
            lines.append(line)
    return lines


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
