"""Builds the application: settings, the parts of the core, then the extensions.

Start reading at `create_app`. `ServerParts` lists the parts in the order of their building,
and `app.core.extensions` has the hooks that are called on the way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from app.core.assembly.derived import publishing
from app.core.assembly.server import build
from app.core.built_in import enabled_extensions, read_tokenizer
from app.core.engine.lora import adapters_of
from app.core.server.flask.application import Understudy
from app.core.server.gunicorn import ranks
from app.core.settings import load, settings_type
from app.core.text.base import Tokenizer, TokenizerError
from app.core.text.huggingface import load_tokenizer
from config import ConfigError, Settings
from config.loader import check_extras
from config.validation import LiveSettings

if TYPE_CHECKING:
    from gunicorn.glogging import Logger

    from app.core.server.gunicorn.arbiter import EngineProcess

NO_ENGINE = "setting engine: needs the extension llm, which this server lacks"


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application from `settings`, or from the environment and its YAML file.

    Starts nothing that a fork would lose. An invalid setting ends the process with one line and
    exit status 1.
    """
    if settings is None and "gunicorn.arbiter" in sys.modules:
        from app.core.server.gunicorn.foreign_workers import warn_of_workers

        warn_of_workers()
    try:
        settings = settings or ranks.exported_settings(os.environ, settings_type()) or load()
        check_extras(settings)
        tokenizer = tokenizer_of(settings)
        extensions = enabled_extensions(settings)
        for extension in extensions:
            other_application = extension.application(settings, tokenizer)
            if other_application is not None:
                for describing in extensions:
                    describing.describe(other_application, settings)
                return other_application
        rank = ranks.rank_of(settings.server, os.environ)
        return build(LiveSettings(settings), tokenizer, extensions, rank)
    except (ConfigError, TokenizerError) as error:
        sys.exit(f"error: {error}")


def prepare(settings: Settings) -> None:
    """Downloads and checks the files of the settings, before workers start.

    Raises:
        TokenizerError: a tokenizer that the settings name cannot be used.
        ConfigError: another file cannot be used, or packages are missing.
    """
    check_extras(settings)
    named = settings.tokenizer
    if named.tokenizer or named.chat_template or settings.engine.is_real:
        tokenizer_of(settings).encode("Ready?")
    adapters_of(settings.lora, settings.model)
    for extension in enabled_extensions(settings):
        extension.prepare(settings)


def roles(settings: Settings) -> Iterator[str]:
    """Yields lines about what a server does with the events of KV blocks."""
    cache = settings.kvcache
    if cache.enable_kvcache and cache.zmq_endpoint:
        topic = publishing(
            settings.kvcache, settings.server, settings.api, model=settings.model.model, rank=0
        ).topic
        yield f"KV events: published to {cache.zmq_endpoint}; topic {topic}"
    for extension in enabled_extensions(settings):
        yield from extension.startup_lines(settings)


def engine_options(settings: Settings) -> Any:
    """Returns the options of a real engine's process.

    Raises:
        ConfigError: it cannot run here.
    """
    kv_events = publishing(
        settings.kvcache, settings.server, settings.api, model=settings.model.model, rank=0
    )
    for extension in enabled_extensions(settings):
        options = extension.engine_process(settings, kv_events)
        if options is not None:
            return options
    raise ConfigError(NO_ENGINE)


def new_engine_process(settings: Settings, log: Logger) -> EngineProcess:
    """Returns the process of a real engine, which is not started yet. Raises ConfigError."""
    options = engine_options(settings)
    for extension in enabled_extensions(settings):
        process = extension.new_engine_process(options, log, settings.engine.engine_timeout)
        if process is not None:
            return process
    raise ConfigError(NO_ENGINE)


def tokenizer_of(settings: Settings) -> Tokenizer:
    """Loads the tokenizer of the settings.

    Raises:
        TokenizerError: the tokenizer that the settings name cannot be loaded.
    """
    for extension in enabled_extensions(settings):
        tokenizer = extension.tokenizer(settings)
        if tokenizer is not None:
            return tokenizer
    takes_media = settings.model.multimodal and not settings.engine.is_real
    return load_tokenizer(
        settings.model.model, settings.tokenizer, takes_media, read_file=read_tokenizer
    )
