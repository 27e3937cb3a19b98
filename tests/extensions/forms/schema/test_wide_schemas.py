"""Schemas with thousands of members are drawn in pieces between which other requests run."""

import time
from collections.abc import Iterator
from random import Random

import gevent
import pytest

from app.core.base.clock import pause
from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema.bounds import MAX_SHUFFLED, WorkBudget, shuffled
from app.extensions.forms.schema.draw import Draw
from app.extensions.forms.schema.merged_schema import MAX_PROPERTIES
from app.extensions.forms.schema.object_draw import ObjectDraw
from app.extensions.forms.schema.validation import NAMES_PER_STEP
from config.settings import ToolSettings

PROPERTIES = 6000


def wide(**keywords: object) -> dict[str, object]:
    """A schema of an object with many optional properties."""
    properties = {f"p{number}": True for number in range(PROPERTIES)}
    return {"type": "object", "properties": properties, **keywords}


def test_full_object_tries_no_further_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []
    add = ObjectDraw._add

    def record(self: ObjectDraw, names: list[str]) -> None:
        added.extend(names)
        add(self, names)

    monkeypatch.setattr(ObjectDraw, "_add", record)
    monkeypatch.setattr(Draw, "is_small", lambda *arguments: False)
    usual = ToolSettings(tool_call_not_required_param_probability=100)

    value = Schemas().compile(wide()).sample(Random(1), usual)

    assert isinstance(value, dict)
    assert len(value) == len(added) == MAX_PROPERTIES


def test_complete_map_draws_no_further_name(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    invent = ObjectDraw._invent_names

    def record(self: ObjectDraw, count: int) -> Iterator[str]:
        for name in invent(self, count):
            drawn.append(name)
            yield name

    monkeypatch.setattr(ObjectDraw, "_invent_names", record)
    schema = {"propertyNames": {"pattern": "^[a-z]{9}$"}, "minProperties": 5, "type": "object"}

    value = Schemas().compile(schema).sample(Random(1), ToolSettings())

    assert isinstance(value, dict)
    assert list(value) == drawn


def test_other_requests_run_while_the_properties_of_a_wide_object_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    now_s = iter(range(10**9))
    compiled = Schemas().compile(wide())
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))

    gevent.spawn(compiled.sample, Random(1), ToolSettings()).get()

    # Each property is looked at when the object begins, and when it ends.
    assert len(pauses) > 2 * PROPERTIES


def test_check_of_a_wide_schema_costs_steps_for_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    prices: list[int] = []
    compiled = Schemas().compile(wide())
    spend = WorkBudget.spend

    def record(self: WorkBudget, steps: int = 1) -> None:
        prices.append(steps)
        spend(self, steps)

    monkeypatch.setattr(WorkBudget, "spend", record)

    assert compiled.accepts({"p1": True})
    assert max(prices) > PROPERTIES // NAMES_PER_STEP


def test_members_are_tried_once_each_in_any_number() -> None:
    for count in (1, MAX_SHUFFLED, MAX_SHUFFLED + 1):
        members = range(count)
        assert sorted(shuffled(members, Random(count))) == list(members)
    rng = Random(3)
    assert shuffled(range(5000), rng)[0] != shuffled(range(5000), rng)[0]
