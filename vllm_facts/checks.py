"""Checks of options that vLLM makes after its parser: names, limits, and conflicts.

vLLM's parser accepts any text for these options. A wrong text stops the start of vLLM when it
builds its configuration, so it stops ours, too. `values` has the options by name, without those
whose value is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from config.declaration import ConfigError, shown
from config.flag_words import FlagError, WrongValueError

if TYPE_CHECKING:
    from config.sources import FlagValues
    from vllm_facts.option import Option

LOAD_BALANCING = {
    "data-parallel-multi-port-external-lb": "--data-parallel-multi-port-external-lb",
    "data-parallel-external-lb": "--data-parallel-external-lb (or --data-parallel-rank)",
    "data-parallel-hybrid-lb": "--data-parallel-hybrid-lb (or --data-parallel-start-rank)",
}
"""Modes of load balancing between data-parallel ranks. They exclude each other."""

SUPERVISOR_PORT = 9256
"""Default of vLLM's option, which has an effect with a port for each rank only."""
DEFAULT_PORT = 8000


def check_values(values: FlagValues, options: Mapping[str, Option]) -> None:
    """Raises ConfigError for the first value with which vLLM does not start."""
    for name, error in wrong_values(values, options):
        raise FlagError(
            f"--{name}: {shown(values[name])} {error}",
            form=f"--{name}",
            rule=error.rule,
            fix=error.fix,
            status=ConfigError.status,
        )


def wrong_values(
    values: FlagValues, options: Mapping[str, Option]
) -> Iterator[tuple[str, WrongValueError]]:
    """Yields each option that has a value with which vLLM does not start, and the error."""
    for name, value in values.items():
        option = options.get(name)
        if option is None or not isinstance(value, str):
            continue
        error: WrongValueError | None = None
        limit = option.broken_limit(value)
        if limit:
            error = WrongValueError(limit)
        if option.names and option.names_from not in values:
            error = option.name_error(value)
        if error is not None:
            yield name, error


def names_of_plugins(values: FlagValues, options: Mapping[str, Option]) -> Iterator[str]:
    """Yields a warning for each value that only a plugin of vLLM knows."""
    for name, value in values.items():
        option = options.get(name)
        if option is None or not isinstance(value, str) or value in option.names:
            continue
        if value in option.plugins:
            plugin = option.plugins[value]
            yield f"--{name}: {value} starts a vLLM that has the plugin {plugin} only"


def is_headless(values: FlagValues) -> bool:
    """Returns True for a node that runs engines only.

    Raises:
        ConfigError: Other options contradict `--headless`.
    """
    server_count = values.get("api-server-count")
    has_no_server = isinstance(server_count, str) and int(server_count) < 1
    if "headless" not in values:
        return has_no_server
    if server_count is not None and not has_no_server:
        raise _refused(
            "--api-server-count",
            f": {server_count} cannot be used with --headless, which does not start an API server",
        )
    return True


def check_load_balancing(values: FlagValues, headless: bool) -> None:
    """Raises ConfigError for data-parallel options that exclude each other, as vLLM does."""
    modes = {name for name in LOAD_BALANCING if values.get(name) == "true"}
    if "data-parallel-rank" in values:
        modes.add("data-parallel-external-lb")
    hybrid_by_flag = "data-parallel-hybrid-lb" in modes
    if "data-parallel-start-rank" in values and "data-parallel-multi-port-external-lb" not in modes:
        modes.add("data-parallel-hybrid-lb")
    if len(modes) > 1:
        raise FlagError(
            "cannot use more than one data parallel load balancing mode; choose one of "
            + ", ".join(LOAD_BALANCING.values()),
            form=next(f"--{name}" for name in LOAD_BALANCING if name in modes),
            subject="",
            status=ConfigError.status,
        )
    if "data-parallel-multi-port-external-lb" in modes:
        _check_ports_of_ranks(values)
    if headless and hybrid_by_flag:
        raise _refused("--data-parallel-hybrid-lb", ": cannot be used with --headless")
    local_size = values.get("data-parallel-size-local")
    if not isinstance(local_size, str):
        return
    if headless and int(local_size) <= 0:
        raise _refused("--data-parallel-size-local", ": must be greater than 0 with --headless")
    size = str(values.get("data-parallel-size", "1"))
    if int(local_size) > int(size):
        raise FlagError(
            f"data_parallel_size_local ({local_size}) must be <= data_parallel_size ({size})",
            form="--data-parallel-size-local",
            subject="",
            status=ConfigError.status,
        )


def _check_ports_of_ranks(values: FlagValues) -> None:
    """Raises ConfigError for options that vLLM's supervisor of several ports rejects."""
    flag = "--data-parallel-multi-port-external-lb"
    size = int(str(values.get("data-parallel-size", "1")))
    local_size = int(str(values.get("data-parallel-size-local", "0")))
    if values.get("grpc") == "true":
        raise _refused(flag, " does not support --grpc")
    if "uds" in values:
        raise _refused(flag, " does not support --uds")
    if values.get("api-server-count", "1") != "1":
        raise _refused(flag, " requires --api-server-count 1")
    if size < 2:
        raise _refused(flag, ": --data-parallel-size must be at least 2")
    if local_size < 2:
        raise _refused(flag, ": --data-parallel-size-local must be at least 2")
    if size % local_size:
        raise _refused(
            flag, ": --data-parallel-size must be divisible by --data-parallel-size-local"
        )
    if first_rank_with_port(values) + local_size > size:
        raise _refused(flag, ": there would be more ranks than --data-parallel-size allows")
    supervisor_port = int(str(values.get("data-parallel-supervisor-port", SUPERVISOR_PORT)))
    first_port = int(str(values.get("port", DEFAULT_PORT)))
    last_port = first_port + local_size - 1
    if first_port <= supervisor_port <= last_port:
        raise _refused(
            "--data-parallel-supervisor-port",
            f": {supervisor_port} is one of the ranks' ports, {first_port} to {last_port}",
        )


def _refused(form: str, text: str) -> FlagError:
    """Returns the error for a flag; `text` follows the flag in the message."""
    return FlagError(f"{form}{text}", form=form, status=ConfigError.status)


def first_rank_with_port(values: FlagValues) -> int:
    """Returns the first rank of a server with a port for each of its ranks."""
    start = values.get("data-parallel-start-rank")
    if isinstance(start, str):
        return int(start)
    node_rank = int(str(values.get("node-rank", "0")))
    return node_rank * int(str(values.get("data-parallel-size-local", "0")))
