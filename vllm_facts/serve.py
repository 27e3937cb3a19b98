"""vLLM's `serve` command line, read and turned into settings.

An option with the name of a setting sets that setting, some have special effects, and all other
options are ignored. Settings of Understudy are flags, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from config.command_line import (
    find_settings_kind,
    flags_of,
    setting_flags,
    without_keyword,
)
from config.declaration import ConfigError, UsageError, shown
from config.flag_words import Flag, FlagFlaw, read_words, short_forms
from config.settings import Settings, Table, table_of
from config.sources import Flags, FlagValues, Sources, ignore_warning
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.checks import check_load_balancing, check_values, is_headless, names_of_plugins
from vllm_facts.combinations import check_parsed, is_missing_template
from vllm_facts.effects import HTTP, MAX_RANKS, effect_of, local_ranks
from vllm_facts.facts import OPTIONS
from vllm_facts.help import ALLOW_REMOVED, SERVE_FLAGS, SKIP_CHECK
from vllm_facts.kv_options import plugin_connectors
from vllm_facts.model_choice import (
    CONTEXT_LENGTH,
    assumptions,
    choose_model,
    model_fallbacks,
    runner_of,
)
from vllm_facts.model_flaws import model_flaws
from vllm_facts.offload_options import merge_offloading
from vllm_facts.option import Option
from vllm_facts.options import (
    PREFIX,
    names_of,
    option_flags,
    options_of,
    options_with_effect,
)
from vllm_facts.speculative_options import merge_short_options
from vllm_facts.version import (
    DESCRIBED,
    FIRST,
    NEWEST,
    RULE,
    Version,
    playable_version,
    versions_up_to,
)
from vllm_facts.words import expand_file, model_first, read_command_line, with_full_forms

MODEL = "Qwen/Qwen3-0.6B"
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
REMOVED_FORMS = frozenset({"--device", "--task"})
"""Flags of settings that earlier versions of vLLM had, with another meaning or values.

A manifest with one of these does not start in a cluster, so that only variables set them here.
"""
UNREAD = frozenset({"PORT"})
"""Variables of settings that vLLM does not read: its port is 8000 unless --port is given."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Variable of vLLM with whole seconds."""
VERSION = "vllm-version"
OPTIMIZATION = "--optimization-level"
LEVEL = "--compilation-config.level"


def simulated_release(words: Sequence[str], environ: Mapping[str, str], table: Table) -> Version:
    """Returns the version of vLLM that the words or variables name.

    Raises:
        ConfigError: A version is named that is too old to be played; the message has the problems
            of the oldest playable version with the command line.
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
    with suppress(UsageError):  # `read` reports the error
        values = read_words(words, flags, skips_unknown=True)[0]
    source = Sources(Flags(values=values), environ, ignore_warning).value_of(row)
    simulated = str(row.default) if source is None else str(source[0])
    with suppress(ValueError):
        return playable_version(simulated)
    from vllm_facts.version_order import is_too_old

    if source is not None and is_too_old(simulated):
        from vllm_facts.old_version import advice  # with the tables of all versions

        text = advice(FIRST, words, environ, settings=setting_forms)
        raise ConfigError(f"setting {VERSION}: {simulated!r} ({source[1]}) {RULE}; {text}")
    return playable_version(NEWEST)  # refused with the other settings


def read(
    words: Sequence[str],
    kind: type[Settings],
    options: Mapping[str, Option] = OPTIONS,
    version: str = NEWEST,
) -> tuple[FlagValues, Flags]:
    """Returns values of vLLM's `options`, with the positional model as `model`, and of settings.

    As in vLLM's parser, the first wrong value is reported before an unknown option.

    Raises:
        ConfigError: vLLM's parser would reject the command line.
    """
    allows_removed = f"--{ALLOW_REMOVED}" in map(_form, words)
    flags = list(_flags(kind, options, version, allows_removed=allows_removed))
    forms = [form for flag in flags for form in flag.forms]
    if allows_removed:
        from vllm_facts.removed import removed_flags  # with the tables of all versions

        flags += removed_flags(version, forms)
    full_words = list(with_full_forms(words))
    if "optimization-level" not in options:  # what -O set before
        full_words = [
            word._replace(text=LEVEL) if word.text == OPTIMIZATION else word for word in full_words
        ]
    values, others, flaws, _ = read_command_line(full_words, flags)
    _check_flaws(flaws, forms, version, has_help="help" in values)
    models = [word.text for word in others]
    warnings: list[str] = []
    if values.pop(ALLOW_REMOVED, None):
        from vllm_facts.removed import removed_options_in

        warnings += removed_options_in(values, version, REMOVED_FORMS)
    skips_model_check = SKIP_CHECK in values
    values.pop(SKIP_CHECK, None)
    option_values: FlagValues = {}
    for name in list(values):
        if name.startswith(PREFIX):
            option_values[name.removeprefix(PREFIX)] = values.pop(name)
    unexpected = [word for word in models if word.startswith("-")] + models[1:]
    if unexpected and "help" not in values:
        raise UsageError(
            f"unexpected argument {unexpected[0]!r}: settings must be written as --name value"
        )
    if models:
        option_values["model"] = models[0]
    result = flags_of(values, kind)
    result.skips_model_check = skips_model_check
    result.warnings += warnings
    return option_values, result


def _check_flaws(
    flaws: Sequence[FlagFlaw], forms: Sequence[str], version: str, *, has_help: bool
) -> None:
    """Raises UsageError for the first wrong value, or else for the first unknown flag."""
    for flaw in flaws:
        if flaw.error.rule != "known flag":
            raise flaw.error
    if flaws and not has_help:
        from vllm_facts.removed import absent_option

        raise absent_option(flaws[0].error.form, forms, version=version, options=OPTIONS)


def _flags(
    kind: type[Settings], options: Mapping[str, Option], version: str, *, allows_removed: bool
) -> Iterator[Flag]:
    """Yields the flags of this command, settings and options of a version."""
    yield from SERVE_FLAGS
    absent_forms = set() if allows_removed else set(REMOVED_FORMS)
    for name, option in OPTIONS.items():
        if name not in options:  # an option of another version, which may be a setting, too
            absent_forms.update(names_of(name))
        elif option.kind == "switch" and not option.off:
            absent_forms.add(f"--no-{name}")
    for flag in setting_flags(table_of(kind)):
        if absent_forms.isdisjoint(flag.forms):
            yield flag
    described = version if version in DESCRIBED else ""  # objects are known of these versions
    for name, option in options.items():
        yield from option_flags(name, option, version=described)


def _form(word: str) -> str:
    """Returns the flag of a word, with dashes."""
    return word.partition("=")[0].replace("_", "-")


def settings_of(argv: Sequence[str], environ: Mapping[str, str], base: type[Settings]) -> Flags:
    """Converts a vLLM command line; settings on it take precedence over options.

    Raises:
        ConfigError: vLLM would reject the command line.
    """
    keyword, argv = without_keyword(argv)
    has_model = bool(environ.get("SIM_MODEL"))
    words, file_warnings = expand_file(model_first(argv), has_model=has_model)
    kind = find_settings_kind(words, environ, base)
    table = table_of(kind)
    release = simulated_release(words, environ, table)
    versions = versions_up_to(release)
    available = options_of(versions)
    options, flags = read(words, kind, available, versions[-1])
    flags.help_keyword = keyword
    if flags.help:
        return flags
    flags.warnings += file_warnings
    nonempty = {name: value for name, value in options.items() if value != ""}
    check_parsed(nonempty, environ, flags.skips_model_check)
    check_values(nonempty, available)
    merge_short_options(nonempty)
    merge_offloading(nonempty)
    flags.headless = is_headless(nonempty)
    flags.unread = UNREAD
    check_load_balancing(nonempty, flags.headless)
    values: FlagValues = {}
    effective = options_with_effect(table, available)
    for name in effective:
        if name in nonempty:
            for setting, value in effect_of(name, nonempty[name], table, available).items():
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
    flags.warnings += names_of_plugins(nonempty, available)
    flags.warnings += _remarks(nonempty)
    flags.values = values | flags.values
    _set_model(flags, nonempty, environ, release=release.release)
    if versions[-1] not in DESCRIBED:
        from vllm_facts.past_defaults import past_defaults  # with the tables of all versions

        flags.fallbacks |= past_defaults(versions[-1], table)
    return flags


def _set_model(
    flags: Flags, options: FlagValues, environ: Mapping[str, str], *, release: str
) -> None:
    """Completes flags with the full name of the model, and with defaults from its files.

    The registry of the release, such as 0.32.0, decides what the model is.

    Raises:
        ConfigError: vLLM would not find the model, or a short name stands for several.
    """
    word = str(flags.values.get("model") or environ.get("SIM_MODEL") or MODEL)
    overrides: object = None
    with suppress(UntrustedDataError):  # vLLM reads another text as the name of a function
        overrides = decode_untrusted(str(options.get("hf-overrides", "null")), decoder=python_json)
    choice = choose_model(
        word,
        overrides,
        skips_check=flags.skips_model_check,
        version=release,
        runner=runner_of(options),
    )
    if choice.name != word:
        flags.values["model"] = choice.name
    length = str(flags.values.get("max-model-len") or "")
    known_length = str(choice.facts.max_model_len or CONTEXT_LENGTH)
    flags.fallbacks = _fallbacks(flags.values, environ, length or known_length)
    flags.fallbacks |= model_fallbacks(choice)
    if options.get("runner") == "pooling" and "convert" not in options:
        flags.values.pop("task", None)  # the architecture is more exact
    if options.get("convert") == "classify" and len(choice.labels) == 1:
        flags.values["task"] = "score"
    warning = assumptions(
        choice, known_length, has_length=bool(length), has_task="task" in flags.values
    )
    flaws = list(model_flaws(options, choice, environ, release))
    refused = next((flaw for flaw in flaws if flaw.kind == "runner"), None)
    if refused is not None and not flags.skips_model_check:
        raise ConfigError(f"model {shown(choice.name)}: {refused.message}")
    remarks = [f"{flaw.message} ({flaw.fix})" for flaw in flaws]
    flags.model_warning = "; ".join(filter(None, [warning, *remarks]))


def _fallbacks(values: FlagValues, environ: Mapping[str, str], length: str) -> dict[str, str]:
    fallbacks = dict(DEFAULTS)
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
        from vllm_facts.lmcache_file import lmcache_fallbacks  # imports YAML

        fallbacks |= lmcache_fallbacks(config_file)
    seconds = environ.get(KEEP_ALIVE)
    if seconds:
        fallbacks["keep-alive-timeout"] = f"{seconds}s"
    return fallbacks


def _remarks(options: FlagValues) -> Iterator[str]:
    ranks = str(local_ranks(options).get("data-parallel-size-local", "0"))
    if ranks == "0":
        ranks = str(options.get("data-parallel-size", 1))
    template = str(options.get("chat-template", ""))
    if int(ranks) > MAX_RANKS:
        yield f"--data-parallel-size: {MAX_RANKS} ranks of {ranks} are simulated"
    if is_missing_template(template):
        yield f"--chat-template: {template} does not exist, the tokenizer's template is used"
    if "kv-transfer-config" in options:
        yield from plugin_connectors(str(options["kv-transfer-config"]))
    if not str(options.get("otlp-traces-endpoint", HTTP[0])).startswith(HTTP):
        yield (
            "--otlp-traces-endpoint: spans are sent by HTTP only, "
            "to http://collector:4318/v1/traces"
        )
