"""Files of drills: what is accepted, and the line for what is not."""

import json
from pathlib import Path

import jsonschema
import pytest

from config import ConfigError
from config.yaml_file import parse_yaml
from tests.running_server import ROOT
from workbench.drills.drill_file import Flap, Restart, drill_schema, read_drill
from workbench.fleet import command

EXAMPLE = ROOT / "examples" / "drills" / "ten-minutes.yaml"
ROUTER = ("--router", "nginx {port} {pods}")


def written(folder: Path, text: str) -> Path:
    path = folder / "drill.yaml"
    path.write_text(text)
    return path


def test_example_drill_has_every_kind_of_failure_and_a_dependent_rank() -> None:
    drill = read_drill(EXAMPLE)
    assert drill.duration_s == 600
    assert drill.requests == 300
    verbs = {failure.verb for failure in drill.failures}
    assert verbs == {"kill", "restart", "stop", "flap", "slow", "partition", "stuck"}
    assert drill.peers(2) == (3,)
    assert drill.peers(0) == ()
    [restart, _] = [failure for failure in drill.failures if isinstance(failure, Restart)]
    assert restart.end_s == 110
    [flap] = [failure for failure in drill.failures if isinstance(failure, Flap)]
    assert flap.end_s == 210 + 3 * 5 + 2 * 10


def test_drill_schema_accepts_the_example_but_no_unknown_action() -> None:
    document = parse_yaml(str(EXAMPLE))
    schema = json.loads((EXAMPLE.parent / "schema.json").read_text())
    assert schema == json.loads(json.dumps(drill_schema()))
    jsonschema.validate(document, schema)
    assert isinstance(document, dict)
    document["failures"][0]["action"] = "explode"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("pods: 2", "missing required field `duration`"),
        ("{duration: 10s, ports: 3}", "unknown field `ports`"),
        ("{duration: 10}", "`$.duration`"),
        ("{duration: 10s, failures: [{action: explode, at: 1s, pod: 0}]}", "explode"),
        (
            "{duration: 10s, failures: [{action: kill, at: 1s, pod: 4}]}",
            "failures[0]: unknown pod 4; the drill has pods 0 to 3",
        ),
        (
            "{duration: 10s, pods: 1, failures: [{action: kill, at: 1s, pod: 1}]}",
            "failures[0]: unknown pod 1; the drill has only pod 0",
        ),
        (
            "{duration: 10s, failures: [{action: kill, at: 5s, pod: 0},"
            " {action: kill, at: 4s, pod: 1}]}",
            "failures[1]: at 4s is earlier than the previous failure, at 5s",
        ),
        (
            "{duration: 10s, failures: [{action: kill, at: 5s, pod: 0},"
            " {action: kill, at: 5s, pod: 0}]}",
            "failures[1]: pod 0 has been down since 5s: restart it first",
        ),
        (
            "{duration: 20s, failures: [{action: stop, at: 5s, for: 5s, pod: 0},"
            " {action: slow, at: 8s, for: 3s, delay: 1s, pod: 0}]}",
            "failures[1]: slow 0 at 8s overlaps stop 0, which ends at 10s",
        ),
        (
            "{duration: 10s, failures: [{action: stuck, at: 5s, for: 5s, pod: 0}]}",
            "failures[0]: stuck 0 ends at 10s, but the drill lasts 10s",
        ),
        (
            "{duration: 10s, failures: [{action: stop, at: 5s, for: 500ms, pod: 0}]}",
            "failures[0]: for must be at least 1s, the time between two requests",
        ),
        ("{duration: 10s, rate: 0.05}", "must be at least 20s (one request)"),
        ("{duration: 20h, rate: 100}", "7,200,000 requests are too many"),
        ("{duration: 10s, timeout: 2s}", "timeout 2s must be longer than slow-after 2s"),
        ("{duration: 10s, expert-parallel: [[0]]}", "a group needs at least two pods"),
        ("{duration: 10s, expert-parallel: [[0, 1], [1, 2]]}", "pod 1 is specified twice"),
        ("{duration: 10s, expert-parallel: [[0, 9]]}", "unknown pod 9"),
        ("[", "cannot be parsed"),
        ("duration: !!bool x", "cannot be parsed"),
        ("duration: !!timestamp x", "cannot be parsed"),
        ("duration: !!int ''", "cannot be parsed"),
        ('{duration: 10s, "a\\nb": 1}', "unknown field"),
        ('{duration: "\\ud800"}', "matching regex"),
    ],
)
def test_invalid_drill_file_is_rejected_with_a_one_line_error(
    text: str, flaw: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    assert command.run(["--drill", str(path), "--no-png"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert str(path) in printed.err
    assert flaw in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--rate", "3"], "argument --rate: cannot be used with --drill"),
        (["--pods=3"], "argument --pods: cannot be used with --drill"),
        (["--policies", "random", "round-robin"], "a drill can use only one policy"),
        (["--router", "nginx {port}"], "argument --router: the command must contain {pods}"),
        (["--router", "nginx '{port} {pods}"], "argument --router: No closing quotation"),
        (["--router-url", "nowhere"], "argument --router-url: target nowhere"),
        (["--router-url", "http://h:1"], "argument --router-url: requires --pod-ports"),
        (["--router-retries", "http://h/metrics#c"], "requires --router or --router-url"),
        (["--router-retries", "x#c", *ROUTER], "argument --router-retries: target x"),
        (["--router-retries", "http://h:1/a b#c", *ROUTER], "must be a single word"),
        (["--router-retries", "http://h:1/'#c", *ROUTER], "--router-retries: No closing quotation"),
        (["--pod-ports", "4001", "4001"], "argument --pod-ports: 4001 is specified twice"),
        (["--pod-ports", "4001"], "argument --pod-ports: got 1 ports for 4 pods"),
        (["--same-as", "/nowhere.json"], "/nowhere.json cannot be read"),
    ],
)
def test_invalid_drill_flag_is_rejected_with_a_one_line_error(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["--drill", str(EXAMPLE), "--no-png", *flags]) in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert reason in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [["--router", "x {port} {pods}"], ["--same-as", "x.json"], ["--pod-ports", "4001"]],
)
def test_drill_flags_require_a_drill(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(flags) == 2
    assert f"argument {flags[0]}: requires --drill" in capsys.readouterr().err


def test_error_for_a_missing_drill_file_states_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_drill(tmp_path / "none.yaml")
