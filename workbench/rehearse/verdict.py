"""The answer of a rehearsal: ready, or a list of breaks. Start at `verdict_of`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from config.printable import one_line
from vllm_facts.version import PROVEN, level_of, parse_version
from vllm_facts.version_order import is_downgrade
from workbench.rehearse.answers import AnswerComparison
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences, Item, counted
from workbench.rehearse.requests import RequestComparison
from workbench.rehearse.runs import Run
from workbench.rehearse.traffic import pairing_of
from workbench.rehearse.undo import Upgrade

MAX_TESTS = 20
"""Most failing tests that are listed."""
MAX_LINE_LENGTH = 300
COMMAND = "the command"
FIELDS_OF_LIBRARIES = (
    "Which fields of answers the libraries of the client read: only the client's own code is "
    "searched for their names."
)
DOWNGRADE = "Most breaks of a downgrade: the changes of releases are known for upgrades alone."
NEVER_SEEN = "The behavior of GPUs, the quality of replies, and their speed."


class Verdict(NamedTuple):
    """The result of a rehearsal."""

    old: str
    """Version before the upgrade, such as 0.27.1."""
    new: str
    differences: Differences
    unseen: Sequence[str]
    """Sentences about differences that the rehearsal cannot see."""
    problem: str = ""
    """Why there is no answer: the client fails before the upgrade, too."""

    @property
    def is_ready(self) -> bool:
        """True if nothing breaks."""
        return not self.differences.breaks and not self.problem

    @property
    def answer(self) -> str:
        """The first sentence of the report."""
        count = len(self.differences.breaks)
        if count:
            return (
                f"Not ready: {count} things break." if count > 1 else "Not ready: 1 thing breaks."
            )
        if self.problem:
            return f"Not known: {self.problem}."
        return "Ready to upgrade."

    @property
    def status(self) -> int:
        """Exit status: 0 if ready, 1 if something breaks, 2 without an answer."""
        if self.differences.breaks:
            return 1
        return 2 if self.problem else 0


def verdict_of(
    old: Run, new: Run, code: ClientCode, *, of_files: Differences, notes: Sequence[str] = ()
) -> Verdict:
    """Compares two runs of a client.

    `of_files` has the differences of the files, and `notes` what the stand-ins do not have.
    """
    upgrade = Upgrade(old.version, new.version)
    pairs = pairing_of(old.exchanges, (*new.exchanges, *new.repeated)).pairs
    outcome = _outcome(old, new)
    differences = RequestComparison(upgrade, code, old, new).differences(pairs)
    versions = (old.version, new.version)
    answers = AnswerComparison(upgrade, code, versions, has_failed=False).differences(pairs)
    if outcome.breaks and not (differences.breaks or answers.breaks):
        answers = AnswerComparison(upgrade, code, versions, has_failed=True).differences(pairs)
    # The history knows the new names of metrics that the code names; the answers only lack them.
    places = {item.place for item in of_files.breaks}
    answers.breaks = [
        item for item in answers.breaks if item.kind != "metric" or item.place not in places
    ]
    differences.extend(answers)
    if differences.breaks:
        differences.consequences += outcome.breaks
    else:
        differences.extend(outcome)
    differences.extend(of_files)
    if len(old.exchanges) != len(new.exchanges):
        message = f"the client sends {new.version} {counted(len(new.exchanges), 'request')}, "
        message += f"and {old.version} {counted(len(old.exchanges), 'request')}"
        differences.add(Item(kind="command", file=COMMAND, message=message), breaks=False)
    problem = ""
    fails_before = bool(old.status) and not old.tests
    if fails_before:
        problem = f"the command fails with vLLM {old.version}, too: {_last_line(old)}"
    elif not old.exchanges:
        problem = "the client has sent no request to the server"
    return Verdict(
        old=old.version,
        new=new.version,
        differences=differences,
        unseen=unseen(old, new, code, notes),
        problem=problem,
    )


def unseen(old: Run, new: Run, code: ClientCode, notes: Sequence[str] = ()) -> list[str]:
    """Returns what a rehearsal cannot see, in sentences."""
    sentences = []
    if is_downgrade(old.version, new.version):
        sentences.append(DOWNGRADE)
    for run in (old, new):
        version = parse_version(run.version)
        if version.name not in PROVEN:
            sentences.append(f"vLLM {run.version} is played with the {level_of(version)}.")
        if run.lost_entries:
            sentences.append(f"Some requests to vLLM {run.version} are not in its journal.")
    if old.exchanges:
        sentences.append(FIELDS_OF_LIBRARIES)
    if code.is_cut:
        sentences.append("Some files of the client: they are too many or too large to search all.")
    sentences += [f"{note[:1].upper()}{note[1:]}." for note in notes]
    sentences.append(NEVER_SEEN)
    return sentences


def _outcome(old: Run, new: Run) -> Differences:
    """Returns the tests and the exit status that are worse with the new version."""
    differences = Differences()
    failing = [
        name
        for name, result in old.tests.items()
        if result == "passed" and new.tests.get(name) != "passed"
    ]
    for name in failing[:MAX_TESTS]:
        state = "fails" if name in new.tests else "is not run"
        message = f"the test passes with vLLM {old.version} and {state} with {new.version}"
        differences.add(Item(kind="test", file=name, message=message), breaks=True)
    if len(failing) > MAX_TESTS:
        message = f"{len(failing) - MAX_TESTS} more tests fail"
        differences.add(Item(kind="test", file=COMMAND, message=message), breaks=True)
    if not old.status and new.status and not failing:
        message = f"the exit status is {new.status} with vLLM {new.version}: {_last_line(new)}"
        differences.add(Item(kind="command", file=COMMAND, message=message), breaks=True)
    return differences


def _last_line(run: Run) -> str:
    """Returns the last line of the command's output."""
    lines = [line.strip() for line in run.output.splitlines() if line.strip()]
    if not lines:
        return f"exit status {run.status}"
    return one_line(lines[-1])[:MAX_LINE_LENGTH]
