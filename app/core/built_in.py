"""The list of built-in extensions, and the selection that the settings enable."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from app.core.extensions import Extension
    from app.core.text.files import TokenizerFolder
    from config import Settings

PACKAGE = "app.extensions"
BUILT_IN = {
    "project_files": "ProjectFiles",
    "shell_completion": "ShellCompletion",
    "render_service": "RenderService",
    "rate_limits": "ClientLimits",
    "load_reports": "ServerLoadReports",
    "chat_batch": "ChatBatch",
    "beam_search": "BeamSearches",
    "forms": "Forms",
    "tool_calls": "ToolCallReplies",
    "media": "Media",
    "datasets": "Datasets",
    "faults": "Faults",
    "scripts": "Scripts",
    "journal": "RequestJournal",
    "explanation": "Explanations",
    "tracing": "Tracing",
    "recording": "Recordings",
    "anthropic": "AnthropicMessages",
    "responses": "Responses",
    "scale_out": "ScaleOut",
    "cohere": "CohereChat",
    "pooling": "Pooling",
    "label_reads": "LabelReads",
    "adapters": "Adapters",
    "sagemaker": "SageMaker",
    "grpc": "Grpc",
    "fake_metrics": "FakeMetrics",
    "kv_index": "KvIndexing",
    "step_policies": "StepPolicies",
    "cache_groups": "CacheGroups",
    "kv_offload": "KvOffload",
    "gguf": "GgufFiles",
    "llm": "RealEngine",
    "devmode": "DevelopmentRoutes",
    "sglang": "SglangDialect",
    "console": "ServerConsole",
    "handoff": "Handoff",
    "data_parallel": "DataParallel",
    "plugins": "Plugins",
    "costs": "Costs",
    "workbench_commands": "WorkbenchCommands",
    "wsgi_middleware": "WsgiMiddleware",
    "openapi": "OpenApi",
}
"""Packages of the built-in extensions with their classes, in the order of their calls.

Where one answer is wanted, such as a reply, the first extension that has one decides. `openapi` is
the last one: it describes the routes of all others.
"""
log = logging.getLogger(__name__)


@cache
def present_extensions(file: str = "__init__.py") -> tuple[type[Extension], ...]:
    """Returns the built-in extensions whose packages contain `file`, in the order of `BUILT_IN`.

    A package whose folder was deleted is left out. So is, with a warning, an extension that
    requires one that is left out. Folders are looked up, and the warning is logged, once in a
    process for each `file`: a start asks several times. Unless a folder was deleted, packages
    without `file` are not imported, because nothing can be missing that another package requires.
    """
    extensions: list[type[Extension]] = []
    folder = import_module(PACKAGE).__path__[0]
    missing = BUILT_IN.keys() - os.listdir(folder)
    chosen = [name for name in BUILT_IN if os.path.exists(f"{folder}/{name}/{file}")]
    candidates = BUILT_IN if missing else chosen
    for name in candidates:
        if name in missing:
            continue
        requirement = _missing_requirement(name, missing)
        if requirement:
            missing.add(name)
            log.warning("extension %s is disabled because it requires %s", name, requirement)
        elif name in chosen:
            extensions.append(import_extension(name))
    return tuple(extensions)


def import_extension(name: str) -> type[Extension]:
    """Imports the extension `name`, one of `BUILT_IN`."""
    extension: type[Extension] = getattr(import_module(f"{PACKAGE}.{name}"), BUILT_IN[name])
    return extension


def _missing_requirement(name: str, missing: Collection[str]) -> str | None:
    """Returns an extension that `name` requires and that is missing; None without one."""
    try:
        extension = import_extension(name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(f"{PACKAGE}."):
            raise
        return error.name.removeprefix(f"{PACKAGE}.")
    for requirement in extension.requires:
        if requirement in missing:
            return requirement
    return None


def read_tokenizer(path: Path) -> tuple[Tokenizer, TokenizerFolder] | None:
    """Returns the tokenizer in a file that an extension can read; None for other files.

    Raises:
        TokenizerLoadError: as `Extension.read_tokenizer` does.
    """
    for extension in present_extensions():
        content = extension.read_tokenizer(path)
        if content is not None:
            return content
    return None


def enabled_extensions(settings: Settings) -> list[type[Extension]]:
    """Returns the built-in extensions that are present and that `settings` enable."""
    return [extension for extension in present_extensions() if extension.is_enabled(settings)]
