"""Schemas that ask for too much end soon, with a value or a SchemaError, and never with anything else."""

from __future__ import annotations

import json
from random import Random

from app.engine.forms.schema import Ranges
from tests.schema.drawing import sample

MANY_TOOLS = [{"type": "object", "properties": {f"p{n}": {"type": "string"}}} for n in range(5_000)]


def test_a_recursive_value_stays_small() -> None:
    tree = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}}
    always = Ranges(optional_property=1.0, optional_field=1.0)
    for seed in range(10):
        assert len(json.dumps(sample(tree, Random(seed), always))) < 20_000
