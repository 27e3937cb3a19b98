"""The command that starts a server that only tokenizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.extensions import Command


def _launch(argv: Sequence[str]) -> int:
    from app.extensions.render_service.render_only import launch

    return launch(argv)


COMMANDS: Mapping[str, Command] = {
    "launch": Command(_launch, "start a server that only tokenizes: launch render"),
}
