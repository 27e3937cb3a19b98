"""Checks a command line with all rules. Start reading at `Checker.check`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from config.declaration import UsageError
from vllm_facts.history import read_history, version_number
from vllm_facts.model_choice import Choice
from vllm_facts.option_numbers import PARALLEL, parallel_devices
from vllm_facts.version import parse_version, playable_version
from workbench.check.clusters.container import ContainerLine
from workbench.check.combinations import (
    check_combinations,
    has_other_nodes,
    local_sizes,
    node_count,
    size_advice,
    spans_pods,
)
from workbench.check.findings import Finding
from workbench.check.model import check_model, chosen_model, unread_folder
from workbench.check.named_files import missing_files, named_modules, with_configuration
from workbench.check.options import OptionReader, ReadOptions, supported_versions
from workbench.check.rules import finding
from workbench.check.sources import MAX_WORDS, CommandLine

ANY = 99.0
"""Compute capability of a device with a known memory only."""
NAMES = ("C210", "O113")
"""Codes of unknown names, which an image that is made of vLLM can add."""
DATED = ("O102", "O103", "O107")
"""Codes of options that some versions have."""
OMNI = "--omni"
"""Option that starts another server, which has further options."""


class Hardware(Struct, frozen=True, kw_only=True):
    """The devices and the model, as far as the flags describe them."""

    device: str = ""
    memory_bytes: float | None = None
    """Memory of a device."""
    count: int | None = None
    """Devices of the server."""
    model_config: str = ""
    """Path of a config.json."""


class Checker:
    """Checks command lines for one version, and for one that is upgraded to."""

    def __init__(self, version: str, upgrade_to: str, hardware: Hardware) -> None:
        """Versions are empty where none is given.

        Raises:
            UsageError: The version of the upgrade is not known.
        """
        self._history = read_history()
        self._versions = supported_versions()
        self._version = version
        self._hardware = hardware
        self._readers: dict[str, OptionReader] = {}
        self._lines = 0
        self._lines_without_device = 0
        self._upgrade = ""
        self._upgrade_release = upgrade_to
        if upgrade_to:
            self._upgrade, note = self._known_version(upgrade_to)
            if note:
                raise UsageError(f"--upgrade-to {upgrade_to}: the version is not known")

    def check(self, line: CommandLine) -> list[Finding]:
        """Returns the findings of a command line.

        Raises:
            UsageError: It has too many words.
        """
        with_configuration(line)
        if len(line.words) > MAX_WORDS:
            place = f"{line.place.file}:{line.place.line}"
            raise UsageError(f"{place}: the command line has more than {MAX_WORDS} words")
        findings = list(line.findings)
        written = self._version or line.version
        version, note = self._known_version(written)
        if self._upgrade and not written:
            version = self._versions[0]
        if note:
            findings.append(finding("F502", line.place, note))
        if any(word.text == OMNI for word in line.words):
            message = "the options of vLLM-Omni are not known, so they are not checked"
            return [*findings, finding("F501", line.place, message)]
        options = self._reader(version).read(line)
        is_unknown_build = line.is_other_build and not self._version and bool(note or not written)
        if is_unknown_build:
            findings += self._of_any_version(options.findings, line)
        else:
            findings += options.findings
            findings += self._variables(line, version)
        combinations = check_combinations(options, line.environment, line.place)
        if isinstance(line, ContainerLine) and not line.container.is_of_vllm_project:
            combinations = (each for each in combinations if each.code not in NAMES)
        findings += combinations
        findings += missing_files(options, line)
        findings += named_modules(options, line)
        findings += unread_folder(options, line)
        choice = chosen_model(options, line)
        if choice is not None:
            findings += check_model(options, choice, line.environment, line.place)
        findings += self._devices(options, line)
        findings += self._memory(options, choice, line)
        if isinstance(line, ContainerLine):
            from workbench.check.clusters.rules import check_container

            findings += check_container(line.container, options, choice, self._history)
        if self._upgrade:
            old = _release(written, version)
            findings += self._after_upgrade(line, version, findings, options=options, old=old)
        return findings

    def _of_any_version(self, findings: Sequence[Finding], line: CommandLine) -> Iterator[Finding]:
        """Yields the findings that every version has, and a note about the others."""
        others = [each for each in findings if each.code not in DATED]
        yield from others
        count = len(findings) - len(others)
        if count:
            options = "1 option" if count == 1 else f"{count} options"
            message = (
                f"the image has an unknown version of vLLM, and {options} are not in all versions"
            )
            yield finding("F502", line.place, message, fix="name its version with --vllm-version")

    def options(self, line: CommandLine) -> ReadOptions:
        """Returns the options of a command line, without a check of their combinations."""
        with_configuration(line)
        version, _ = self._known_version(self._version or line.version)
        return self._reader(version).read(line)

    def remarks(self) -> list[str]:
        """Returns a line about the command lines whose memory was not checked, if there are any."""
        count = self._lines_without_device
        if not count:
            return []
        part = ""
        if count < self._lines:
            part = f" of {count} of {self._lines} command lines"
        return [f"memory{part} not checked: --device is missing, such as --device h100"]

    def watched_versions(self) -> tuple[str, str, str]:
        """Returns the version for dashboards and rules, that of the upgrade, and a note.

        The note is empty if the version of the flag is known.
        """
        version, note = self._known_version(self._version)
        if self._upgrade and not self._version:
            version = self._versions[0]
        return version, self._upgrade, note

    def _reader(self, version: str) -> OptionReader:
        if version not in self._readers:
            self._readers[version] = OptionReader(version, self._versions, self._history)
        return self._readers[version]

    def _known_version(self, written: str) -> tuple[str, str]:
        """Returns a version such as 0.32, and a note if it is not the one that is written."""
        newest = self._versions[-1]
        if not written:
            return newest, ""
        major, minor = version_number(written)
        version = f"{major}.{minor}"
        with suppress(ValueError):  # as for a third patch number, which the history has
            version = parse_version(written).name
        if version in self._history.releases:
            return version, ""
        return newest, f"the version {written} is not known; checked as vLLM {newest}"

    def _variables(self, line: CommandLine, version: str) -> Iterator[Finding]:
        for name, place in line.environment.items():
            lifetime = self._history.variables.get(name)
            if lifetime is None or lifetime.is_in(version) or not lifetime.is_gone_in(version):
                continue
            message = f"vLLM does not read {name} since {lifetime.gone_in}"
            fix = f"remove {name}"
            if lifetime.replacement not in ("", "unknown"):
                fix = f"use {lifetime.replacement}"
            yield finding("O109", place, message, fix=fix)

    def _hardware_of(self, options: ReadOptions, line: CommandLine) -> Hardware:
        """Returns the devices of a file of a cluster where no flag describes them."""
        hardware = self._hardware
        if not isinstance(line, ContainerLine):
            return hardware
        container = line.container
        if not hardware.device and hardware.memory_bytes is None and container.device:
            hardware = replace(hardware, device=container.device)
        if hardware.count is None and not spans_pods(options):
            hardware = replace(hardware, count=container.device_count)
        return hardware

    def _devices(self, options: ReadOptions, line: CommandLine) -> Iterator[Finding]:
        hardware = self._hardware_of(options, line)
        count = hardware.count
        if count is None or not options.unknown_options.isdisjoint(("*", *PARALLEL)):
            return
        if has_other_nodes(options):
            return
        sizes = local_sizes(options)
        nodes = node_count(options)
        needed = math.prod(sizes.values()) // nodes
        if needed > count:
            name = next(name for name in PARALLEL if sizes[name] > 1)
            there = "there is 1" if count == 1 else f"there are {count}"
            message = f"the parallel sizes need {needed} devices, and {there}"
            setting = f"a machine with {needed} devices"
            if isinstance(line, ContainerLine) and self._hardware.count is None:
                setting = line.container.device_setting(needed)
            advice = size_advice(sizes, count * nodes)
            fix = f"set {setting}" if ":" in setting else f"use {setting}"
            if advice:
                fix += f", or {advice}"
            yield finding("C209", options.place_of(name, line.place), message, fix=fix)

    def _memory(
        self, options: ReadOptions, choice: Choice | None, line: CommandLine
    ) -> Iterator[Finding]:
        """Yields whether the parallel sizes divide the model, and whether it fits on a device."""
        hardware = self._hardware_of(options, line)
        self._lines += 1
        if not hardware.device and hardware.memory_bytes is None:
            self._lines_without_device += 1
            if parallel_devices(options.values) > 1:
                from workbench.check.memory import check_parallelism

                config = hardware.model_config
                yield from check_parallelism(options, choice, config, place=line.place)
            return
        from vllm_facts.accelerator import DeviceMemory
        from vllm_facts.devices import find_device
        from workbench.check.memory import check_memory

        if hardware.device:
            device = find_device(hardware.device)
            if hardware.memory_bytes is not None:
                device = replace(device, memory=hardware.memory_bytes)
        else:
            assert hardware.memory_bytes is not None
            size = hardware.memory_bytes
            device = DeviceMemory(
                name=f"a device of {size / (1 << 30):.0f} GiB", memory=size, capability=ANY
            )
        yield from check_memory(
            options,
            choice,
            device=device,
            model_config=hardware.model_config,
            place=line.place,
        )

    def _after_upgrade(
        self,
        line: CommandLine,
        version: str,
        findings: list[Finding],
        *,
        options: ReadOptions,
        old: str,
    ) -> Iterator[Finding]:
        """Yields what the version of the upgrade rejects or changes; `old` is the release."""
        from workbench.check.upgrade import changes
        from workbench.check.upgrade_steps import unknown_steps

        known = {(each.code, each.line, each.column) for each in findings}
        for each in self._reader(self._upgrade).read(line).findings:
            if (each.code, each.line, each.column) not in known:
                yield each
        for each in self._variables(line, self._upgrade):
            if (each.code, each.line, each.column) not in known:
                yield each
        new = _release(self._upgrade_release, self._upgrade)
        yield from changes(old, new, self._history, line.place, options)
        yield from unknown_steps(old, new, self._history, line.place)


def _release(written: str, version: str) -> str:
    """Returns the release that is written, such as 0.20.1; the version for another text."""
    with suppress(ValueError):
        written_version = playable_version(written)
        if written_version.name == version:
            return written_version.release
    return version
