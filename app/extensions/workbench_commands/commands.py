"""Commands that need no server: simulations, plans, checks, and rehearsals."""

from collections.abc import Mapping

from app.core.extensions import Command, late_command

PACKAGE = "workbench"
"""Package of the offline commands, at the top level. Only a command imports it."""
MODULES: Mapping[str, tuple[str, str]] = {
    "simulate": ("runs.simulate", "simulate a load on an engine or a fleet, without a GPU"),
    "plan": ("plan_command", "find the cheapest fleet for an SLO, or compare changes of a fleet"),
    "fleet": ("fleet.command", "start several servers and compare routing policies"),
    "record": ("runs.record", "measure a real server, or record its exchanges (--proxy)"),
    "calibrate": ("runs.calibrate", "fit a profile to recorded runs of a real server"),
    "judge": ("judge.command", "compare a load tool's export with the journal"),
    "check": ("check.command", "check command lines of vLLM, also in the files of a cluster"),
    "rehearse": (
        "rehearse.command",
        "run a client against two versions of vLLM, and report what an upgrade breaks",
    ),
    "study": (
        "study.command",
        "measure a running fleet by its metrics, and compare it with a simulation",
    ),
    "script import": ("imports.command", "make a script from the fixtures of other tools"),
}
"""Name of a command -> its module in the workbench, and its line of --help."""
COMMANDS: Mapping[str, Command] = {
    name: late_command(f"{PACKAGE}.{module}", about) for name, (module, about) in MODULES.items()
}
