"""Effects of changes of a measured fleet, for `plan --study FOLDER`. Start reading at `run`."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from config.declaration import COMMAND, ConfigError, UsageError
from config.flags import FlagTable, as_command, words_of
from workbench.load.output_files import (
    STDOUT,
    atomic_file,
    check_output_paths,
    write_results,
)
from workbench.load.progress import progress_bar
from workbench.load.study_folder import check_study
from workbench.plan.change_flags import PLAN_FLAGS, STUDY, WHAT_IF
from workbench.plan.list_prices import list_price_line
from workbench.plan.plan_flags import make_parser
from workbench.runs.job_reader import read_table
from workbench.study.decider import (
    OTHER_SEEDS,
    UNCHANGED,
    Decider,
    Row,
    compared_flags,
    read_comparison,
)
from workbench.study.decision_report import cheapest_lines, decision_text, make_decision
from workbench.study.folder import read_study
from workbench.study.what_if import join_words, read_change

MAX_CHANGES = 50
GROWTH = 1.5
"""Growth of the load that shows the risk of a smaller fleet."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser()
    table = parser.table_of(argv)
    if STUDY not in table:
        raise UsageError(f"the following arguments are required: --{STUDY}")
    flags = {name: text for name, text in table.items() if name in PLAN_FLAGS}
    options = parser.parse_table(flags)
    engine_flags = {name: text for name, text in table.items() if name not in PLAN_FLAGS}
    command = f"{COMMAND} plan {shlex.join(argv)}"
    return _decide(options, engine_flags, command)


def _decide(options: Namespace, engine_flags: FlagTable, command: str) -> int:
    """Compares changes; `engine_flags` describe the engine, without them those of the comparison.

    Raises:
        ConfigError: The study cannot be read, or a change does not go with its fleet.
    """
    json_path = None if options.json == STDOUT else options.json
    check_output_paths([options.html, json_path])
    study = read_study(options.study)
    if not any(any(window.arrivals) for window in study.workload.windows):
        raise ConfigError(f"--study {options.study}: no request arrived")
    check_study(options.study, is_accepted=options.accept_study)
    comparison = read_comparison(study)
    compared = compared_flags(study, comparison)
    if engine_flags and comparison is not None and engine_flags != compared:
        words = shlex.join(words_of(compared)) or "none"
        print(
            f"warning: study compare had other flags ({words}); the errors"
            " are those of its simulation",
            file=sys.stderr,
        )
    decider = Decider(
        study,
        read_table(engine_flags or compared),
        comparison=comparison,
        max_requests=options.max_requests,
    )
    if options.what_if:
        rows = _rows_of(decider, options.what_if)
        cheapest = None
    else:
        rows, cheapest = _find_cheapest(decider, options.max_rise)
    answer = None
    if not options.what_if:
        answer = cheapest_lines(rows, cheapest, decider.most_pods, max_rise=options.max_rise)
    decision = make_decision(study, comparison, decider, rows=rows, answer=answer, command=command)
    text = decision_text(decision)
    listed = list(dict.fromkeys(row.listed_device for row in rows if row.listed_device))
    if listed:
        text += f"\n{list_price_line(listed)}"
    with write_results(options.json, decision, text) as files:
        if options.html is not None:
            from workbench.study.decision_page import decision_page

            path = files.enter_context(atomic_file(options.html))
            path.write_text(decision_page(decision), "utf-8")
    return 0


def _rows_of(decider: Decider, texts: Sequence[str]) -> list[Row]:
    if len(texts) > MAX_CHANGES:
        raise UsageError(
            f"--{WHAT_IF} has {len(texts)} changes, but at most {MAX_CHANGES} are allowed"
        )
    pods = decider.most_pods
    changes = [
        UNCHANGED,
        *(read_change(text, decider.measured_rate, pods=pods) for text in join_words(texts)),
    ]
    for change in changes:  # a mistake in the last one is reported before the first is simulated
        decider.job_of(change)
    rows = []
    total = len(changes) + OTHER_SEEDS
    with progress_bar(sys.stderr, "simulated", total, "fleets") as progress:
        for change in changes:
            rows.append(decider.row(change))
            progress(decider.simulations)
    return rows


class _Rows:
    """The rows of changes, each simulated once."""

    def __init__(self, decider: Decider, progress: Callable[[int], object]) -> None:
        """`progress` is called with the number of simulations after each."""
        self._decider = decider
        self._progress = progress
        self._rows: dict[str, Row] = {}

    def row(self, text: str) -> Row:
        """Returns the row of a change, which is simulated if it was not."""
        if text not in self._rows:
            decider = self._decider
            change = read_change(text, decider.measured_rate, pods=decider.most_pods)
            self._rows[text] = decider.row(change)
            self._progress(decider.simulations)
        return self._rows[text]


def _find_cheapest(decider: Decider, max_rise: float) -> tuple[list[Row], Row | None]:
    """Returns the rows that show the risk, and that of the fewest pods that are not worse."""
    with progress_bar(sys.stderr, "simulated", 0, "fleets") as progress:
        rows = _Rows(decider, progress)
        shown = [decider.row(UNCHANGED)]
        worse_pods, enough_pods = _search_pods(rows, decider.most_pods, max_rise)
        cheapest = None
        if enough_pods < decider.most_pods:
            cheapest = rows.row(f"pods={enough_pods}")
            shown.append(cheapest)
        if worse_pods:
            shown.append(rows.row(f"pods={worse_pods}"))
        shown.append(rows.row(f"rate x{GROWTH:g}"))
        if cheapest is not None:
            shown.append(rows.row(f"pods={enough_pods} rate x{GROWTH:g}"))
    return shown, cheapest


def _search_pods(rows: _Rows, most_pods: int, max_rise: float) -> tuple[int, int]:
    """Returns the most pods that are worse than today's, or 0, and the fewest that are not."""
    worse_pods = 0
    enough_pods = most_pods
    while enough_pods - worse_pods > 1:
        pods = (worse_pods + enough_pods) // 2
        if rows.row(f"pods={pods}").is_worse(max_rise):
            worse_pods = pods
        else:
            enough_pods = pods
    return worse_pods, enough_pods
