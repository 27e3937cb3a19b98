"""Compares how the command ended with both versions: its tests and its exit status.

A test has a verdict only if it passed with the old version, and passed or failed with the new one.
Start at `outcome_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from config.printable import one_line
from workbench.rehearse.items import Item, counted
from workbench.rehearse.junit import CaseResult, State
from workbench.rehearse.runs import Run

MAX_BREAKS = 20
"""Most failing tests that are listed."""
MAX_UNKNOWN = 200
"""Most tests without a verdict that are listed."""
MAX_LINE_LENGTH = 300
COMMAND = "the command"
VERBS: Mapping[State, str] = {
    "failed": "fails",
    "passed": "passes",
    "skipped": "is skipped",
    "xfailed": "fails as expected",
}


class Outcome(Struct, kw_only=True):
    """The verdict of the command itself about the upgrade."""

    breaks: Sequence[Item] = ()
    """Tests and an exit status that are worse with the new version."""
    failure: str | None = None
    """Texts of these failures, with the names and places in them; None if nothing is worse."""
    unknown: Sequence[Item] = ()
    """Tests without a verdict."""
    unknown_count: int = 0
    test_count: int = 0
    """Number of tests that at least one of the runs names."""
    problem: str = ""
    """Why there is no verdict about the command; empty if there is one."""


def outcome_of(old: Run, new: Run) -> Outcome:
    """Compares the tests and the exit statuses of two runs."""
    names = list({**old.tests, **new.tests})
    failing = [name for name in names if _is_break(old.tests.get(name), new.tests.get(name))]
    breaks = [_failing_test(name, old, new) for name in failing[:MAX_BREAKS]]
    if len(failing) > MAX_BREAKS:
        message = f"{len(failing) - MAX_BREAKS} more tests fail"
        breaks.append(Item(kind="test", file=COMMAND, message=message))
    is_worse = bool(new.status) and not failing and _worked(old, new)
    if is_worse:
        message = f"the exit status is {new.status} with vLLM {new.version}: {last_line(new)}"
        breaks.append(Item(kind="command", file=COMMAND, message=message))
    unknown = [
        Item(kind="test", file=shortened(name), message=reason)
        for name, reason in _unknown_tests(names, old, new)
    ]
    failure = None
    if breaks:
        failure = "\n".join([*(new.tests[name].reason for name in failing), new.output])
    return Outcome(
        breaks=breaks,
        failure=failure,
        unknown=unknown[:MAX_UNKNOWN],
        unknown_count=len(unknown),
        test_count=len(names),
        problem=_problem(old, new, is_worse=is_worse or bool(failing)),
    )


def last_line(run: Run) -> str:
    """Returns the last line of the command's output."""
    lines = [line.strip() for line in run.output.splitlines() if line.strip()]
    if not lines:
        return f"exit status {run.status}"
    return shortened(lines[-1])


def shortened(text: str) -> str:
    """Returns the beginning of a text as one line."""
    return one_line(text[: 2 * MAX_LINE_LENGTH])[:MAX_LINE_LENGTH]


def _is_break(old: CaseResult | None, new: CaseResult | None) -> bool:
    if old is None or new is None:
        return False
    return old.state == "passed" and new.state in ("failed", "xfailed")


def _failing_test(name: str, old: Run, new: Run) -> Item:
    result = new.tests[name]
    verb = VERBS[result.state]
    message = f"the test passes with vLLM {old.version} and {verb} with {new.version}"
    return Item(kind="test", file=shortened(name), message=_with_reason(message, result))


def _worked(old: Run, new: Run) -> bool:
    """Returns whether the command did with the old version what it no longer does."""
    if not old.status:
        return True
    has_passed = any(result.state == "passed" for result in old.tests.values())
    return has_passed and not new.tests


def _unknown_tests(names: Iterable[str], old: Run, new: Run) -> Iterator[tuple[str, str]]:
    """Yields the tests without a verdict, and the reason of each."""
    for name in names:
        before = old.tests.get(name)
        after = new.tests.get(name)
        if before is None or after is None:
            version = old.version
            if before is None:
                version = new.version
            yield name, f"only the run with vLLM {version} has a test of this name"
        elif before.state != "passed":
            where = f"vLLM {old.version}"
            if after.state == before.state:
                where = "both versions"
            yield name, _with_reason(f"{VERBS[before.state]} with {where}", before)
        elif after.state == "skipped":
            yield name, _with_reason(f"is skipped with vLLM {new.version}", after)
        elif after.state == "passed" and before.count != after.count:
            counts = f"{counted(before.count, 'time')} with vLLM {old.version}, and "
            counts += f"{counted(after.count, 'time')} with {new.version}"
            yield name, f"the test is run {counts}"


def _with_reason(text: str, result: CaseResult) -> str:
    reason = shortened(result.error)
    if reason:
        return f"{text}: {reason}"
    return text


def _problem(old: Run, new: Run, *, is_worse: bool) -> str:
    """Returns why the command has no verdict at all; empty if it has one."""
    has_failed_tests = any(result.state == "failed" for result in old.tests.values())
    if old.status and not has_failed_tests:
        versions = old.version
        if new.status:
            versions += ", too"
        return f"the command fails with vLLM {versions}: {last_line(old)}"
    for run in (old, new):
        if run.problems and not (run is new and is_worse):
            return f"{shortened(run.problems[0])} with vLLM {run.version}"
    for run in (old, new):
        has_sent = bool(run.exchanges) and not run.is_silent
        if not has_sent and not (run is new and is_worse):
            return f"the client has sent no request to vLLM {run.version}"
    return ""
