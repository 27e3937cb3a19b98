"""Offline studies: simulated loads, plans, fleets, and measured servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension

if TYPE_CHECKING:
    from config import Settings


class Lab(Extension):
    """Commands that simulate engines and fleets, and that measure real servers."""

    name = "lab"
    requires = ("console", "plugins")

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns False: the lab has commands only."""
        return False

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the commands."""
        return {
            "simulate": Command(
                _run_simulate, "say what an engine, or a fleet, would do with a load"
            ),
            "plan": Command(_run_plan, "find the cheapest fleet that meets an SLO under a load"),
            "fleet": Command(_run_fleet, "start several servers, and show what routing does"),
            "record": Command(
                _run_record, "measure a real server, or keep its exchanges (--proxy)"
            ),
            "calibrate": Command(
                _run_calibrate, "fit a profile to what was recorded of a real server"
            ),
        }


def _run_simulate(argv: Sequence[str]) -> int:
    from app.extensions.lab.fidelity.simulate import run
    from app.extensions.plugins import autoscalers, step_costs

    return run(argv, step_costs, autoscalers)


def _run_plan(argv: Sequence[str]) -> int:
    from app.extensions.lab.plan.command import run
    from app.extensions.plugins import step_costs

    return run(argv, step_costs)


def _run_fleet(argv: Sequence[str]) -> int:
    from app.core.application import tokenizer_of
    from app.extensions.lab.fleet.command import run
    from app.extensions.plugins import routing_policies

    return run(argv, tokenizer_of, routing_policies)


def _run_record(argv: Sequence[str]) -> int:
    from app.extensions.lab.fidelity.record import run

    return run(argv)


def _run_calibrate(argv: Sequence[str]) -> int:
    from app.extensions.lab.fidelity.calibrate import run

    return run(argv)
