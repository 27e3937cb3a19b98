"""Lines that the server logs at its start and after a reload."""

import json
from collections.abc import Iterable
from logging import Logger

from app.core.server.gunicorn.ranks import rank_urls
from app.core.versions.chain import simulated_version
from config import Settings
from config.durations import format_duration
from config.settings import ServerSettings, TlsSettings


def log_model(log: Logger, settings: Settings, roles: Iterable[str]) -> None:
    """Logs the model, its timing, and lines about roles; at level debug, all settings, too."""
    if settings.engine.is_real:
        timing = "a real engine's"
    elif settings.steps.shared:
        timing = f"steps of profile {settings.steps.profile}"
    else:
        first = format_duration(settings.latency.time_to_first_token)
        following = format_duration(settings.latency.inter_token_latency)
        timing = f"first token after {first}, each next after {following}"
    names = ", ".join(settings.model.served_names)
    played = simulated_version(settings.api)
    log.info("vLLM %s (%s); model: %s; timing: %s", played.release, played.level, names, timing)
    for line in roles:
        log.info("%s", line)
    log.debug("settings: %s", json.dumps(settings.dump()))


def log_console(log: Logger, server: ServerSettings, tls: TlsSettings) -> None:
    """Logs the URLs of the console."""
    path = server.root_path.rstrip("/") + "/console"
    if server.uds is None:
        urls = ", ".join(url + path for _, url in rank_urls(server, tls))
    else:
        urls = f"{path} at unix:{server.uds}"
    log.info("console: %s", urls)
