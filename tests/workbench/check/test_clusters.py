"""Command lines and devices in the files of clusters, with the places of their words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check
from workbench.check.clusters.container import ContainerLine
from workbench.check.clusters.device_names import device_of_label, device_of_machine
from workbench.check.command import run
from workbench.check.files import read_file
from workbench.check.sources import CommandLine
from workbench.check.text import Text

DEPLOYMENT = """\
apiVersion: v1
kind: List
items:
- kind: Service
  metadata: {name: qwen}
  spec:
    selector: {app: qwen}
    ports: [{port: 80, targetPort: 8080}]
- kind: Deployment
  spec:
    template:
      metadata: {labels: {app: qwen}}
      spec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
        containers:
        - image: vllm/vllm-openai:v0.11.0-x86_64
          command: ["/bin/sh", "-c"]
          args:
          - |
            pip list
            vllm serve $(MODEL) \\
                --max-model-len $LENGTH --max-num-sqs 4
          env:
          - {name: MODEL, value: Qwen/Qwen3-8B}
          - {name: LENGTH, valueFrom: {configMapKeyRef: {name: a, key: b}}}
          resources: {limits: {nvidia.com/gpu: 2}}
"""
COMPOSE = """\
x-common: &common
  image: vllm/vllm-openai:${TAG:-v0.32.0}
  environment: [VLLM_USE_V1=1, "HF_TOKEN=${HF_TOKEN}"]
services:
  vllm:
    <<: *common
    command: >
      --model ${MODEL:-Qwen/Qwen3-8B}
      --max-num-sqs 8
      --tensor-parallel-size ${SIZE}
    deploy: {resources: {reservations: {devices: [{device_ids: ["0", "1"]}]}}}
    healthcheck: {test: "curl -f http://localhost:8001/health", interval: 1m30s, retries: 1}
  redis: {image: redis, command: [redis-server]}
"""


def words_of(text: str, name: str = "a.yaml") -> list[str]:
    """Returns the words of the only command line; an unknown one as its variable."""
    (line,) = read_file(Text(name, text)).lines
    return [word.unknown or word.text for word in line.words]


def only(text: str) -> CommandLine:
    (line,) = read_file(Text("a.yaml", text)).lines
    return line


def test_script_of_a_deployment_has_places_version_and_devices(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    findings = check("a.yaml")
    places = [(each["code"], each["line"], each["column"]) for each in findings]
    assert ("O101", 22, 41) in places  # with the option's name of 0.11
    assert ("F501", 22, 33) in places
    assert ("K704", 8, 36) in places
    assert ("K701", 26, 32) in places
    (line,) = read_file(Text("a.yaml", DEPLOYMENT)).lines
    assert isinstance(line, ContainerLine)
    assert (line.container.device, line.container.device_count) == ("l4", 2)
    assert line.version == "0.11"


def test_compose_file_has_defaults_merged_keys_and_places(check: Check, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    findings = check("compose.yaml")
    places = [(each["code"], each["line"], each["column"]) for each in findings]
    assert ("O101", 9, 7) in places
    assert ("F501", 10, 30) in places
    assert ("O109", 3, 17) in places
    assert "K704" in {each["code"] for each in findings}
    (line,) = read_file(Text("a.yaml", COMPOSE)).lines
    assert line.words[1].text == "Qwen/Qwen3-8B" and line.version == "0.32"
    assert isinstance(line, ContainerLine)
    assert line.container.device_count == 2
    assert line.container.probes[0].seconds == 90


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "kind: Model\nspec: {url: hf://a/b, args: [-tp=2], resourceProfile: nvidia-gpu-l4:2}",
            ["a/b", "-tp=2"],
        ),
        (
            "kind: LLMInferenceService\nspec:\n  model: {uri: hf://a/b}\n  parallelism: {tensor: 2}"
            "\n  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS,"
            " value: '--enforce-eager --seed 1'}]}]}",
            ["a/b", "--enforce-eager", "--seed", "1", "--tensor-parallel-size", "2"],
        ),
        (
            "kind: InferenceService\nspec: {predictor: {model: {modelFormat: {name: huggingface},"
            " args: [--model_name=x, --model_id=a/b, --max_model_len=9]}}}",
            ["a/b", "--max_model_len=9"],
        ),
        (
            "kind: RayService\nspec:\n  serveConfigV2: |\n    applications:\n    - args:\n"
            "        llm_configs:\n        - model_loading_config: {model_id: m, model_source: a/b}"
            "\n          engine_kwargs: {max_model_len: 9, enforce_eager: true,"
            " trust_remote_code: false}",
            ["a/b", "--max_model_len=9", "--enforce_eager", "--no-trust_remote_code"],
        ),
        (
            "servingEngineSpec:\n  modelSpec:\n  - {repository: vllm/vllm-openai, tag: v0.32.0,"
            " modelURL: a/b, requestGPU: 1, vllmConfig: {maxModelLen: 9, enablePrefixCaching:"
            " false, extraArgs: [--seed, '1']}}",
            ["a/b", "--max-model-len", "9", "--no-enable-prefix-caching", "--seed", "1"],
        ),
        (
            "modelArtifacts: {name: a/b, uri: hf://a/b}\ndecode:\n  parallelism: {tensor: 2}\n"
            "  containers: [{image: x, modelCommand: vllmServe, args: [--seed=1]}]",
            ["a/b", "--seed=1", "--tensor-parallel-size", "2"],
        ),
        (
            "image: {repository: vllm/vllm-openai, tag: v0.32.0, command: [vllm, serve, a/b]}\n"
            "replicaCount: 1\n",
            ["a/b"],
        ),
        (
            "spec: {containers: [{image: mine, args: ['vllm', 'serve', '$(M)', '$$(M)'],"
            " command: [tini, --], env: [{name: M, value: a/b}]}]}",
            ["a/b", "$(M)"],
        ),
    ],
)
def test_kinds_with_their_own_forms(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_devices_of_a_group_of_pods_are_those_of_one_server() -> None:
    line = only(
        "kind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: {size: 2, leaderTemplate: {spec:"
        " {containers: [{image: x, command: [vllm, serve, a/b], resources: {limits:"
        " {nvidia.com/gpu: '8'}}}]}}}}"
    )
    assert isinstance(line, ContainerLine) and line.container.device_count == 16


@pytest.mark.parametrize(
    ("label", "device"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("nvidia-tesla-a100", "a100-40gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", ""),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("unknown", ""),
    ],
)
def test_label_of_a_node_names_its_device(label: str, device: str) -> None:
    assert device_of_label(label) == device


def test_type_of_a_machine_has_a_device() -> None:
    machines = ("g6.12xlarge", "p5en.48xlarge", "a3-highgpu-8g", "Standard_NC24ads_A100_v4", "m5")
    assert [device_of_machine(each) for each in machines] == ["l4", "h200", "h100", "a100-80gb", ""]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.22.0-cu129", "0.22"),
        ("docker.io/vllm/vllm-openai:latest", "latest"),
        ("vllm/vllm-openai", "latest"),
        ("lmcache/vllm-openai:v0.3.9", ""),
        ("ghcr.io/me/vllm-openai:2025-05-27", ""),
        ("registry.example.com:5000/vllm/vllm-openai:v0.11.2@sha256:00", "0.11"),
    ],
)
def test_tag_of_an_image_gives_the_version(image: str, version: str) -> None:
    line = only(f'spec: {{containers: [{{image: "{image}", args: [a/b]}}]}}')
    assert line.version == version


def test_output_of_helm_on_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"---\n# Source: a\n{DEPLOYMENT}"))
    assert run(["--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["file"] for each in findings} == {"<stdin>"}


def test_flags_come_before_the_devices_of_a_file(check: Check, tmp_path: Path) -> None:
    text = DEPLOYMENT.replace("--max-model-len $LENGTH --max-num-sqs 4", "-tp 2")
    (tmp_path / "a.yaml").write_text(text)
    fits = next(each for each in check("a.yaml") if each["code"].startswith("M3"))
    assert "L4" in fits["message"]
    fits = next(each for each in check("a.yaml --device h100") if each["code"].startswith("M3"))
    assert "H100" in fits["message"]
    assert "C209" in {each["code"] for each in check("a.yaml --gpus 1")}


def test_finding_is_ignored_by_a_comment(check: Check, tmp_path: Path) -> None:
    text = DEPLOYMENT.replace(
        "nvidia.com/gpu: 2}}", "nvidia.com/gpu: 2}}  # understudy: ignore=K701"
    )
    (tmp_path / "a.yaml").write_text(text)
    assert "K701" not in {each["code"] for each in check("a.yaml")}


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.a }}\nkind: Pod\n{{- end }}\n",
        "kind: Pod\nspec: &a {containers: [*a]}\n",
        "kind: Pod\nspec: [1, 2\n",
    ],
)
def test_file_that_is_no_yaml_is_refused_with_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert run([str(tmp_path / "a.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


RULES = {
    "has_memory": (
        "spec: {containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [a/b, -tp=2], volumeMounts:"
        " [{mountPath: /dev/shm}]}]}",
        "K702",
    ),
    "sidecar": (
        "spec: {containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [a/b], readinessProbe:"
        " {tcpSocket: {port: 9000}}}, {name: s, ports: [{containerPort: 9000}]}]}",
        "K704",
    ),
    "no_links": (
        "kind: Service\nmetadata: {name: vllm}\n---\nkind: Pod\nspec: {enableServiceLinks: false,"
        " containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [a/b]}]}",
        "K705",
    ),
    "secret_reference": (
        "spec: {containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [a/b, --api-key, $(KEY)],"
        " env: [{name: KEY, valueFrom: {secretKeyRef: {name: a}}}]}]}",
        "K707",
    ),
    "long_probe": (
        "spec: {containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [Qwen/Qwen3-8B],"
        " startupProbe: {httpGet: {path: /health, port: 8000}, failureThreshold: 60},"
        " livenessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}}]}",
        "K703",
    ),
    "two_nodes": (
        "spec: {containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [a/b, -pp=2,"
        " --distributed-executor-backend=ray], resources: {limits: {nvidia.com/gpu: 1}}}]}",
        "C209",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_does_not_apply(check: Check, tmp_path: Path, name: str) -> None:
    text, code = RULES[name]
    (tmp_path / "a.yaml").write_text(text)
    assert code not in {each["code"] for each in check("a.yaml")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "kind: VLLMRuntime\nspec: {model: {modelURL: a/b, maxModelLen: 9, enableLoRA: true},"
            " vllmConfig: {enableChunkedPrefill: true, extraArgs: [--seed=1]}, deploymentConfig:"
            " {resources: {gpu: '1'}, image: {registry: docker.io, name: 'vllm/vllm-openai:v0.32.0'"
            "}}}",
            [
                *("a/b", "--max-model-len", "9", "--enable-lora", "--enable-chunked-prefill"),
                "--seed=1",
            ],
        ),
        (
            "catalog: {m: {url: hf://a/b, engine: VLLM, args: [--seed=1]},"
            " n: {url: 'ollama://c', engine: OLlama}}",
            ["a/b", "--seed=1"],
        ),
        (
            "kind: ClusterServingRuntime\nspec: {engineConfig: {runner: {image: 'vllm/vllm-openai:"
            "v0.9.0.1', command: [vllm, serve, a/b]}}}",
            ["a/b"],
        ),
        (
            "services: {a: {image: vllm/vllm-openai, command: 'a/b ${FLAGS:---seed 1 --port 9}'}}",
            ["a/b", "--seed", "1", "--port", "9"],
        ),
    ],
)
def test_kinds_of_operators_and_defaults_of_several_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_template_in_the_image_of_a_compose_file_is_not_looked_for(
    check: Check, tmp_path: Path
) -> None:
    text = (
        "services: {a: {image: $IMAGE, command: python -m vllm.entrypoints.openai.api_server"
        " --model a/b --chat-template /app/x.jinja}}"
    )
    (tmp_path / "a.yaml").write_text(text)
    assert "D409" not in {each["code"] for each in check("a.yaml")}
