"""Hostile files of clusters: each is read or refused with one line, in limited time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.drawn import drawn
from tests.hostile_files import damaged_files, retyped_documents
from tests.workbench.check.test_clusters import COMPOSE, DEPLOYMENT
from workbench.check.command import run
from workbench.check.sources import MAX_BYTES

MAX_OUTPUT = 3 << 20
IMAGE = "vllm/vllm-openai:v0.32.0"
LAUGHS = "a0: &a0 {containers: [{image: vllm/vllm-openai, args: [x]}]}\n" + "".join(
    f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 40)
)
HOSTILE = {
    "laughs.yaml": LAUGHS,
    "merges.yaml": "a: &a {b: 1}\n"
    + "".join(f"c{k}: &c{k} {{<<: [{'*a, ' * 50}*a]}}\n" for k in range(300)),
    "chain.yaml": "m0: &m0 {image: x}\n"
    + "".join(f"m{k}: &m{k} {{<<: [*m{k - 1}, *m{k - 1}], k: 1}}\n" for k in range(1, 200))
    + "services: {a: *m199}\n",
    "deep.yaml": f"kind: Pod\nspec: {'[' * 50_000}",
    "documents.yaml": "---\nkind: Pod\n" * 15_000,
    "containers.yaml": "spec:\n  containers:\n" + f"  - {{image: '{IMAGE}', args: [m]}}\n" * 3_000,
    "probes.yaml": f"spec: {{containers: [{{image: '{IMAGE}', args: [m], livenessProbe: {{httpGet:"
    f" {{path: /health, port: {'9' * 4_000}}}, periodSeconds: {'9' * 5_000}}}}}]}}",
    "references.yaml": f"spec: {{containers: [{{image: '{IMAGE}', args: ['{'$(A)' * 20_000}'],"
    f" env: [{{name: A, value: '{'x' * 10_000}'}}]}}]}}",
    "nested.yaml": "kind: RayService\nspec:\n  serveConfigV2: |\n    applications: "
    + "[" * 2_000
    + "\n",
    "blocks.yaml": "spec:\n  containers:\n  - command: [sh, -c]\n    args:\n    - |\n"
    + "      echo '\n" * 20_000
    + "      vllm serve m\n",
    "variables.yaml": "services: {a: {image: vllm/vllm-openai, command: '"
    + "${A:-b} $$ ${C" * 10_000
    + "'}}",
    "defaults.yaml": f"services: {{a: {{image: '{IMAGE}', command: '{'${A:-' * 20_000}'}}}}",
    "brackets.yaml": f"services: {{a: {{image: '{IMAGE}', command: \"{'$(' * 20_000}\"}}}}",
    "backticks.yaml": f"services: {{a: {{image: '{IMAGE}', command: \"{'` a' * 20_000}\"}}}}",
    "texts.yaml": "data:\n" + "  a: 'vllm serve m --x'\n" * 5_000,
    "inner.yaml": "data:\n"
    + f"  a.yaml: |\n    kind: Pod\n    spec: {{containers: [{{image: '{IMAGE}', args: [m]}}]}}\n"
    * 200,
    "names.yaml": f"x: {'vllm:a_b,' * 20_000}vllm:a_b\n",
    "pattern.yaml": f"{{sourceLabels: [__name__], regex: 'vllm:{'(a|b)' * 2_000}{'(' * 2_000}'}}\n",
    "mounts.yaml": "kind: ConfigMap\nmetadata: {name: s}\ndata: {s: vllm serve m}\n---\n"
    + "kind: Pod\nspec:\n  volumes: [{name: s, configMap: {name: s}}]\n  containers:\n"
    + f"  - {{image: '{IMAGE}', command: [/s/s], volumeMounts: [{{name: s, mountPath: /s}}]}}\n"
    * 600,
    "repeated-script.yaml": "kind: ConfigMap\nmetadata: {name: s}\ndata:\n  s: |\n    # vllm serve\n"
    + "    : ; : ; : ; : ; vllm x\n" * 8_000
    + "---\nkind: Pod\nspec:\n  volumes: [{name: s, configMap: {name: s}}]\n  containers:\n"
    + f"  - {{image: '{IMAGE}', command: [{'/s/s, ' * 200}], volumeMounts: [{{name: s,"
    " mountPath: /s}]}\n",
    "templates.yaml": f"services: {{a: {{image: '{IMAGE}', command: '{'<a>' * 80_000}'}}}}",
    "repeated-variables.yaml": "x: &e {"
    + ", ".join(f"a{k}: b" for k in range(15_000))
    + "}\nservices:\n"
    + "".join(f" s{k}: {{image: '{IMAGE}', environment: *e}}\n" for k in range(490)),
    "services.yaml": f"kind: Pod\nspec: {{containers: [{{image: '{IMAGE}', args: [m]}}]}}\n"
    + "---\nkind: Service\nmetadata: {name: vllm}\nspec: {ports: [{port: 1}]}\n" * 2_000,
}


def run_quietly(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["--device", "h100", str(path)])
    output = capsys.readouterr()
    assert status in (0, 1, 2)
    assert len(output.out) < MAX_OUTPUT
    if status == 2:
        assert output.err.startswith("error: ") and output.err.count("\n") == 1


@pytest.mark.parametrize("name", drawn(HOSTILE))
def test_hostile_file_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(HOSTILE[name][:MAX_BYTES])
    run_quietly(tmp_path / name, capsys)


@pytest.mark.parametrize("text", [DEPLOYMENT, COMPOSE], ids=["deployment", "compose"])
def test_damaged_file_is_read_or_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in damaged_files(text.encode()).items():
        (tmp_path / "a.yaml").write_bytes(content)
        try:
            run_quietly(tmp_path / "a.yaml", capsys)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("text", [DEPLOYMENT, COMPOSE], ids=["deployment", "compose"])
def test_values_of_wrong_types_are_read_or_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, document in retyped_documents(yaml.safe_load(text)):
        (tmp_path / "a.yaml").write_text(json.dumps(document))
        try:
            run_quietly(tmp_path / "a.yaml", capsys)
        except Exception as error:
            raise AssertionError(name) from error
