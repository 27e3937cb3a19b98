"""Refuses processes to tests that are not marked `wire`."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from tests.needs import NEEDS

WIRE = "wire"
"""Name of the folders, and of the marker, of tests that may start a process: a server, a command."""
FOLDERS = frozenset((WIRE, "servers"))
"""`servers` is a matrix of other servers and proxies, with a target of its own: make test-servers."""
EVENTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"))
"""Audit events of the interpreter for a process that starts (PEP 578)."""
FONTS = "fc-list"
"""Command that matplotlib calls once on a machine, to know its fonts."""


def is_wire(item: pytest.Item) -> bool:
    """Returns whether a test may start processes: by its folder, or as it needs a thing that is one."""
    return bool(FOLDERS.intersection(PurePath(item.path).parts)) or any(
        item.get_closest_marker(need.marker) for need in NEEDS
    )


class ProcessGuard:
    """An audit hook that fails the test of now when it starts a process that it may not start."""

    refuses = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.refuses and event in EVENTS and arguments[:1] != (FONTS,):
            pytest.fail(f"a test outside the folders named wire starts a process: {event} {arguments[:2]}")
