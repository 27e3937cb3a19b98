"""The commands that serve a model, or write a reply without a server."""

from collections.abc import Mapping

from app.core.extensions import Command, late_command

COMMANDS: Mapping[str, Command] = {
    "generate": late_command(
        f"{__package__}.command", "generate a reply with a real model, or chat with it"
    ),
    "llm": late_command(f"{__package__}.serve_command", "serve a real model"),
}
