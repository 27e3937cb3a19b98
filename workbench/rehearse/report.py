"""Writes the answer of a rehearsal: as text, JSON, JUnit, HTML, or commands of a workflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

import msgspec

from config import VERSION
from config.printable import one_line, printable
from workbench.check.findings import Finding, Severity
from workbench.check.output import render as render_findings
from workbench.rehearse.items import Item, counted
from workbench.rehearse.junit import written
from workbench.rehearse.verdict import Verdict

_CODE = re.compile(r"`([^`]{1,200})`")
FORMATS = ("text", "json", "github", "junit", "html")
FOLDER = Path(__file__).with_name("page")
SUITE = "understudy rehearse"
CAUSES = "The command fails; these changes that it met may be the cause:"
CODE = "rehearse"
"""Stands for the codes of `check` in commands of a workflow."""


def render(verdict: Verdict, format: str, *, shows_changes: bool = False) -> str:
    """Returns the report; `shows_changes` lists in a text what changes without breaking."""
    if format == "json":
        return _json(verdict)
    if format == "github":
        return _github(verdict)
    if format == "junit":
        return _junit(verdict)
    if format == "html":
        return _html(verdict)
    return "\n".join(_text(verdict, shows_changes=shows_changes))


def _text(verdict: Verdict, *, shows_changes: bool) -> Iterator[str]:
    yield one_line(verdict.answer)
    yield f"From vLLM {verdict.old} to {verdict.new}."
    for number, item in enumerate(verdict.differences.breaks, 1):
        yield ""
        yield f"{number}. {one_line(item.place)}"
        yield from (f"   {line}" for line in _lines_of(item))
    if verdict.differences.consequences:
        yield ""
        yield "So the command fails:"
    for item in verdict.differences.consequences:
        yield f"   {one_line(item.place)}: {one_line(item.message)}"
    yield from _section(f"Not known for {verdict.unknown.subject}:", verdict.unknown.items)
    yield from _section(CAUSES, verdict.differences.causes)
    changes = verdict.differences.changes
    if changes:
        hint = ":" if shows_changes else "; --notes lists them."
        yield ""
        yield f"{counted(len(changes), 'change')} without a break{hint}"
    for item in changes if shows_changes else ():
        yield f"   {one_line(item.place)}: {one_line(item.message)}"
    yield ""
    yield "Not seen by a rehearsal:"
    yield from (f"   {one_line(sentence)}" for sentence in verdict.unseen)


def _section(title: str, items: Sequence[Item]) -> Iterator[str]:
    """Yields a heading and a line for each item, with its reason; nothing without items."""
    if not items:
        return
    yield ""
    yield title
    for item in items:
        text = ". ".join(filter(None, (item.message, item.why)))
        yield f"   {one_line(item.place)}: {one_line(text)}"


def _json(verdict: Verdict) -> str:
    document = {
        "answer": verdict.answer,
        "ready": verdict.is_ready,
        "from": verdict.old,
        "to": verdict.new,
        "breaks": msgspec.to_builtins(verdict.differences.breaks),
        "consequences": msgspec.to_builtins(verdict.differences.consequences),
        "unknown": msgspec.to_builtins(verdict.unknown.items),
        "causes": msgspec.to_builtins(verdict.differences.causes),
        "changes": msgspec.to_builtins(verdict.differences.changes),
        "unseen": list(verdict.unseen),
    }
    return printable(json.dumps(document, indent=1, ensure_ascii=False))


def _github(verdict: Verdict) -> str:
    findings = [*_findings(verdict.differences.breaks, "error")]
    findings += _findings(verdict.unknown.items, "warning")
    findings += _findings(verdict.differences.causes, "warning")
    findings += _findings(verdict.differences.changes, "note")
    lines = [one_line(verdict.answer)]
    if findings:
        lines.append(render_findings(findings, {}, "github"))
    return "\n".join(lines)


def _findings(items: Iterable[Item], severity: Severity) -> Iterator[Finding]:
    """Yields items as findings; the place of one without a file is a part of its message."""
    for item in items:
        message = item.message if item.line else f"{item.file}: {item.message}"
        if item.why:
            message = f"{message}. {item.why}"
        yield Finding(
            code=CODE,
            severity=severity,
            file=item.file if item.line else "",
            line=item.line or 1,
            column=1,
            message=message,
            fix=item.fix,
        )


def _junit(verdict: Verdict) -> str:
    failures = [
        (f"{one_line(item.place)}: {one_line(item.message)}", "\n".join(_lines_of(item)))
        for item in verdict.differences.breaks
    ]
    failures += [
        (f"{one_line(item.place)}: not known", one_line(item.message))
        for item in verdict.unknown.items
    ]
    if verdict.problem:
        failures.append((verdict.answer, verdict.problem))
    passed = [] if failures else [f"upgrade from vLLM {verdict.old} to {verdict.new}"]
    return printable(written(SUITE, failures, passed))


def _lines_of(item: Item) -> Iterator[str]:
    yield one_line(item.message)
    if item.why:
        yield f"why: {one_line(item.why)}"
    if item.fix:
        yield f"fix: {one_line(item.fix)}"


def _html(verdict: Verdict) -> str:
    template = Template((FOLDER / "report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(verdict.answer),
        kind="ready" if verdict.is_ready else "broken",
        subtitle=escape(f"Upgrade of vLLM from {verdict.old} to {verdict.new}"),
        style=(FOLDER / "report.css").read_text("utf-8"),
        breaks="\n".join(map(_card, verdict.differences.breaks)),
        consequences=_list("So the command fails", verdict.differences.consequences),
        unknown=_list(f"Not known for {verdict.unknown.subject}", verdict.unknown.items),
        causes=_list(CAUSES.removesuffix(":"), verdict.differences.causes),
        count=str(len(verdict.differences.changes)),
        changes=_rows(verdict.differences.changes),
        unseen="\n".join(f"<li>{escape(sentence)}</li>" for sentence in verdict.unseen),
        version=escape(VERSION),
    )


def _card(item: Item) -> str:
    parts = [f"<h2>{escape(one_line(item.place))}</h2>", f"<p>{_marked_up(item.message)}</p>"]
    if item.why:
        parts.append(f'<p class="muted">{_marked_up(item.why)}</p>')
    if item.fix:
        parts.append(f'<p class="fix"><b>Way out:</b> {_marked_up(item.fix)}</p>')
    return f'<section class="panel">{"".join(parts)}</section>'


def _list(title: str, items: Sequence[Item]) -> str:
    """Returns a panel with a line for each item; empty without items."""
    if not items:
        return ""
    lines = []
    for item in items:
        why = f' <span class="muted">{_marked_up(item.why)}</span>' if item.why else ""
        lines.append(f"<li>{escape(one_line(item.place))}: {_marked_up(item.message)}{why}</li>")
    return f'<section class="panel"><h2>{escape(title)}</h2><ul>{"".join(lines)}</ul></section>'


def _rows(items: Sequence[Item]) -> str:
    rows = (
        f"<tr><td>{escape(one_line(item.place))}</td><td>{_marked_up(item.message)}</td></tr>"
        for item in items
    )
    return "".join(rows)


def _marked_up(text: str) -> str:
    """Returns a text as HTML, with code for the parts in backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(one_line(text)))
