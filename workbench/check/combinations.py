"""Options that vLLM refuses together, or that have no effect together.

`serve` has the same rules for errors (`vllm_facts.checks`, `vllm_facts.combinations`
and `vllm_facts.speculative_options`). Start reading at `check_combinations`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress

from config.declaration import ConfigError, shown
from config.flag_words import FlagError, WrongValueError
from config.sources import FlagValues
from vllm_facts.checks import check_load_balancing, is_headless, wrong_values
from vllm_facts.combinations import contradictions
from vllm_facts.models import find_model
from vllm_facts.option_numbers import DATA_PARALLEL, PARALLEL, number_of, positive_number
from vllm_facts.speculative_options import merge_short_options, short_option_conflicts
from workbench.check.findings import Finding, Place
from workbench.check.options import ReadOptions, supported_versions
from workbench.check.rules import finding

CODES = {
    "enable-auto-tool-choice": "C201",
    "max-num-seqs": "C205",
    "spec-method": "C206",
    "spec-model": "C206",
    "spec-tokens": "C206",
    "speculative-config": "C206",
}
"""Option in an error -> code; other contradictions have C208."""
FIXES = {
    "C201": "add --tool-call-parser with the parser of the model",
    "C205": "raise --max-num-batched-tokens, or lower --max-num-seqs",
}
SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
MULTI_NODE = (
    "nnodes",
    "data-parallel-address",
    "data-parallel-hybrid-lb",
    "data-parallel-start-rank",
)
"""Options of a server whose processes are in several pods."""
BACKENDS = ("distributed-executor-backend", "data-parallel-backend")
"""Options with the value `ray`, whose processes are on any node of a Ray cluster."""
LORA_OPTIONS = ("lora-modules", "max-loras", "max-lora-rank", "max-cpu-loras", "lora-dtype")


def check_combinations(
    options: ReadOptions, environment: Mapping[str, Place], place: Place
) -> Iterator[Finding]:
    """Yields a finding for each contradiction; `place` is that of the command line."""
    yield from _wrong_names(options, place)
    yield from _contradictions(options, environment, place)
    yield from _data_parallel(options, place)
    yield from _speculation(options, place)
    yield from _connectors(options, place)
    yield from _without_effect(options, place)
    yield from _short_batch(options, place)


def _wrong_names(options: ReadOptions, place: Place) -> Iterator[Finding]:
    """Yields the values that vLLM's parser takes, and its configuration does not."""
    values = {name: value for name, value in options.values.items() if value != ""}
    for name, error in wrong_values(values, options.table):
        option = options.table[name]
        if option.names_from in options.unknown_options:
            continue  # a plugin may add the name
        code = "O113" if option.names else "O104"
        option_place = options.place_of(name, place)
        del options.values[name]
        message = f"--{name}: {shown(values[name])} {error.brief}"
        yield finding(code, option_place, message, fix=_use(error))


def _use(error: WrongValueError) -> str:
    return f"use {error.fix}" if error.fix else ""


def spans_pods(options: ReadOptions) -> bool:
    """Returns whether the processes of one server can be in several pods."""
    if options.values.get("distributed-executor-backend") == "ray":
        return True
    if options.values.get("data-parallel-backend") == "ray":
        return True
    if "data-parallel-backend" in options.unknown_options:
        return True
    return any(options.has(name) for name in MULTI_NODE)


def _contradictions(
    options: ReadOptions, environment: Mapping[str, Place], place: Place
) -> Iterator[Finding]:
    values = {name: value for name, value in options.values.items() if value != ""}
    for unknown in options.unknown_options:  # it is there, whatever its value is
        values.setdefault(unknown, "true")
    variables = dict.fromkeys(environment, "1")
    for error in _errors_of(values, variables):
        name = error.form.removeprefix("--")
        code = CODES.get(name, "C208")
        fix = FIXES.get(code, "")
        if code == "C201":
            fix = _parser_advice(options) or fix
        if code == "C205":
            fix = _batch_advice(options) or fix
        if not options.unknown_options.isdisjoint((name, "*")):
            continue
        yield finding(code, options.place_of(name, place), error.detail, fix=fix)


def _errors_of(values: FlagValues, variables: Mapping[str, str]) -> Iterator[FlagError]:
    try:
        yield from contradictions(values, variables)
        yield from short_option_conflicts(values)
    except ValueError:  # a value is not known, or not valid JSON
        return


def _parser_advice(options: ReadOptions) -> str:
    """Returns the parser of the model, if it is known."""
    with suppress(ConfigError):
        card = find_model(str(options.values.get("model", "")))
        if card is not None and card[1].tool_parser:
            return f"add --tool-call-parser {card[1].tool_parser}"
    return ""


def _batch_advice(options: ReadOptions) -> str:
    sequences = number_of(options.values, "max-num-seqs")
    tokens = number_of(options.values, "max-num-batched-tokens")
    if not sequences or not tokens:
        return ""
    return f"use --max-num-batched-tokens {sequences}, or --max-num-seqs {tokens}"


def _data_parallel(options: ReadOptions, place: Place) -> Iterator[Finding]:
    values = {name: value for name, value in options.values.items() if value != ""}
    try:
        check_load_balancing(values, is_headless(values))
    except FlagError as error:
        option_place = options.place_of(error.form.removeprefix("--"), place)
        yield finding("C207", option_place, error.detail)
    except ValueError:
        return


def _speculation(options: ReadOptions, place: Place) -> Iterator[Finding]:
    """Yields the flaw of a drafter in a version that is known in full."""
    values = dict(options.values)
    versions = supported_versions()
    if options.version not in versions or not any(name in values for name in SPECULATION):
        return
    from vllm_facts.speculative import read_draft_config  # few command lines have drafters

    try:
        merge_short_options(values)
        text = str(values.get("speculative-config") or "{}")
        read_draft_config(text, versions[: versions.index(options.version) + 1])
    except ConfigError:
        return  # `_contradictions` has reported it
    except ValueError as error:
        name = next(name for name in SPECULATION if name in options.values)
        message = f"--{name}: {WrongValueError.of(error).brief}"
        yield finding("C206", options.place_of(name, place), message)


def _connectors(options: ReadOptions, place: Place) -> Iterator[Finding]:
    """Yields the connectors that vLLM does not have, or that lack a role."""
    name = "kv-transfer-config"
    text = options.values.get(name)
    if not isinstance(text, str) or not text:
        return
    from vllm_facts.kv_options import kv_transfer_settings  # few command lines have connectors

    try:
        kv_transfer_settings(text)
    except ValueError as error:
        wrong = WrongValueError.of(error)
        message = f"--{name}: {wrong.brief}"
        yield finding("C210", options.place_of(name, place), message, fix=_use(wrong))


def _without_effect(options: ReadOptions, place: Place) -> Iterator[Finding]:
    if options.values.get("enable-lora") == "true" or "*" in options.unknown_options:
        return
    for name in LORA_OPTIONS:
        if name in options.values:
            message = f"--{name} has no effect without --enable-lora"
            option_place = options.place_of(name, place)
            yield finding("C203", option_place, message, fix="add --enable-lora")
            return


def _short_batch(options: ReadOptions, place: Place) -> Iterator[Finding]:
    """Yields vLLM's rule for prompts that cannot be computed in parts."""
    values = options.values
    if values.get("enable-chunked-prefill") != "false":
        return
    tokens = number_of(values, "max-num-batched-tokens")
    length = number_of(values, "max-model-len")
    if tokens and length and tokens < length:
        name = "max-num-batched-tokens"
        message = (
            f"--{name} ({tokens}) is less than --max-model-len ({length}), and chunked prefill is"
            " off"
        )
        fix = f"use --{name} {length}, or remove --no-enable-chunked-prefill"
        yield finding("C204", options.place_of(name, place), message, fix=fix)


def local_sizes(options: ReadOptions) -> dict[str, int]:
    """Returns the parallel sizes of the processes that a server starts itself.

    A server with a given rank is one of several behind a balancer. If one server is on several
    nodes, the sizes include all its nodes.
    """
    sizes = {name: positive_number(options.values, name, 1) for name in PARALLEL}
    if node_count(options) > 1:
        return sizes
    if options.has("data-parallel-rank"):
        sizes[DATA_PARALLEL] = 1
    else:
        local = number_of(options.values, "data-parallel-size-local")
        sizes[DATA_PARALLEL] = local if local > 0 else sizes[DATA_PARALLEL]
    return sizes


def node_count(options: ReadOptions) -> int:
    """Returns the number of nodes of a server, whose devices are divided among them."""
    return positive_number(options.values, "nnodes", 1)


def has_other_nodes(options: ReadOptions) -> bool:
    """Returns whether a number of devices elsewhere, which is not known, counts, too."""
    if "nnodes" in options.unknown_options:
        return True
    return any(options.values.get(name) == "ray" for name in BACKENDS)


def size_advice(sizes: Mapping[str, int], count: int) -> str:
    """Returns the option that makes a server use `count` devices; empty if one is not enough."""
    product = math.prod(sizes.values())
    names = [name for name in sizes if sizes[name] > 1] or list(sizes)
    for name in names:
        size = count * sizes[name] // product
        if size and size * product // sizes[name] == count:
            return f"--{name} {size}"
    return ""
