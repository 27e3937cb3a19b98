"""Breaks in the files of the deployment, and in dashboards, rules and scalers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from vllm_facts.version import NEWEST, parse_version
from workbench.check.command import InputFiles, upgrade_findings
from workbench.check.findings import Finding
from workbench.check.output import CHANGES
from workbench.check.upgrade import named_metrics
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences, Item

LOST_METRIC = "U602"
DEAD_VARIABLE = "O109"
ASKED_METRIC = "W816"
BREAKING = frozenset((ASKED_METRIC, DEAD_VARIABLE, LOST_METRIC))
"""Codes that are no errors of a command line, and stop what worked before the upgrade."""


def unread(files: InputFiles) -> list[str]:
    """Returns what was not read of the files."""
    notes = files.content.notes
    return [f"{finding.file}:{finding.line}: {finding.message}" for finding in notes]


def file_differences(files: InputFiles, old: str, new: str) -> Differences:
    """Returns what `check --upgrade-to` finds in files, as breaks and changes."""
    differences = Differences()
    if not files.texts:
        return differences
    for finding in upgrade_findings(files, old, new):
        is_break = finding.severity == "error" or finding.code in BREAKING
        if not is_break and finding.code not in CHANGES:
            continue
        differences.add(_item(finding), breaks=is_break)
    return differences


def later_differences(files: InputFiles, new: str) -> Differences:
    """Returns as changes what the newest version breaks in files that the new one accepts."""
    differences = Differences()
    if parse_version(new).name == NEWEST:
        return differences
    for item in file_differences(files, new, NEWEST).breaks:
        message = f"after vLLM {new}: {item.message}"
        differences.add(replace(item, message=message), breaks=False)
    return differences


def metric_differences(code: ClientCode, old: str, new: str) -> Differences:
    """Returns the metrics that the client's code names, and that are gone."""
    differences = Differences()
    texts: Mapping[str, str] = {file: text for file, text in code.texts.items() if "vllm:" in text}
    for finding in named_metrics(texts, old, new):
        differences.add(_item(finding), breaks=True)
    return differences


def _item(finding: Finding) -> Item:
    is_metric = finding.code.startswith(("W", LOST_METRIC))
    return Item(
        kind="metric" if is_metric else "file",
        file=finding.file,
        line=finding.line,
        message=finding.message,
        why=f"understudy check: {finding.code}",
        fix=finding.fix,
    )
