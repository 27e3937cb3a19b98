"""The answer of a rehearsal: ready, or a list of breaks. Start at `verdict_of`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from app.extensions.recording.exchange import Exchange
from vllm_facts.version import is_proven, level_of, parse_version
from vllm_facts.version_order import is_downgrade
from workbench.check.findings import Place
from workbench.rehearse.answers import AnswerComparison
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.failure import Failure
from workbench.rehearse.items import Differences, Item, counted, place_of
from workbench.rehearse.outcome import COMMAND, Outcome, outcome_of
from workbench.rehearse.requests import RequestComparison, error_of
from workbench.rehearse.runs import Run
from workbench.rehearse.traffic import Traffic, pairing_of
from workbench.rehearse.undo import Upgrade

INVALID = frozenset((400, 422))
"""Statuses of requests that a version does not accept."""
MAX_REQUESTS = 20
"""Most rejected requests of a recording that are listed."""
FIELDS_OF_LIBRARIES = (
    "Which fields of answers the libraries of the client read: only the client's own code is "
    "searched for their names."
)
DOWNGRADE = "this is a downgrade, and the changes of releases are known for upgrades alone"
NEVER_SEEN = "The behavior of GPUs, the quality of replies, and their speed."


class Unknown(NamedTuple):
    """Tests and requests without a verdict, although others have one."""

    items: Sequence[Item] = ()
    """The tests and requests, each with the reason."""
    subject: str = ""
    """Their numbers, as in "3 of 6 tests"; empty if there are none."""


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
    unknown: Unknown = Unknown()

    @property
    def is_ready(self) -> bool:
        """True if nothing breaks."""
        return self.status == 0

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
        if self.unknown.subject:
            return f"Not known for {self.unknown.subject}."
        return "Ready to upgrade."

    @property
    def status(self) -> int:
        """Exit status: 0 if ready, 1 if something breaks, 2 without an answer."""
        if self.differences.breaks:
            return 1
        return 2 if self.problem or self.unknown.subject else 0


def verdict_of(
    old: Run,
    new: Run,
    code: ClientCode,
    *,
    of_files: Differences,
    notes: Sequence[str] = (),
    recorded: Sequence[Exchange] = (),
) -> Verdict:
    """Compares two runs of a client.

    `of_files` has the differences of the files, and `notes` what the stand-ins do not have.
    `recorded` are the exchanges of a real server whose requests both runs have sent.
    """
    upgrade = Upgrade(old.version, new.version)
    pairs = pairing_of(old.exchanges, (*new.exchanges, *new.repeated)).pairs
    outcome = outcome_of(old, new)
    differences = RequestComparison(upgrade, code, old, new).differences(pairs)
    failure = Failure(outcome.failure)
    answers = AnswerComparison(upgrade, code, (old.version, new.version), failure=failure)
    of_answers = answers.differences(pairs)
    # The history knows the new names of metrics that the code names; the answers only lack them.
    places = {item.place for item in of_files.breaks}
    of_answers.breaks = [
        item for item in of_answers.breaks if item.kind != "metric" or item.place not in places
    ]
    differences.extend(of_answers)
    last = [pair for pair in pairs if pair.new.exchange in new.exchanges[-1:]]
    ends = _explained(outcome.breaks, answers.differences(last), failure.last_place(code))
    if len(old.exchanges) != len(new.exchanges):
        message = f"the client sends {new.version} {counted(len(new.exchanges), 'request')}, "
        message += f"and {old.version} {counted(len(old.exchanges), 'request')}"
        differences.add(Item(kind="command", file=COMMAND, message=message), breaks=False)
    if outcome.breaks:
        # The command met these changes and fails, so none is listed as harmless.
        differences.causes += differences.changes
        differences.changes = []
    if ends and differences.breaks:
        differences.consequences += ends
    else:
        differences.breaks += ends
    differences.extend(of_files)
    return Verdict(
        old=old.version,
        new=new.version,
        differences=differences,
        unseen=unseen(old, new, code, notes),
        problem=outcome.problem
        or _problem(old, is_recording=bool(recorded))
        or downgrade_problem(old.version, new.version),
        unknown=_unknown(outcome, old, recorded),
    )


def _explained(
    items: Iterable[Item], of_last_answer: Differences, place: Place | None
) -> list[Item]:
    """Returns the failures; that of the command has its line, and a probable reason.

    A reason is probable if a single change of vLLM concerns the last answer before the failure.
    """
    changes = [*of_last_answer.breaks, *of_last_answer.changes]
    reasons = list(dict.fromkeys(item.reason for item in changes if item.reason))
    why = ""
    if len(reasons) == 1:
        why = f"probably this: {reasons[0]}"
        named = [Place(item.file, item.line) for item in changes if item.reason and item.line]
        place = place or next(iter(named), None)
    explained = []
    for item in items:
        if item.kind == "command":
            file, line = place_of(place, item.file)
            item = msgspec.structs.replace(item, file=file, line=line, why=why)
        explained.append(item)
    return explained


def _problem(old: Run, *, is_recording: bool) -> str:
    """Returns why the requests have no verdict; empty if they have one.

    A client without tests may have hidden an error that it does not expect. A recording has the
    errors of the real server.
    """
    answers = [Traffic(exchange) for exchange in old.exchanges]
    if answers and not any(answer.is_success for answer in answers):
        return f"vLLM {old.version} rejects each request: {error_of(answers[0])}"
    if is_recording or old.tests:
        return ""
    routes: defaultdict[str, list[Traffic]] = defaultdict(list)
    for answer in answers:
        routes[answer.route].append(answer)
    for route, of_route in routes.items():
        if all(answer.status in INVALID for answer in of_route):
            error = error_of(of_route[0])
            return f"vLLM {old.version} rejects each request to {route}: {error}"
    return ""


def downgrade_problem(old: str, new: str) -> str:
    """Returns why a downgrade without a break has no verdict; empty for an upgrade."""
    return DOWNGRADE if is_downgrade(old, new) else ""


def _unknown(outcome: Outcome, old: Run, recorded: Sequence[Exchange]) -> Unknown:
    """Returns the tests without a verdict, and the recorded requests that the stand-in rejects."""
    items = [*outcome.unknown]
    subjects = []
    if outcome.unknown_count:
        subjects.append(f"{outcome.unknown_count} of {counted(outcome.test_count, 'test')}")
    pairing = pairing_of(recorded, old.exchanges)
    rejected = [pair for pair in pairing.pairs if pair.old.is_success and not pair.new.is_success]
    if rejected:
        subjects.append(f"{len(rejected)} of {counted(len(recorded), 'recorded request')}")
    for pair in rejected[:MAX_REQUESTS]:
        message = f"the recorded server answers {pair.old.status}, and the stand-in of vLLM "
        message += f"{old.version} rejects the request: {error_of(pair.new)}"
        items.append(Item(kind="request", file=pair.old.route, message=message))
    return Unknown(items, " and ".join(subjects))


def unseen(old: Run, new: Run, code: ClientCode, notes: Sequence[str] = ()) -> list[str]:
    """Returns what a rehearsal cannot see, in sentences."""
    sentences = []
    for run in (old, new):
        version = parse_version(run.version)
        if not is_proven(version):
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
