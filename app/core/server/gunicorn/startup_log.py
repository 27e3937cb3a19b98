"""Lines that the server logs at its start and after a reload."""

import json
from logging import Logger

from app.core.protocol.versions import simulated_version
from app.core.server.gunicorn.ranks import rank_urls
from config import Settings
from config.durations import format_duration


def log_model(log: Logger, settings: Settings) -> None:
    """Logs the model and its timing; at level debug, all settings, too."""
    if settings.engine.is_real:
        timing = "a real engine's"
    elif settings.steps.shared:
        timing = f"steps of profile {settings.steps.profile}"
    else:
        first = format_duration(settings.latency.time_to_first_token)
        following = format_duration(settings.latency.inter_token_latency)
        timing = f"first token after {first}, each next after {following}"
    names = ", ".join(settings.model.served_names)
    release = simulated_version(settings.api).release
    log.info("vLLM %s; model: %s; timing: %s", release, names, timing)
    log.debug("settings: %s", json.dumps(settings.dump()))


def log_console(log: Logger, settings: Settings) -> None:
    """Logs the URLs of the console, or how to enable it."""
    if not settings.get("console", False):
        log.info("console: off; enable it with --console")
        return
    path = settings.server.root_path.rstrip("/") + "/console"
    if settings.server.uds is None:
        urls = ", ".join(url + path for _, url in rank_urls(settings.server, settings.tls))
    else:
        urls = f"{path} at unix:{settings.server.uds}"
    log.info("console: %s", urls)
