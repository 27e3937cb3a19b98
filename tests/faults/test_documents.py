"""The examples of docs/faults.md work."""

from __future__ import annotations

import re
from pathlib import Path

from app.serving.faults.fault import PATHS
from config.fault_rules import ACTIONS, FaultRule, parse_fault, parse_fault_rules
from config.loader import load
from config.sections.api import FAILURE_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text("utf-8")


def test_the_yaml_file_is_a_settings_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "faults.yaml"
    path.write_text(example)
    rules = parse_fault_rules(load(["--config", str(path)], {}).failures.fault_rules)
    assert [rule.action for rule in rules] == ["disconnect", "error", "stall", "rate-limit"]


def test_every_header_is_a_rule() -> None:
    headers = re.findall(r"-H 'X-Fault: (.+)'", PAGE)
    assert len(headers) >= 5 and all(parse_fault(header).action in ACTIONS for header in headers)


def test_every_action_matcher_type_and_family_is_described() -> None:
    fields = {name for kind in (*ACTIONS.values(), FaultRule) for name in kind.__struct_fields__}
    for word in (*ACTIONS, *FAILURE_TYPES, *PATHS, *fields):
        assert f"`{word}`" in PAGE, word
