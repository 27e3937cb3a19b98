"""Writes findings: as text for people, JSON, SARIF 2.1.0, or commands of GitHub's workflows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from config import VERSION
from config.printable import one_line, printable
from workbench.check.findings import Finding, Severity
from workbench.check.rules import RULES

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
"""Severity -> command of GitHub's workflows."""
FORMATS = ("text", "json", "sarif", "github")


CHANGES = frozenset(("U601", "U602", "U603"))
"""Codes of changes that the text only counts, unless they are asked for."""
ORDER: Sequence[Severity] = ("error", "warning", "note")


class TextOptions(NamedTuple):
    """The content of the text for people besides findings."""

    shows_changes: bool = False
    """Changes of behavior are listed, and not only counted."""
    is_quiet: bool = False
    """Nothing but findings."""
    remarks: Sequence[str] = ()
    """Lines behind the findings."""


def render(
    findings: Sequence[Finding],
    texts: Mapping[str, str],
    format: str,
    options: TextOptions | None = None,
) -> str:
    """Returns the findings in a format; `texts` has the contents of the files by name."""
    if format == "json":
        rows = msgspec.to_builtins(findings)
        return printable(json.dumps({"findings": rows}, indent=1, ensure_ascii=False))
    if format == "sarif":
        return printable(json.dumps(_sarif(findings), indent=1, ensure_ascii=False))
    if format == "github":
        return "\n".join(_workflow_command(finding) for finding in findings)
    return "\n".join(_text_lines(findings, texts, options or TextOptions()))


def _text_lines(
    findings: Iterable[Finding], texts: Mapping[str, str], options: TextOptions
) -> Iterator[str]:
    """Yields the errors of all files, then the warnings, and then the notes."""
    shown: dict[Severity, list[Finding]] = {severity: [] for severity in ORDER}
    changes: set[str] = set()
    for finding in findings:
        if finding.code in CHANGES and not options.shows_changes:
            changes.add(finding.message)
        else:
            shown[finding.severity].append(finding)
    lines_of = {name: text.splitlines() for name, text in texts.items()}
    last_file = ""
    for severity in ORDER:
        for finding in shown[severity]:
            if finding.file != last_file:
                if last_file:
                    yield ""
                yield one_line(finding.file)
                last_file = finding.file
            yield from _lines_of_finding(finding, lines_of.get(finding.file, []))
    if options.is_quiet:
        return
    if changes:
        noun = "change" if len(changes) == 1 else "changes"
        verb = "it" if len(changes) == 1 else "them"
        yield f"{len(changes)} {noun} of behavior, --notes shows {verb}"
    yield from options.remarks
    if not changes and not any(shown.values()):
        yield "no findings"
        return
    counts = ((severity, len(shown[severity])) for severity in ORDER)
    yield ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts)


def _lines_of_finding(finding: Finding, lines: Sequence[str]) -> Iterator[str]:
    """Yields a finding; `lines` are the lines of its file."""
    place = f"{finding.line}:{finding.column}"
    yield f"  {place}: {finding.severity} {finding.code}: {one_line(finding.message)}"
    if 0 < finding.line <= len(lines) and finding.severity != "note":
        yield from _marked(lines[finding.line - 1], finding.column)
    if finding.fix:
        yield f"      fix: {one_line(finding.fix)}"


def _marked(line: str, column: int, width: int = 88) -> Iterator[str]:
    """Yields a part of a line, and a mark below the column."""
    start = max(0, column - 1 - width // 2) if len(line) > width else 0
    before = one_line(line[start : column - 1].replace("\t", " "))
    after = one_line(line[column - 1 : start + width].replace("\t", " "))
    yield f"      {before}{after}"
    yield f"      {' ' * len(before)}^"


def _workflow_command(finding: Finding) -> str:
    text = f"{finding.code}: {finding.message}"
    if finding.fix:
        text += f" (fix: {finding.fix})"
    name = _escaped_command(finding.file).replace(":", "%3A").replace(",", "%2C")
    place = f"file={name},line={finding.line},col={finding.column}"
    return f"::{LEVELS[finding.severity]} {place}::{_escaped_command(text)}"


def _escaped_command(text: str) -> str:
    """Returns a text as a part of a command of GitHub's workflows."""
    return one_line(text).replace("%", "%25")


def _sarif(findings: Iterable[Finding]) -> dict[str, object]:
    results = []
    for finding in findings:
        text = finding.message + (f" Fix: {finding.fix}." if finding.fix else "")
        region = {"startLine": finding.line, "startColumn": finding.column}
        location = {"artifactLocation": {"uri": quote(finding.file)}, "region": region}
        results.append(
            {
                "ruleId": finding.code,
                "level": finding.severity,
                "message": {"text": text},
                "locations": [{"physicalLocation": location}],
            }
        )
    rules = [
        {
            "id": code,
            "shortDescription": {"text": rule.title},
            "defaultConfiguration": {"level": rule.severity},
        }
        for code, rule in RULES.items()
    ]
    driver = {"name": "understudy check", "version": VERSION, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
