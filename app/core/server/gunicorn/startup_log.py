"""Lines that the server logs at its start and after a reload."""

import json
from collections.abc import Iterable
from logging import Logger

from app.core.server.gunicorn.ranks import rank_urls
from app.core.versions.chain import simulated_version
from config import Settings
from config.durations import format_duration
from config.settings import ServerSettings, TlsSettings
from vllm_facts.version import level_of

AT_ONCE = "answers at once"
"""Timing of a server with the default settings."""
HINT = ": --profile qwen3-14b-h100 adds the timing of a GPU"
"""The advice for a server that generates text."""
REQUEST = (
    "-H 'Content-Type: application/json'"
    """ -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""
)
"""A request to try, as flags of curl."""


def log_model(log: Logger, settings: Settings, roles: Iterable[str]) -> None:
    """Logs what is simulated, and lines about roles; at level debug, all settings, too."""
    first = settings.latency.time_to_first_token
    following = settings.latency.inter_token_latency
    if settings.engine.is_real:
        timing = "timing: a real engine's"
    elif settings.steps.shared:
        timing = f"timing: steps of profile {settings.steps.profile}"
    elif first or following:
        timing = f"timing: first token after {format_duration(first)}"
        timing += f", each next after {format_duration(following)}"
    else:
        timing = AT_ONCE
        if is_generating(settings.model.task, settings.get("role", "server")):
            timing += HINT
    names = ", ".join(settings.model.served_names)
    ranks = settings.server.ranks
    rank_text = f"; ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else ""
    played = simulated_version(settings.api)
    version = f"{played.release} ({level_of(played.version)})"
    log.info("vLLM %s; model: %s; %s%s", version, names, timing, rank_text)
    for line in roles:
        log.info("%s", line)
    log.debug("settings: %s", json.dumps(settings.dump()))


def is_generating(task: str, role: str) -> bool:
    """Returns whether the server generates text: an indexer and a model of vectors do not."""
    return task == "generate" and role == "server"


def log_address(
    log: Logger, server: ServerSettings, tls: TlsSettings, *, release: str, has_console: bool
) -> None:
    """Logs where the server is reached, and its console; `release` is that of vLLM."""
    root = server.root_path.rstrip("/")
    urls = [url + root for _, url in rank_urls(server, tls)]
    addresses = ", ".join(urls)
    if server.uds is not None:
        urls = [root]
        addresses = f"unix:{server.uds}"
    console = f"; console: {urls[0]}/console" if has_console else ""
    log.info("Understudy plays vLLM %s at %s%s", release, addresses, console)


def log_request(log: Logger, server: ServerSettings, tls: TlsSettings, *, has_key: bool) -> None:
    """Logs a request to try, for a server of chats at a TCP port."""
    [(_, url), *_] = rank_urls(server, tls)
    flags = " -k" if tls.enabled else ""
    if has_key:
        flags += " -H 'Authorization: Bearer KEY'"
    root = server.root_path.rstrip("/")
    log.info("try: curl -s%s %s%s/v1/chat/completions %s", flags, url, root, REQUEST)
