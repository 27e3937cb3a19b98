"""Compares the recorded answers of two versions of vLLM: `compare_versions`."""

from collections.abc import Sequence

from fidelity.oracle.answers import current_answers, help_file_of
from fidelity.oracle.catalogue import cases_of
from fidelity.oracle.comparing import least_disagreements
from fidelity.oracle.options import option_differences

MAX_NAMES = 3
"""Most cases that are named for one difference."""


def compare_versions(first: str, second: str, names: Sequence[str]) -> None:
    """Prints each difference between two versions, with the number of cases that show it."""
    first_help, second_help = _help_of(first), _help_of(second)
    if first_help and second_help:
        print(*option_differences(first_help, second_help, (first, second)), sep="\n")
    cases_by_line: dict[str, list[str]] = {}
    total = 0
    changed = 0
    for name in names:
        cases = cases_of(name, first)
        first_answers = current_answers(first, name, cases)
        second_answers = current_answers(second, name, cases_of(name, second))
        for version, answers in ((first, first_answers), (second, second_answers)):
            if not answers:
                print(f"{version}, {name}: is not recorded")
        for case in cases:
            if case.name not in first_answers or case.name not in second_answers:
                continue
            total += 1
            first_outcomes = [answer.outcome() for answer in first_answers[case.name]]
            outcomes = [answer.outcome() for answer in second_answers[case.name]]
            lists = [
                least_disagreements(case, first_outcomes, outcome, (first, second))
                for outcome in outcomes
            ]
            lines = min(lists, key=len)
            changed += bool(lines)
            for line in lines:
                cases_by_line.setdefault(line, []).append(case.name)
    for line, case_names in sorted(cases_by_line.items(), key=_by_number_of_cases):
        others = ""
        if len(case_names) > MAX_NAMES:
            others = f" and {len(case_names) - MAX_NAMES} more"
        print(f"{line}\n    {'; '.join(case_names[:MAX_NAMES])}{others}")
    print(f"{changed} of {total} answers differ between {first} and {second}")


def _help_of(version: str) -> str:
    path = help_file_of(version)
    if path.exists():
        return path.read_text("utf-8")
    print(f"{version}: options are not recorded")
    return ""


def _by_number_of_cases(item: tuple[str, list[str]]) -> tuple[int, str]:
    line, cases = item
    return -len(cases), line
