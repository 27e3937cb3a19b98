"""Damaged and hostile dashboards: each is read or refused with one line, in limited time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.drawn import drawn
from workbench.check.command import run
from workbench.check.sources import MAX_DOCUMENT_BYTES
from workbench.check.watch.promql import MAX_LENGTH, MAX_OPERATORS, operators_in

MAX_OUTPUT = 3 << 20
QUOTE = '\\"'


def dashboard(*expressions: object) -> str:
    return json.dumps({"panels": [{"targets": [{"expr": each} for each in expressions]}]})


def aliases(values: str) -> str:
    """Returns YAML whose aliases stand for 9**40 values."""
    lines = ["kind: PrometheusRule", "a0: &a0 {expr: 'vllm:x', record: b}"]
    for number in range(1, 40):
        names = ",".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} {values.format(names=names)}")
    return "\n".join(lines)


HOSTILE = {
    "parentheses.json": dashboard("(" * 100_000 + "vllm:x"),
    "closed.json": dashboard("(" * 8_000 + "vllm:x" + ")" * 8_000),
    "sums.json": dashboard("sum(" * 3_900 + "vllm:x" + ")" * 3_900),
    "pluses.json": dashboard("vllm:x" + "+a" * 8_000),
    "deepest.json": dashboard(*(f"{'(' * 90}vllm:x{')' * 90}+{k}" for k in range(200))),
    "long.json": dashboard(f"vllm:{'x' * 900_000}"),
    "quotes.json": dashboard(f'vllm:x{{a="{QUOTE * 300_000}'),
    "variables.json": dashboard("vllm:x" + " $a" * 5_000),
    "brackets.json": dashboard("[" * 8_000 + "vllm:x" + " $a" * 99),
    "braces.json": dashboard("{" * 8_000 + "vllm:x $a"),
    "many.json": dashboard(*(f"vllm:num_requests_waiti{k}" for k in range(1_999))),
    "too-many.json": dashboard(*(f"vllm:x + {k}" for k in range(5_000))),
    "values.json": dashboard(
        f'vllm:request_success_total{{finished_reason=~"{"|".join(map(str, range(2_500)))}"}}'
    ),
    "pattern.json": dashboard('vllm:request_success_total{finished_reason=~"(a+)+(b+)+(.*)*x"}'),
    "nested.json": '{"panels":' + "[" * 500_000,
    "objects.json": '{"a":' * 100_000,
    "numbers.json": f'{{"panels":[{{"expr":{"9" * 500_000}}}]}}',
    "values-of-a-list.json": '{"panels":[' + "1," * 400_000 + "1]}",
    "empty-objects.json": '{"panels":[' + "{}," * 300_000 + "1]}",
    "constants.json": '{"panels":[{"expr":NaN},{"expr":Infinity},{"expr":null},{"expr":[1]}]}',
    "truncated.json": dashboard("vllm:num_requests_running")[:-4],
    "surrogates.json": '{"panels":[{"expr":"\\ud83d vllm:foo_bar \\ud83d\\ude00"}]}',
    "controls.json": '{"panels":[{"expr":"vllm:\x00\x01"}]}',
    "zeros.json": "\x00" * 1_000,
    "empty.json": "",
    "list.json": "[1, 2]",
    "text.json": '"vllm:x"',
    "types.json": json.dumps(
        {"panels": "vllm:x", "templating": {"list": {"query": ["vllm"]}}, "kind": {"a": 1}}
    ),
    "byte-order-mark.json": "\ufeff" + dashboard("vllm:foo_bar"),
    "repeated.json": '{"panels":[],"expr":"vllm:foo_bar_a","expr":"vllm:foo_bar_b"}',
    "blanks.json": json.dumps({"panels": [{"query": "label_values(vllm:x" + ", " * 400_000}]}),
    "texts.json": json.dumps({"panels": ['{"a": "vllm"}'] * 20_000}),
    "texts.yaml": "data:\n" + 'k: "groups: [\\nvllm]"\n' * 500,
    "aliases.yaml": aliases("[{names}]"),
    "merges.yaml": aliases("{{<<: [{names}]}}"),
    "itself.yaml": "kind: PrometheusRule\na: &a [*a]\n",
    "tags.yaml": "kind: PrometheusRule\na: !!python/object:os.system [ls]\nb: !!bool vllm:x\n",
    "types.yaml": (
        "kind: ScaledObject\nspec:\n- {type: prometheus, metadata: [1]}\n- {prometheus: vllm}\n"
        "- {type: prometheus, metadata: {query: {a: vllm}}}\n- {seriesQuery: {a: b}, name: vllm}\n"
        "- {pods: vllm}\n- {pods: {metric: vllm}}\n- {targetMetric: [vllm]}\n- {record: [a]}\n"
        "- {record: a, expr: [vllm]}\n- {alert: a, expr: 1}\n- {? [a] : b}\n"
    ),
    "beginnings.yaml": f"query: '{'vllm:' * 200_000}'\n",
    "repeated-pattern.yaml": (
        f"x: &r '({'|'.join(f'a{k}' for k in range(190))})vllm{'x' * 2_800}'\nrules:\n"
        + "- {source_labels: [__name__], regex: *r}\n" * 2_000
    ),
    "comments.yaml": "#\n" * 100_000 + "kind: ScaledObject\n",
    "bits.yaml": "kind: ScaledObject\nspec: \x07\n",
}


@pytest.mark.check
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", drawn(HOSTILE))
def test_hostile_document_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOSTILE[name][:MAX_DOCUMENT_BYTES]
    (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    status = run(["--format", "github", str(tmp_path / name)])
    output = capsys.readouterr()
    assert len(output.out) < MAX_OUTPUT
    assert (status == 2) == bool(output.err)
    if status == 2:
        assert output.err.startswith("error: ") and output.err.count("\n") == 1


@pytest.mark.check
def test_damaged_dashboard_is_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dashboard(
        'sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{le="0.7"}[$__interval]))',
        "rate(vllm:num_requests_running[5m])",
    )
    path = tmp_path / "damaged.json"
    for number in drawn(range(200)):
        chance = random.Random(number)
        letters = list(text)
        for _ in range(chance.randint(1, 4)):
            letters[chance.randrange(len(letters))] = chance.choice('{}[]()",:\\$=~ 0é\n')
        path.write_text("".join(letters))
        status = run([str(path)])
        error = capsys.readouterr().err
        assert error.count("\n") == int(status == 2)


def test_too_large_dashboard_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(" " * MAX_DOCUMENT_BYTES + dashboard("vllm:x"))
    assert run([str(tmp_path / "a.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_operators_are_counted_outside_of_strings() -> None:
    assert operators_in('sum(a{b="((("}) + (c)') == 4
    assert operators_in("(" * (MAX_OPERATORS + 1)) == 1, "it is not parsed"
    assert operators_in("(" * (MAX_LENGTH + 1)) == 1
