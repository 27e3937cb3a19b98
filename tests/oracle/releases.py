"""Compares the recorded answers of two versions of vLLM: `compare_versions`."""

from collections.abc import Sequence

from tests.oracle.answers import current_answers, options_file_of
from tests.oracle.catalogue import cases_of
from tests.oracle.comparing import least_disagreements

MAX_NAMES = 3
"""Most cases that are named for one difference."""


def compare_versions(first: str, second: str, names: Sequence[str]) -> None:
    """Prints each difference between two versions, with the number of cases that show it."""
    _compare_options(first, second)
    cases_by_line: dict[str, list[str]] = {}
    total = 0
    changed = 0
    for name in names:
        cases = cases_of(name)
        first_answers = current_answers(first, name, cases)
        second_answers = current_answers(second, name, cases)
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
        more = ""
        if len(case_names) > MAX_NAMES:
            more = f" and {len(case_names) - MAX_NAMES} more"
        print(f"{line}\n    {'; '.join(case_names[:MAX_NAMES])}{more}")
    print(f"{changed} of {total} answers differ between {first} and {second}")


def _compare_options(first: str, second: str) -> None:
    """Prints the options of `vllm serve` that only one of the versions has."""
    options: dict[str, set[str]] = {}
    for version in (first, second):
        path = options_file_of(version)
        names = path.read_text("utf-8").split() if path.exists() else []
        options[version] = {_affirmed(name) for name in names}
    for version, other in ((first, second), (second, first)):
        only = sorted(options[version] - options[other])
        if only:
            print(f"options that only {version} has: {', '.join(only)}")


def _affirmed(option: str) -> str:
    """Returns an option without its negation, which a release may spell differently."""
    name = option.removeprefix("--").removeprefix("no-")
    for prefix in ("enable-", "disable-"):
        name = name.removeprefix(prefix)
    return f"--{name}"


def _by_number_of_cases(item: tuple[str, list[str]]) -> tuple[int, str]:
    line, cases = item
    return -len(cases), line
