"""What a start says: model and timing, the address (gunicorn's own line, of what is bound), the console.

What gunicorn says besides is told as debugging, as the settings are.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from app.server import ranks
from config import ConfigError, Settings
from config.durations import format_duration


def check_free(server: Any) -> None:
    """ConfigError for an address that somebody listens on. gunicorn itself would try for five seconds."""
    if server.master_pid or server.systemd or server.cfg.reuse_port:
        return
    for address in server.cfg.address:
        if isinstance(address, tuple):
            with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                except OSError as error:
                    reason = error.strerror or error
                    raise ConfigError(f"cannot listen at {address[0]}:{address[1]}: {reason}") from None


def say_model(log: Any, settings: Settings) -> None:
    """What is served, and how fast; all settings for who debugs."""
    names = ", ".join(settings.model.served_names)
    log.info("model: %s; timing: %s", names, _timing(settings))
    log.debug("settings: %s", json.dumps(settings.dump()))


def say_console(log: Any, settings: Settings) -> None:
    """Where the console of each rank is."""
    path = settings.server.root_path.rstrip("/") + "/console"
    urls = ", ".join(url + path for _, url in ranks.siblings(settings))
    log.info("console: %s", urls if settings.api.console else "none; --console serves one")


def _timing(settings: Settings) -> str:
    if settings.engine.is_real:
        return "a real engine's"
    if settings.steps.shared:
        return f"steps of profile {settings.steps.profile}"
    latency = settings.latency
    first, next = format_duration(latency.time_to_first_token), format_duration(latency.inter_token_latency)
    return f"first token after {first}, each next after {next}"
