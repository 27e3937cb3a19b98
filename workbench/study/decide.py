"""`understudy plan --study FOLDER`: what changes of a measured fleet would bring."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from config.declaration import COMMAND, ConfigError, UsageError
from config.flags import FlagParser, as_command, number_of, whole_number
from workbench.load.output_files import (
    STDOUT,
    atomic_file,
    check_output_paths,
    write_results,
)
from workbench.load.progress import progress_bar
from workbench.load.study_folder import ACCEPT_FLAG, check_study
from workbench.plan import command as lab_plan
from workbench.plan.list_prices import list_price_line
from workbench.study.compare import MAX_REQUESTS
from workbench.study.decision import (
    OTHER_SEEDS,
    UNCHANGED,
    Decider,
    Row,
    compared_words,
    read_comparison,
)
from workbench.study.decision_report import cheapest_lines, decision_text, make_decision
from workbench.study.folder import read_study
from workbench.study.what_if import join_words, read_change

ABOUT = """\
Compare changes of a measured fleet with today (docs/decide.md). A change is 'rate x2', rate+50%,
rate=10, pods=3, pods-1, prefill-share=0.25, prefix-caching=off, or a flag of simulate that
describes the fleet, such as device=h200, kv-cache-dtype=fp8, model=NAME or policy=prefix-aware.
Several in quotes apply together. Without --what-if, the command finds the fewest pods with which no
mean latency rises by more than --max-rise, and shows their risk. With --slo or --goodput, it is the
usual plan, whose load is the study.
"""
WHAT_IF = "--what-if"
SLO_FLAGS = ("--slo", "--goodput", "--over-time")
MAX_CHANGES = 50
DEFAULT_RISE = 0.1
GROWTH = 1.5
"""Growth of the load that shows the risk of a smaller fleet."""


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = FlagParser(
        prog=f"{COMMAND} plan",
        usage=f"{COMMAND} plan --study FOLDER [--what-if CHANGE ...] [flags] [flags of simulate]",
        description=ABOUT,
        allow_abbrev=False,
    )
    flags.examples = (
        f"{COMMAND} plan --study prod",
        f"{COMMAND} plan --study prod --what-if pods-1 'rate x2' device=h200",
    )
    add = flags.add_argument
    add("--study", type=Path, required=True, metavar="FOLDER", help="study of the fleet")
    add(
        WHAT_IF,
        nargs="+",
        action="extend",
        metavar="CHANGE",
        help="changes to simulate, each beside today's fleet",
    )
    add(
        "--max-rise",
        type=number_of(0, 10, zero=True),
        default=DEFAULT_RISE,
        metavar="SHARE",
        help="largest rise of the mean TTFT, TPOT and E2E with the cheapest fleet; a rise within"
        f" the error does not count [{DEFAULT_RISE:g}]",
    )
    add(
        ACCEPT_FLAG,
        action="store_true",
        help="go on even if the errors of study compare are above its limit, or are not known",
    )
    add(
        "--max-requests",
        type=whole_number(100),
        default=MAX_REQUESTS,
        metavar="N",
        help="most requests to simulate; of larger fleets, a part of the pods gets its part of the"
        f" load [{MAX_REQUESTS:,}]",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="write a report that needs no network",
    )
    add("--json", type=Path, metavar="FILE|-", help="write the rows as JSON, - for stdout")
    return flags


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    forms = {word.partition("=")[0] for word in argv}
    if WHAT_IF not in forms and not forms.isdisjoint(SLO_FLAGS):
        return lab_plan.run(argv)
    if "--help" in forms:
        print(make_parser().format_help(), end="")
        return 0
    options, engine_words = make_parser().parse_known_args(argv)
    return _decide(options, engine_words, f"{COMMAND} plan {shlex.join(argv)}")


def _decide(options: Namespace, engine_words: Sequence[str], command: str) -> int:
    json_path = None if options.json == STDOUT else options.json
    check_output_paths([options.html, json_path])
    for flag in SLO_FLAGS:
        if any(word.partition("=")[0] == flag for word in engine_words):
            raise UsageError(f"{flag} cannot be combined with {WHAT_IF}")
    study = read_study(options.study)
    if not any(any(window.arrivals) for window in study.workload.windows):
        raise ConfigError(f"--study {options.study}: no request arrived")
    check_study(options.study, is_accepted=options.accept_study)
    comparison = read_comparison(study)
    compared = compared_words(study, comparison)
    if engine_words and comparison is not None and list(engine_words) != compared:
        print(
            f"warning: study compare had other flags ({shlex.join(compared) or 'none'}); the errors"
            " are those of its simulation",
            file=sys.stderr,
        )
    decider = Decider(
        study,
        engine_words or compared,
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
            f"{WHAT_IF} has {len(texts)} changes, but at most {MAX_CHANGES} are allowed"
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


def _find_cheapest(decider: Decider, max_rise: float) -> tuple[list[Row], Row | None]:
    """Returns the rows that show the risk, and that of the fewest pods that are not worse."""
    rows = {}

    def row(text: str) -> Row:
        if text not in rows:
            rows[text] = decider.row(
                read_change(text, decider.measured_rate, pods=decider.most_pods)
            )
            progress(decider.simulations)
        return rows[text]

    with progress_bar(sys.stderr, "simulated", 0, "fleets") as progress:
        today = decider.row(UNCHANGED)
        worse_pods = 0
        enough_pods = decider.most_pods
        while enough_pods - worse_pods > 1:
            pods = (worse_pods + enough_pods) // 2
            if row(f"pods={pods}").is_worse(max_rise):
                worse_pods = pods
            else:
                enough_pods = pods
        cheapest = None
        if enough_pods < decider.most_pods:
            cheapest = row(f"pods={enough_pods}")
        shown = [today]
        if cheapest is not None:
            shown.append(cheapest)
        if worse_pods:
            shown.append(row(f"pods={worse_pods}"))
        shown.append(row(f"rate x{GROWTH:g}"))
        if cheapest is not None:
            shown.append(row(f"pods={enough_pods} rate x{GROWTH:g}"))
    return shown, cheapest
