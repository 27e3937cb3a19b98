"""Breaks in the files of the deployment, and in dashboards, rules and scalers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from vllm_facts.version import NEWEST, parse_version
from workbench.check.command import UpgradeFindings, upgrade_findings
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


def read_files(files: Sequence[str], old: str, new: str) -> UpgradeFindings:
    """Returns what `check --upgrade-to` finds in files, without what the old version has, too."""
    if not files:
        return UpgradeFindings([], [], [])
    return upgrade_findings(files, old, new)


def unread(read: UpgradeFindings) -> list[str]:
    """Returns what was not read of the files."""
    return [f"{finding.file}:{finding.line}: {finding.message}" for finding in read.unread]


def file_differences(findings: Sequence[Finding]) -> Differences:
    """Returns the findings as breaks and changes."""
    differences = Differences()
    for finding in findings:
        is_break = finding.severity == "error" or finding.code in BREAKING
        if not is_break and finding.code not in CHANGES:
            continue
        differences.add(_item(finding), breaks=is_break)
    return differences


def later_differences(files: Sequence[str], new: str) -> Differences:
    """Returns as changes what the newest version breaks in files that the new one accepts."""
    differences = Differences()
    if not files or parse_version(new).name == NEWEST:
        return differences
    for item in file_differences(upgrade_findings(files, new, NEWEST).findings).breaks:
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
