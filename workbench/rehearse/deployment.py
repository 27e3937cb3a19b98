"""The command lines of the stand-ins: the deployment's own, as each version takes it.

Start at `Deployment`. Options that only concern the machine or the network of the deployment are
left out. An option that the newer version renamed has its new name there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from config.declaration import UsageError
from vllm_facts.models import find_model
from vllm_facts.removal import REPLACEMENTS
from workbench.check.checker import Checker, Hardware
from workbench.check.options import ReadOptions, form_of
from workbench.check.sources import CommandLine

DEFAULT_MODEL = "Qwen/Qwen3-8B"
DEFAULT_WORDS = (
    *("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--served-model-name", DEFAULT_MODEL, "*"),
)
"""A model that thinks and calls tools, under every name: for a client without a deployment."""
LEFT_OUT = (
    *("api-key", "api-server-count", "config", "headless", "host", "model", "otlp-traces-endpoint"),
    *("port", "root-path", "seed", "uds", "kv-events-config", "kv-transfer-config"),
    *("data-parallel-address", "data-parallel-backend", "data-parallel-external-lb"),
    *("data-parallel-hybrid-lb", "data-parallel-rank", "data-parallel-rpc-port"),
    *("data-parallel-size", "data-parallel-size-local", "data-parallel-start-rank"),
    *("master-addr", "master-port", "nnodes", "node-rank"),
    *("ssl-ca-certs", "ssl-cert-reqs", "ssl-certfile", "ssl-keyfile", "ssl-keyfile-password"),
)
"""Options of the machine and the network; `model` is written in front."""
NAMED_FILES = ("chat-template", "lora-modules", "tool-parser-plugin", "reasoning-parser-plugin")
"""Options whose files are in the cluster only."""
TASK = "--task"
POOLING = ("--runner", "pooling")


class Deployment:
    """The server that the files start; a model that thinks and calls tools without one."""

    def __init__(self, line: CommandLine | None) -> None:
        self._line = line
        self.notes: list[str] = []
        """Sentences about parts of the deployment that the stand-ins lack."""

    def words(self, version: str) -> list[str]:
        """Returns the words after `serve` for a stand-in of a version."""
        if self._line is None:
            return [DEFAULT_MODEL, *DEFAULT_WORDS]
        options = Checker(version, "", Hardware()).options(self._line)
        renamed = list(self._renamed(options))
        model = self._without_model(options)
        for name in LEFT_OUT:
            options.remove(name)
        for name in NAMED_FILES:
            if not all(os.path.exists(path) for path in _paths(options, name)):
                options.remove(name)
                self._note(f"--{name} names files that are not here, and is left out")
        return [*self._served(model, options), *renamed]

    def _without_model(self, options: ReadOptions) -> str:
        """Returns the model, and removes its word."""
        model = str(options.values.get("model") or "")
        for index, word in enumerate(options.words):
            follows_option = index > 0 and options.words[index - 1].text.startswith("-")
            if word.text == model and not follows_option:
                del options.words[index]
                break
        return model

    def _served(self, model: str, options: ReadOptions) -> list[str]:
        """Returns the model with the remaining words; an unknown model keeps only its name."""
        words = [word.text for word in options.words]
        try:
            is_known = find_model(model) is not None
        except UsageError:
            is_known = False
        if is_known or os.path.exists(model):
            return [model, *words]
        names = options.values.get("served-model-name")
        self._note(
            f"the model {model or 'of a variable'} is not known: {DEFAULT_MODEL} has its place"
        )
        if names is None:
            words += ["--served-model-name", *([model] if model else [DEFAULT_MODEL, "*"])]
        return [DEFAULT_MODEL, *words]

    def _renamed(self, options: ReadOptions) -> Iterator[str]:
        """Yields the new names of options that the version has renamed, with their values."""
        assert self._line is not None
        findings = {(finding.line, finding.column): finding for finding in options.findings}
        words = self._line.words
        for index, word in enumerate(words):
            finding = findings.get((word.place.line, word.place.column))
            if finding is None or finding.code != "O103":
                continue
            form = form_of(word.text)
            replacement = REPLACEMENTS.get(form) or finding.fix.removeprefix("use ")
            if form == TASK:
                yield from POOLING
            elif replacement.startswith("--") and " " not in replacement:
                yield replacement
                yield from _value_of(words[index].text, [word.text for word in words[index + 1 :]])

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _value_of(text: str, following: Sequence[str]) -> Iterator[str]:
    """Yields the value of an option, if it has one."""
    if "=" in text:
        yield text.partition("=")[2]
    elif following and not following[0].startswith("-"):
        yield following[0]


def _paths(options: ReadOptions, name: str) -> list[str]:
    """Returns the values of an option that are paths; those of adapters follow their names."""
    value = options.values.get(name)
    if value is None:
        return []
    values = value if isinstance(value, list) else [str(value)]
    return [str(text).rpartition("=")[2] for text in values]
