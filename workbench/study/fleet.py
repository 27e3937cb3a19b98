"""Describes the pods of a fleet by metrics and command lines. Start at `make_fleet`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config.declaration import UsageError
from vllm_facts.foreign_options import DRAFT_CONFIG, passing_value
from vllm_facts.version import DEFAULT, playable_version
from workbench.check.checker import Checker, Hardware
from workbench.check.checkout import is_typed
from workbench.check.command import read_lines_of
from workbench.check.model import is_foreign_folder
from workbench.check.sources import CommandLine
from workbench.runs.job_spec import field_names, flag_name
from workbench.study.folder import Fleet, FleetGroup, PodCount, text_of
from workbench.study.measurement import ROLES, Measurement, PodLabels

SHOWN_CONFIG = (
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "cpu_offload_gb",
    "kv_offloading_size",
)
"""Labels of vllm:cache_config_info that a study keeps."""
DECIDING_CONFIG = ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
"""Labels that are equal for all pods of a group."""
UNSIMULATED = frozenset(
    ("host", "port", "served-model-name", "api-key", "disable-log-requests", "uvicorn-log-level")
)
"""Options that do not change the speed."""
BLOCK_SPREAD = 0.02
"""Largest difference of the number of blocks within a group, as free memory differs."""
_VERSION = re.compile(r"v?\d+\.\d+")


def make_fleet(
    measurement: Measurement, model: str, *, lines: Sequence[CommandLine], device: str
) -> Fleet:
    """Returns the fleet of a measurement; `lines` are the commands that start its pods.

    With several groups, the lines belong to them in order; a single line is that of all groups.
    """
    groups = []
    by_group: dict[tuple[object, ...], list[PodLabels]] = {}
    for facts in measurement.pods.values():
        by_group.setdefault(_group_key(facts, by_group), []).append(facts)
    if lines and len(lines) not in (1, len(by_group)):
        raise UsageError(
            f"--serve has {len(lines)} command lines, but the fleet has {len(by_group)} groups of"
            " pods; use one line, or one for each group"
        )
    for number, members in enumerate(by_group.values()):
        line = None
        if lines:
            line = lines[min(number, len(lines) - 1)]
        groups.append(_make_group(members, line, device))
    assumed = []
    if not lines:
        assumed.append(
            "Options that metrics do not tell are vLLM's defaults; name them with --serve."
        )
    if not device:
        assumed.append("The device is not known; name it with --device, or calibrate.")
    if not all(group.version for group in groups):
        assumed.append("The version of vLLM is not known, because metrics do not have it.")
    for version in sorted({group.version for group in groups if group.version}):
        if not _is_playable(version):
            assumed.append(f"vLLM {version} cannot be simulated; vLLM {DEFAULT} is, in its place.")
    return Fleet(
        model=model, groups=groups, pods_over_time=_pods_over_time(measurement), assumed=assumed
    )


def _group_key(facts: PodLabels, known: Mapping[tuple[object, ...], object]) -> tuple[object, ...]:
    deciding = [facts.config.get(name, "") for name in DECIDING_CONFIG]
    blocks = deciding[1]
    key = (facts.group, facts.version, *deciding)
    if blocks.isdecimal():
        for other in known:
            same = (*other[:3], *other[4:]) == (*key[:3], *key[4:])
            count = str(other[3])
            if not same or not count.isdecimal():
                continue
            if abs(int(count) - int(blocks)) <= BLOCK_SPREAD * int(blocks):
                return other
    return key


def _make_group(members: Sequence[PodLabels], line: CommandLine | None, device: str) -> FleetGroup:
    first = members[0]
    config = {name: first.config[name] for name in SHOWN_CONFIG if name in first.config}
    flags: dict[str, Any] = {}
    ignored: list[str] = []
    if line is not None:
        flags, ignored = serve_flags(line)
    if device:
        flags = {"profile": "auto", "device": device, **flags}
    elif "model" in flags:
        flags.pop("model")
    if config.get("num_gpu_blocks", "").isdecimal():
        flags["num-gpu-blocks-override"] = int(config["num_gpu_blocks"])
    if config.get("block_size", "").isdecimal():
        flags["block-size"] = int(config["block_size"])
    if config.get("enable_prefix_caching") == "False":
        flags["enable-prefix-caching"] = False
    version = first.version
    if line is not None and not version and _VERSION.match(line.version):
        version = line.version.removeprefix("v")
    if _is_playable(version):
        flags.setdefault("vllm-version", version)
    return FleetGroup(
        pods=len(members),
        role=first.group if first.group in ROLES else "",
        version=version,
        measured=config,
        flags=flags,
        ignored=ignored,
    )


def _is_playable(version: str) -> bool:
    """Returns whether a version can be simulated."""
    try:
        playable_version(version)
    except ValueError:
        return False
    return True


def serve_flags(line: CommandLine) -> tuple[dict[str, Any], list[str]]:
    """Returns the flags of `simulate` for a command line, and the options that have none.

    The words of a file name no folder for the simulation to read, unless it is beside the file.
    """
    options = Checker("", "", Hardware()).options(line)
    names = {flag_name(field) for field in field_names()}
    flags: dict[str, Any] = {}
    ignored = []
    for name, value in options.values.items():
        is_read = name != "model" or not is_foreign_folder(str(value), options, line)
        if name in names and is_read:
            text = str(value)
            if name == DRAFT_CONFIG and not is_typed(line.place):
                text = str(passing_value(name, text) or "")
            flags[name] = {"true": True, "false": False}.get(text, text)
        elif name not in UNSIMULATED:
            ignored.append(f"--{name}")
    return flags, ignored


def read_serve(texts: Sequence[str]) -> list[CommandLine]:
    """Returns the command lines of `--serve`: texts, or files that `check` reads.

    Raises:
        UsageError: There is no command line of `vllm serve`.
    """
    lines: list[CommandLine] = []
    for text in texts:
        if Path(text).is_file():
            lines += read_lines_of([text], [])
            continue
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--serve {text[:80]!r}: {error}") from None
        if not words:
            raise UsageError("--serve must not be empty")
        lines += read_lines_of([], words)
    return lines


def _pods_over_time(measurement: Measurement) -> list[PodCount]:
    changes: list[PodCount] = []
    for edge, pods in zip(measurement.edges, measurement.levels.pods, strict=True):
        if not changes or pods != changes[-1].pods:
            changes.append(PodCount(start=text_of(edge), pods=pods))
    return changes
