"""vLLM's `serve` command line, read and turned into settings.

An option with the name of a setting sets that setting, some have special effects, and all other
options are ignored. Settings of Understudy are flags, too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from config.command_line import (
    find_settings_kind,
    flags_of,
    help_flag,
    help_text,
    setting_flags,
)
from config.declaration import COMMAND, UsageError
from config.flag_words import Flag, read_words
from config.settings import Settings, Table, table_of
from config.sources import Flags, FlagValues
from config.vllm.checks import check_load_balancing, check_values, is_headless
from config.vllm.effects import HTTP, MAX_RANKS, effect_of, is_missing_example
from config.vllm.options import (
    GROUPS,
    OBSOLETE,
    OPTIONS,
    PREFIX,
    effect,
    option_flags,
    options_with_effect,
)
from config.vllm.words import file_words, without_dots

ABOUT = f"""\
usage: {COMMAND} serve [MODEL] [--option value ...]

MODEL is the name of the simulated model.
Accepts the command line of `vllm serve`. docs/serve.md has the effect of each option. Settings of
Understudy ({COMMAND} --help) are accepted, too, except where vLLM has an option of the same name.
"""
MODEL = "Qwen/Qwen3-0.6B"
CONTEXT_LENGTH = 32_768
"""Context length, in tokens, of a model without a local config.json: a common value."""
FULL_PROMPTS = 8
"""Number of requests of the maximum length that fit in the KV cache."""
DEFAULTS = {
    "model": MODEL,
    "enable-kvcache": "true",
    "prefix-caching-hash-algo": "sha256",
    "zmq-endpoint": "",
    "event-flush-interval": "0",
    "kv-connector": "none",
    "enable-auto-tool-choice": "false",
    "max-waiting-queue-length": "16384",
    "max-request-body-size-mb": "32",
    "drain-duration": "0s",
}
"""vLLM's defaults that differ from our settings'. Interval 0 publishes events at every step."""
PORT = "8000"
UNREAD = frozenset({"PORT"})
"""Variables of settings that vLLM does not read: its port is 8000 unless --port is given."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Variable of vLLM with whole seconds."""
CONFIG = "--config"


def read(argv: Sequence[str], kind: type[Settings]) -> tuple[FlagValues, Flags]:
    """Returns vLLM's options, with the positional model as `model`, and flags of settings.

    The command line takes precedence over the file of `--config`.

    Raises:
        ConfigError: vLLM's parser would reject the command line.
    """
    flags = list(setting_flags(table_of(kind)))
    for name, option in (OPTIONS | OBSOLETE).items():
        flags += option_flags(name, option)
    flags.append(Flag(name=PREFIX + "optimization-level", forms=("-O",)))
    values, models = read_words(without_dots(argv), flags, shortened=True)
    path = values.get(PREFIX + "config")
    if path is not None:
        words = without_dots(file_words(str(path)))
        values = read_words(words, flags, shortened=True)[0] | values
    options: FlagValues = {}
    for name in list(values):
        if name.startswith(PREFIX):
            options[name.removeprefix(PREFIX)] = values.pop(name)
    if len(models) > 1:
        raise UsageError(f"unexpected argument {models[1]!r}: settings are given as --name value")
    if models:
        options["model"] = models[0]
    return options, flags_of(values, kind)


def usage(table: Table) -> str:
    """Returns the help of `serve`, with all options of vLLM."""
    groups: dict[str, list[Flag]] = {}
    for title, options in GROUPS.items():
        flags = groups.setdefault(title.capitalize(), [])
        for name, option in options.items():
            help = effect(name, table) or "Accepted; changes nothing."
            flags += option_flags(name, option, help)
    return ABOUT + help_text({**groups, "Others": [help_flag()]})


def settings_of(argv: Sequence[str], environ: Mapping[str, str], base: type[Settings]) -> Flags:
    """Converts a vLLM command line; settings on it take precedence over options.

    Raises:
        ConfigError: vLLM would reject the command line.
    """
    if sum(word.partition("=")[0] == CONFIG for word in argv) > 1:
        raise UsageError(f"flag {CONFIG}: only one file can be given")
    kind = find_settings_kind(argv, environ, base)
    options, flags = read(argv, kind)
    nonempty = {name: value for name, value in options.items() if value != ""}
    check_values(nonempty, OPTIONS)
    flags.headless = is_headless(nonempty)
    flags.unread = UNREAD
    check_load_balancing(nonempty, flags.headless)
    values: FlagValues = {}
    table = table_of(kind)
    effective = options_with_effect(table)
    for name in effective:
        if name in nonempty:
            for setting, value in effect_of(name, nonempty[name], table).items():
                values[setting] = value
                if setting not in flags.values:
                    flags.names[setting] = name
    ineffective = sorted(name for name in options if name not in effective)
    if ineffective:
        flags.warnings.append(
            "accepted, changes nothing here: " + ", ".join(f"--{name}" for name in ineffective)
        )
    flags.warnings += _remarks(nonempty)
    flags.values = values | flags.values
    flags.fallbacks = _fallbacks(flags.values, environ)
    return flags


def _fallbacks(values: FlagValues, environ: Mapping[str, str]) -> dict[str, str]:
    fallbacks = dict(DEFAULTS)
    length = str(values.get("max-model-len") or _context_length(str(values.get("model") or "/")))
    block_size = int(str(values.get("block-size", "16")) or 16) or 1
    blocks_per_prompt = -(-int(length) // block_size)
    fallbacks["max-model-len"] = length
    fallbacks["port"] = PORT
    fallbacks["kv-cache-size"] = str(FULL_PROMPTS * blocks_per_prompt + 1)
    seconds = environ.get(KEEP_ALIVE)
    if seconds:
        fallbacks["keep-alive-timeout"] = f"{seconds}s"
    return fallbacks


def _context_length(model: str) -> int:
    """Returns the context length in the config.json of a local model, or `CONTEXT_LENGTH`."""
    length: object = None
    with suppress(OSError, ValueError, AttributeError):
        config = json.loads(Path(model, "config.json").read_text("utf-8"))
        key = "max_position_embeddings"
        length = config.get(key) or config.get("text_config", {}).get(key)
    if isinstance(length, int) and length > 0:
        return length
    return CONTEXT_LENGTH


def _remarks(options: FlagValues) -> Iterator[str]:
    ranks = str(options.get("data-parallel-size", 1))
    template = str(options.get("chat-template", ""))
    if int(ranks) > MAX_RANKS:
        yield f"--data-parallel-size: {MAX_RANKS} ranks of {ranks} are simulated"
    if is_missing_example(template):
        yield f"--chat-template: {template} does not exist, the tokenizer's template is used"
    if not str(options.get("otlp-traces-endpoint", HTTP[0])).startswith(HTTP):
        yield (
            "--otlp-traces-endpoint: spans are sent by HTTP only, "
            "to http://collector:4318/v1/traces"
        )
