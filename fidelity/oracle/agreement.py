"""Compares the answers of Understudy with those of a recorded vLLM: `compare`."""

from collections import Counter
from collections.abc import Sequence

from fidelity.oracle.answers import current_answers
from fidelity.oracle.cases import Case
from fidelity.oracle.catalogue import cases_of
from fidelity.oracle.comparing import Outcome, least_disagreements
from fidelity.oracle.configurations import CONFIGURATIONS, STORE
from fidelity.oracle.sending import Client
from fidelity.oracle.servers import running_understudy

MAX_LINES = 3
"""Most differences of a case that are printed."""
MAX_BODY_LENGTH = 1_000
"""Most characters of a body in the report."""


def compare(version: str, names: Sequence[str]) -> int:
    """Sends the catalogue to Understudy and prints agreement by area.

    Returns the exit status: 1 if cases are not recorded. Disagreements are no failure.
    """
    status = 0
    totals: Counter[str] = Counter()
    agreements: Counter[str] = Counter()
    report = STORE / version / "disagreements.txt"
    with report.open("w", encoding="utf-8") as file:
        for name in names:
            cases = cases_of(name, version)
            answers = current_answers(version, name, cases)
            if not answers:
                print(f"{name}: is not recorded")
                status = 1
                continue
            with running_understudy(version, CONFIGURATIONS[name]) as server:
                client = Client(server.port)
                for case in cases:
                    live = Outcome(*client.send(case))
                    if case.name not in answers:
                        print(f"{case.name}: is not recorded with its present request")
                        status = 1
                        continue
                    recorded = [answer.outcome() for answer in answers[case.name]]
                    lines = least_disagreements(case, recorded, live, ("vLLM", "Understudy"))
                    totals[case.area] += 1
                    if not lines:
                        agreements[case.area] += 1
                        continue
                    _print_lines(f"{name}: {case.name}", lines)
                    file.write(_report_entry(case, lines, recorded[0], live))
    width = max(map(len, totals), default=0)
    for area, total in sorted(totals.items()):
        print(f"{area:{width}} {agreements[area]:5} of {total}")
    print(f"{agreements.total()} of {totals.total()} cases agree; {report} has the others in full")
    return status


def _print_lines(title: str, lines: Sequence[str]) -> None:
    print(f"{title}: {len(lines)} differences")
    print(*(f"    {line}" for line in lines[:MAX_LINES]), sep="\n", flush=True)


def _report_entry(case: Case, lines: Sequence[str], recorded: Outcome, live: Outcome) -> str:
    """Returns a case with its request and both answers."""
    parts = [f"## {case.name}", case.reason, f"{case.method} {case.path} {case.body!r}", *lines]
    for title, outcome in (("vLLM", recorded), ("Understudy", live)):
        body = outcome.answer.body.decode(errors="replace")[:MAX_BODY_LENGTH]
        parts.append(f"{title}: {outcome.answer.status} {outcome.answer.headers}\n{body}")
    return "\n".join(parts) + "\n\n"
