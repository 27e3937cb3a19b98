"""vLLM's `serve` command line, read and turned into settings.

An option with the name of a setting sets that setting, some have special effects, and all other
options are ignored. Settings of Understudy are flags, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from config.command_line import (
    find_settings_kind,
    flags_of,
    help_flag,
    help_text,
    setting_flags,
)
from config.declaration import COMMAND, ConfigError, UsageError
from config.flag_words import Flag, read_words, short_forms
from config.settings import Settings, Table, table_of
from config.sources import Flags, FlagValues, Sources, ignore_warning
from config.vllm.checks import check_load_balancing, check_values, is_headless
from config.vllm.effects import HTTP, MAX_RANKS, effect_of, is_missing_example, local_ranks
from config.vllm.facts import GROUPS, OBSOLETE, OPTIONS
from config.vllm.offload_options import merge_offloading
from config.vllm.option import Option
from config.vllm.options import (
    PREFIX,
    effect,
    names_of,
    option_flags,
    options_of,
    options_with_effect,
)
from config.vllm.speculative_options import merge_short_options
from config.vllm.words import file_words, without_dots

ABOUT = f"""\
usage: {COMMAND} serve [MODEL] [--option value ...]

MODEL is the name of the simulated model.
Accepts the command line of `vllm serve`; docs/reference-options.md has the effect of each option.
Also accepts the settings of Understudy ({COMMAND} --help), unless vLLM has an option of that name.
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
    "prefer-resident-adapters": "false",
    "max-waiting-queue-length": "16384",
    "max-request-body-size-mb": "32",
    "drain-duration": "0s",
    "enable-scale-out": "false",
    "grpc": "false",
    "shutdown-mode": "vllm",
    "data-parallel-mode": "internal",
}
"""vLLM's defaults that differ from our settings'. Interval 0 publishes events at every step."""
PORT = "8000"
UNREAD = frozenset({"PORT"})
"""Variables of settings that vLLM does not read: its port is 8000 unless --port is given."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Variable of vLLM with whole seconds."""
CONFIG = "--config"
VERSION = "vllm-version"


def simulated_versions(
    argv: Sequence[str], environ: Mapping[str, str], table: Table
) -> tuple[str, ...]:
    """Returns the supported versions of vLLM up to the simulated one.

    Raises:
        ConfigError: An earlier version is named; the message has what the oldest supported version
            does with the command line.
    """
    row = table.by_name[VERSION]
    setting_forms: list[str] = []
    for flag in setting_flags(table):
        setting_forms += flag.forms
    forms = list(setting_forms)
    for name in OPTIONS:
        forms += names_of(name)
    flags = [Flag(name=VERSION, forms=short_forms(f"--{VERSION}", forms))]
    values: FlagValues = {}
    words: list[str] = []
    with suppress(UsageError):  # `read` reports the error
        file_flag = Flag(name=CONFIG, forms=(CONFIG,))
        values = read_words(argv, [*flags, file_flag], skips_unknown=True)[0]
        path = values.pop(CONFIG, None)
        if path is not None:
            words = list(file_words(str(path)))
            values = read_words(words, flags, skips_unknown=True)[0] | values
    source = Sources(Flags(values=values), environ, ignore_warning).value_of(row)
    simulated = str(row.default) if source is None else str(source[0])
    versions: tuple[str, ...] = get_args(row.type)
    if simulated in versions:
        return versions[: versions.index(simulated) + 1]
    from config.vllm.old_version import advice, is_earlier  # with the tables of all versions

    if source is not None and is_earlier(simulated, versions[0]):
        text = advice(versions[0], [*argv, *words], environ, settings=setting_forms)
        rule = f"must be {' or '.join(versions)}; {text}"
        raise ConfigError(f"setting {VERSION}: {simulated!r} ({source[1]}) {rule}")
    return versions  # another unknown version is refused with the other settings


def _check_forms(words: Iterable[str], options: Mapping[str, Option]) -> None:
    """Raises UsageError for an option of another version, which is not among `options`."""
    since_by_form = {}
    for name, option in OPTIONS.items():
        if name not in options:
            since_by_form.update(dict.fromkeys(names_of(name), option.since))
    for word in words:
        form = word.partition("=")[0].replace("_", "-")
        if form in since_by_form:
            since = since_by_form[form]
            raise UsageError(f"flag {form} requires vLLM {since} (--{VERSION} {since})")


def read(
    argv: Sequence[str], kind: type[Settings], options: Mapping[str, Option] = OPTIONS
) -> tuple[FlagValues, Flags]:
    """Returns values of vLLM's `options`, with the positional model as `model`, and of settings.

    The command line takes precedence over the file of `--config`.

    Raises:
        ConfigError: vLLM's parser would reject the command line.
    """
    flags = list(setting_flags(table_of(kind)))
    for name, option in ({**options, **OBSOLETE}).items():
        flags += option_flags(name, option)
    flags.append(Flag(name=PREFIX + "optimization-level", forms=("-O",)))
    words = list(without_dots(argv))
    _check_forms(words, options)
    values, models = read_words(words, flags, shortened=True)
    path = values.get(PREFIX + "config")
    if path is not None:
        words = list(without_dots(file_words(str(path))))
        _check_forms(words, options)
        values = read_words(words, flags, shortened=True)[0] | values
    option_values: FlagValues = {}
    for name in list(values):
        if name.startswith(PREFIX):
            option_values[name.removeprefix(PREFIX)] = values.pop(name)
    if len(models) > 1:
        raise UsageError(
            f"unexpected argument {models[1]!r}: settings must be written as --name value"
        )
    if models:
        option_values["model"] = models[0]
    return option_values, flags_of(values, kind)


def usage(table: Table) -> str:
    """Returns the help of `serve`, with all options of vLLM."""
    groups: dict[str, list[Flag]] = {}
    for title, options in GROUPS.items():
        flags = groups.setdefault(title.capitalize(), [])
        for name, option in options.items():
            help = effect(name, table) or "Accepted; changes nothing."
            if option.since:
                help += f" From vLLM {option.since} on."
            flags += option_flags(name, option, help)
    return ABOUT + help_text({**groups, "Others": [help_flag()]})


def settings_of(argv: Sequence[str], environ: Mapping[str, str], base: type[Settings]) -> Flags:
    """Converts a vLLM command line; settings on it take precedence over options.

    Raises:
        ConfigError: vLLM would reject the command line.
    """
    if sum(word.partition("=")[0] == CONFIG for word in argv) > 1:
        raise UsageError(f"flag {CONFIG}: only one file is allowed")
    kind = find_settings_kind(argv, environ, base)
    table = table_of(kind)
    available = options_of(simulated_versions(argv, environ, table))
    options, flags = read(argv, kind, available)
    nonempty = {name: value for name, value in options.items() if value != ""}
    check_values(nonempty, available)
    merge_short_options(nonempty)
    merge_offloading(nonempty)
    flags.headless = is_headless(nonempty)
    flags.unread = UNREAD
    check_load_balancing(nonempty, flags.headless)
    values: FlagValues = {}
    effective = options_with_effect(table)
    for name in effective:
        if name in nonempty:
            for setting, value in effect_of(name, nonempty[name], table).items():
                values[setting] = value
                if setting not in flags.values:
                    flags.names[setting] = name
    for setting, value in local_ranks(nonempty).items():
        values[setting] = value
        flags.names.setdefault(setting, setting)
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
    if values.get("kv-connector") == "p2p":
        fallbacks["kv-side-channel-host"] = environ.get("VLLM_P2P_SIDE_CHANNEL_HOST", "localhost")
        fallbacks["kv-side-channel-port"] = environ.get("VLLM_P2P_SIDE_CHANNEL_PORT", "5710")
    config_file = environ.get("LMCACHE_CONFIG_FILE")
    if config_file and "lmcache" in (values.get("kv-connector"), values.get("kv-store")):
        from config.vllm.lmcache_file import lmcache_fallbacks  # imports YAML

        fallbacks |= lmcache_fallbacks(config_file)
    seconds = environ.get(KEEP_ALIVE)
    if seconds:
        fallbacks["keep-alive-timeout"] = f"{seconds}s"
    return fallbacks


def _context_length(model: str) -> int:
    """Returns the context length in the config.json of a local model, or `CONTEXT_LENGTH`."""
    path = Path(model, "config.json")
    length: object = None
    with suppress(OSError, ValueError):
        if path.exists():
            from config.model_shape import read_model_config, text_fields  # only for local models

            length = text_fields(read_model_config(path)).get("max_position_embeddings")
    if isinstance(length, int) and length > 0:
        return length
    return CONTEXT_LENGTH


def _remarks(options: FlagValues) -> Iterator[str]:
    ranks = str(local_ranks(options).get("data-parallel-size-local", "0"))
    if ranks == "0":
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
