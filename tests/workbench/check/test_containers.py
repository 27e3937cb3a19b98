"""Command lines of images, of Compose files, and of texts in YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check
from vllm_facts.images import entry_points, read_image
from workbench.check.files import read_file
from workbench.check.text import Text

IMAGE = "vllm/vllm-openai:v0.32.0"
SERVE = "vllm serve Qwen/Qwen3-8B"


def options(check: Check, tmp_path: Path, name: str, text: str) -> list[tuple[str, int]]:
    """Returns the codes and lines of the findings about options."""
    (tmp_path / name).write_text(text)
    return [(each["code"], each["line"]) for each in check(f"{name} --select O")]


def compose_words(command: str) -> list[str]:
    """Returns the arguments of vLLM in a service with a command."""
    text = f"services:\n  a:\n    image: {IMAGE}\n    command: {command}\n"
    (line,) = read_file(Text("compose.yaml", text)).lines
    return [word.text for word in line.words]


# Images


@pytest.mark.parametrize(
    ("image", "starts_server"),
    [
        ("vllm/vllm-openai:v0.32.0", True),
        ("docker.io/vllm/vllm-openai-cpu", True),
        ("lmcache/vllm-openai:latest", True),
        ("opea/vllm-gaudi:1.4", True),
        ("nvcr.io/nvidia/vllm:25.09-py3", False),
        ("rocm/vllm-dev:nightly@sha256:ab", False),
        ("quay.io/ascend/vllm-ascend:v0.11.0", False),
        ("mycorp/vllm:1.2", None),
        ("localhost:5000/vllm", None),
    ],
)
def test_image_has_an_entry_point(image: str, starts_server: bool | None) -> None:
    read = read_image(image)
    assert read is not None and read.starts_server is starts_server


def test_each_entry_point_has_its_source() -> None:
    assert all(len(entry.source) > 20 for entry in entry_points().values())


@pytest.mark.parametrize("text", ["", "python:3", "vllm serve m", "-v", "a b/vllm", "x" * 2_000])
def test_other_words_are_no_images(text: str) -> None:
    assert read_image(text) is None


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/vllm:25.09-py3", "rocm/vllm:latest", "intel/vllm:x", "me/vllm:1.2"]
)
@pytest.mark.parametrize("program", [SERVE, f"bash -c '{SERVE}'", 'python3 -c "print(1)"'])
def test_program_of_another_image_is_no_error(
    check: Check, tmp_path: Path, image: str, program: str
) -> None:
    (tmp_path / "run.sh").write_text(f"docker run {image} {program}\nvllm serve Qwen/Qwen3-8B\n")
    assert options(check, tmp_path, "other.sh", f"docker run {image} {program}\n{SERVE}\n") == []
    service = f"services:\n  a:\n    image: {image}\n    command: {program}\n"
    text = f"{service}  b: {{image: '{IMAGE}', command: Qwen/Qwen3-8B}}\n"
    assert options(check, tmp_path, "compose.yaml", text) == []


@pytest.mark.parametrize("image", [IMAGE, "lmcache/vllm-openai:latest"])
def test_program_behind_a_known_entry_point_is_an_error(
    check: Check, tmp_path: Path, image: str
) -> None:
    found = options(check, tmp_path, "run.sh", f"docker run {image} {SERVE}\n")
    assert found == [("O110", 1)]


@pytest.mark.parametrize("image", ["opea/vllm-gaudi:1.4", "me/vllm-custom:1", "rocm/vllm:x"])
def test_options_behind_an_image_with_vllm_are_checked(
    check: Check, tmp_path: Path, image: str
) -> None:
    text = f"services: {{a: {{image: '{image}', command: --model a/b --max-num-sqs 8}}}}\n"
    assert options(check, tmp_path, "compose.yaml", text) == [("O101", 1)]


def test_removed_option_of_an_image_of_an_unknown_version_is_a_note(
    check: Check, tmp_path: Path
) -> None:
    text = "docker run opea/vllm-gaudi:1.4 --model Qwen/Qwen3-8B --swap-space 4\n"
    (tmp_path / "run.sh").write_text(text)
    assert {each["code"] for each in check("run.sh")} == {"F502"}
    found = check("--vllm-version 0.32 run.sh")
    assert [each["code"] for each in found if each["severity"] == "error"] == ["O102"]


def test_arguments_of_another_program_are_not_those_of_vllm(tmp_path: Path) -> None:
    text = "kind: Pod\nspec:\n  containers:\n  - image: me/vllm-router:1\n    args: [--port, '80', --x]\n"
    assert read_file(Text("pod.yaml", text)).lines == []


def test_entry_point_of_docker_run_is_the_program(check: Check, tmp_path: Path) -> None:
    text = f"docker run --entrypoint bash {IMAGE} -c '{SERVE} --max-num-sqs 8'\n"
    assert options(check, tmp_path, "run.sh", text) == [("O101", 1)]


# Dockerfiles


def test_stage_inherits_the_entry_point_of_an_earlier_one(check: Check, tmp_path: Path) -> None:
    text = (
        "ARG TAG=v0.32.0\nFROM vllm/vllm-openai:${TAG} AS base\n\nFROM base\n"
        'CMD ["Qwen/Qwen3-8B", "--max-num-sqs", "8"]\n'
    )
    assert options(check, tmp_path, "Dockerfile", text) == [("O101", 5)]


def test_comment_in_an_instruction_does_not_end_it(check: Check, tmp_path: Path) -> None:
    text = f"FROM python:3\nCMD {SERVE} \\\n  # why\n\n  --max-num-sqs 8 \\  \n  --seed 1\n"
    assert options(check, tmp_path, "Dockerfile", text) == [("O101", 5)]


def test_script_in_a_dockerfile_is_read(check: Check, tmp_path: Path) -> None:
    text = (
        f"FROM {IMAGE}\nCOPY <<'EOF' /run.sh\n#!/bin/sh\nexec {SERVE} --max-num-sqs 8\nEOF\n"
        'ENTRYPOINT ["/run.sh"]\n'
    )
    assert options(check, tmp_path, "Dockerfile", text) == [("O101", 4)]


# Compose


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('"m --seed 1 && echo done"', ["m", "--seed", "1"]),
        ("'m --name \"a\\-b\" --x c\\ d'", ["m", "--name", "a-b", "--x", "c d"]),
        ("'m --name \"a #b\" # c'", ["m", "--name", "a #b", "#", "c"]),
        ("m --seed ${SEED:-${OTHER:-7}}", ["m", "--seed", "7"]),
        ("m --name $$HOME", ["m", "--name", "$HOME"]),
        ("m --name a''b", ["m", "--name", "ab"]),
        ("'m --seed 1 2>/dev/null'", ["m", "--seed", "1"]),
        ("[m, --name, 'a b ${X:-c d}']", ["m", "--name", "a b c d"]),
    ],
)
def test_words_are_those_of_compose(command: str, words: list[str]) -> None:
    assert compose_words(command) == words


def test_backslash_in_quotes_disappears_in_compose(check: Check, tmp_path: Path) -> None:
    text = f"""services:
  a:
    image: {IMAGE}
    entrypoint:
      /bin/bash -c "
      cd /x &&
      VLLM_LOGGING_LEVEL=INFO \\
      python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B \\
      --dtype $${{DTYPE}} \\
      --max-num-sqs 8"
"""
    assert options(check, tmp_path, "compose.yaml", text) == [("O101", 10)]


@pytest.mark.parametrize("text", ["m (a)", "'m \"a'", "m `a", "'m a\\'"])
def test_text_that_compose_refuses_is_an_error(check: Check, tmp_path: Path, text: str) -> None:
    service = f"services: {{a: {{image: '{IMAGE}', command: {text}}}}}\n"
    assert ("O117", 1) in options(check, tmp_path, "compose.yaml", service)


def test_words_that_compose_leaves_out_are_a_warning(check: Check, tmp_path: Path) -> None:
    text = (
        f"services:\n  a:\n    image: {IMAGE}\n    command: Qwen/Qwen3-8B | tee --not-an-option\n"
    )
    assert options(check, tmp_path, "compose.yaml", text) == [("O116", 4)]


# Devices


@pytest.mark.parametrize("address", ["$(ADDRESS)", "10.0.0.1"])
def test_rank_behind_a_balancer_is_one_process(check: Check, tmp_path: Path, address: str) -> None:
    words = f"[{SERVE.replace(' ', ', ')}, -dp, '2', -dpn, '1', --data-parallel-address, {address}]"
    text = (
        f"kind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n    command: {words}\n"
        "    resources: {limits: {nvidia.com/gpu: 1}}\n"
    )
    (tmp_path / "pod.yaml").write_text(text)
    assert check("pod.yaml --select C,K701") == []


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("-tp 2 --nnodes 2 --node-rank 0", []),
        ("-tp 4 --nnodes 2 --node-rank 1", ["C209"]),
        ("-tp 2 -pp 2 --nnodes 4 --node-rank 1", []),
        ("-dp 2 --nnodes 2 --node-rank 0", []),
        ("-dp 4 -dpl 1 -dpa 10.0.0.1", []),
        ("-dp 4 -dpl 2 -dpa 10.0.0.1", ["C209"]),
        ("-tp 2 --distributed-executor-backend ray", []),
        ("-dp 2 --data-parallel-backend ray", []),
    ],
)
def test_node_needs_its_part_of_the_devices(check: Check, words: str, codes: list[str]) -> None:
    found = [each["code"] for each in check(f"--gpus 1 --select C209 -- {SERVE} {words}")]
    assert found == codes


@pytest.mark.parametrize("words", ["-dp 2 -dpn 0", "-dp 4 -dpe -dpn 1"])
def test_rank_needs_the_devices_of_one_process(check: Check, words: str) -> None:
    assert check(f"--gpus 1 -- {SERVE} {words}") == []
    assert [each["code"] for each in check(f"--gpus 1 -- {SERVE} {words} -tp 2")] == ["C209"]


@pytest.mark.parametrize(
    ("devices", "words", "fix"),
    [
        ("resources: {limits: {nvidia.com/gpu: 1}}", "-tp=2", "nvidia.com/gpu: 2"),
        ("resources: {limits: {amd.com/gpu: 4}}", "-tp=8", "amd.com/gpu: 8"),
    ],
)
def test_fix_is_what_a_person_writes(
    check: Check, tmp_path: Path, devices: str, words: str, fix: str
) -> None:
    container = f"{{image: '{IMAGE}', args: [Qwen/Qwen3-8B, {words}], {devices}}}"
    text = f"kind: Pod\nspec: {{containers: [{container}]}}\n"
    (tmp_path / "pod.yaml").write_text(text)
    (found,) = check("pod.yaml --select C209")
    count = int(words[-1]) // 2
    assert found["fix"] == f"set {fix}, or --tensor-parallel-size {count}"


def test_fix_in_a_compose_file_is_its_count(check: Check, tmp_path: Path) -> None:
    text = f"services: {{a: {{image: '{IMAGE}', command: Qwen/Qwen3-8B -tp 2, gpus: [{{count: 1}}]}}}}\n"
    (tmp_path / "compose.yaml").write_text(text)
    (found,) = check("compose.yaml --select C209")
    assert found["fix"] == "set count: 2, or --tensor-parallel-size 1"


def test_devices_of_two_servers_in_a_container_are_not_counted(
    check: Check, tmp_path: Path
) -> None:
    text = (
        f"kind: Pod\nspec: {{containers: [{{image: '{IMAGE}', command: [bash, -c,"
        f" '{SERVE} & {SERVE} --port 1 -tp 2'], resources: {{limits: {{nvidia.com/gpu: 2}}}}}}]}}\n"
    )
    (tmp_path / "pod.yaml").write_text(text)
    assert check("pod.yaml --select C209,K701") == []


# A line as one word


@pytest.mark.parametrize(
    "command",
    [
        '["vllm serve Qwen/Qwen3-8B --port 8000"]',
        '["python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B"]',
        '["bash -c", "vllm serve Qwen/Qwen3-8B"]',
        '["vllm", "serve Qwen/Qwen3-8B --port 8000"]',
        '["python3", "-m vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-8B"]',
        '["vllm", "serve", "Qwen/Qwen3-8B --port 8000"]',
    ],
)
def test_line_as_one_word_is_an_error(check: Check, tmp_path: Path, command: str) -> None:
    pod = f"kind: Pod\nspec: {{containers: [{{image: '{IMAGE}', command: {command}}}]}}\n"
    assert options(check, tmp_path, "pod.yaml", pod) == [("O114", 2)]
    found = options(check, tmp_path, "Dockerfile", f"FROM {IMAGE}\nENTRYPOINT {command}\n")
    assert found == [("O114", 2)]


@pytest.mark.parametrize("word", [f"{SERVE} --port 80", "Qwen/Qwen3-8B --port 80"])
def test_line_as_one_argument_is_an_error(check: Check, tmp_path: Path, word: str) -> None:
    service = f"services: {{a: {{image: '{IMAGE}', command: ['{word}']}}}}\n"
    assert options(check, tmp_path, "compose.yaml", service) == [("O114", 1)]


def test_option_and_value_as_one_word_is_an_error(check: Check, tmp_path: Path) -> None:
    pod = f"kind: Pod\nspec: {{containers: [{{image: '{IMAGE}', args: [m, '--port 80']}}]}}\n"
    (tmp_path / "pod.yaml").write_text(pod)
    (found,) = check("pod.yaml --select O")
    assert (found["code"], found["fix"]) == ("O101", "write an entry for each word")


def test_script_may_be_one_word_of_an_unknown_entry_point(check: Check, tmp_path: Path) -> None:
    pod = f"kind: Pod\nspec: {{containers: [{{image: 'me/vllm:1', args: ['{SERVE} --max-num-sqs 8']}}]}}\n"
    assert options(check, tmp_path, "pod.yaml", pod) == [("O101", 2)]


# Texts of YAML files

CONFIG_MAP = f"""kind: ConfigMap
metadata: {{name: scripts}}
data:
  run.sh: |
    #!/bin/bash
    export TP=2
    exec {SERVE} \\
      --tensor-parallel-size $TP \\
      --max-num-sqs 8
---
kind: Pod
spec:
  containers:
  - image: {IMAGE}
    command: [/bin/bash, /scripts/run.sh]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
    volumeMounts: [{{name: s, mountPath: /scripts}}]
  volumes: [{{name: s, configMap: {{name: scripts}}}}]
"""


def test_script_of_a_config_map_has_the_facts_of_its_container(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(CONFIG_MAP)
    found = [(each["code"], each["line"]) for each in check("pod.yaml --select O,C")]
    assert found == [("C209", 8), ("O101", 9)]


def test_script_that_no_container_mounts_is_read(check: Check, tmp_path: Path) -> None:
    text = CONFIG_MAP.replace("configMap: {name: scripts}", "configMap: {name: other}")
    assert options(check, tmp_path, "pod.yaml", text) == [("O101", 9)]


@pytest.mark.parametrize(
    "text",
    [
        f"kind: RayJob\nspec: {{entrypoint: {SERVE} --max-num-sqs 8}}\n",
        f"standalone:\n  customCommand: |\n    cd /x\n    {SERVE} --max-num-sqs 8\n",
        f"kind: Secret\nstringData: {{run: 'export A=1; {SERVE} --max-num-sqs 8'}}\n",
        f"jobs: {{a: {{steps: [{{run: 'sleep 1 && {SERVE} --max-num-sqs 8'}}]}}}}\n",
        f"serve: >\n  {SERVE}\n    --seed 1\n    --max-num-sqs 8\n",
        "kind: ConfigMap\ndata:\n  pod.yaml: |\n    kind: Pod\n    spec: {containers: [{image: "
        f"'{IMAGE}', args: [m, --max-num-sqs, '8']}}]}}\n",
    ],
)
def test_command_line_in_any_text_of_a_yaml_file_is_checked(
    check: Check, tmp_path: Path, text: str
) -> None:
    assert [code for code, _ in options(check, tmp_path, "a.yaml", text)] == ["O101"]


@pytest.mark.parametrize("key", ["description", "help"])
def test_text_that_is_not_read_is_named(check: Check, tmp_path: Path, key: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{key}: to try, run vllm serve with --foo\n")
    assert [each["code"] for each in check("a.yaml")] == ["F503"]


@pytest.mark.parametrize("output", ["", "> pod.yaml", "| kubectl apply -f -"])
def test_manifest_in_a_here_document_is_read(check: Check, tmp_path: Path, output: str) -> None:
    text = (
        f"N=8\ncat <<EOF {output}\nkind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n"
        "    args: [Qwen/Qwen3-8B, --max-num-sqs, $N, --port, $PORT]\nEOF\n"
    )
    assert options(check, tmp_path, "run.sh", text) == [("O101", 7)]


def test_words_of_a_container_are_not_read_twice(tmp_path: Path) -> None:
    text = (
        f"kind: Pod\nspec: {{containers: [{{image: '{IMAGE}', command: [sh, -c, '{SERVE}']}}]}}\n"
    )
    assert len(read_file(Text("pod.yaml", text)).lines) == 1


def test_lost_options_leave_the_devices_of_the_container_known(
    check: Check, tmp_path: Path
) -> None:
    text = (
        f"kind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n    command: [bash, -c]\n    args:\n"
        f"    - |\n      {SERVE} -tp 2\n        --port 9000\n"
        "    resources: {limits: {nvidia.com/gpu: 1}}\n"
    )
    (tmp_path / "pod.yaml").write_text(text)
    found = check("pod.yaml --select O,C")
    assert [(each["code"], each["line"]) for each in found] == [("C209", 8), ("O115", 9)]


def test_rules_in_a_here_document_are_read(check: Check, tmp_path: Path) -> None:
    text = (
        "kubectl apply -f - <<EOF\nkind: AutoscalingPolicy\nmetric: vllm:num_request_waiting\n"
        f"EOF\n{SERVE}\n"
    )
    (tmp_path / "run.sh").write_text(text)
    assert [(each["code"], each["line"]) for each in check("run.sh")] == [("W803", 3)]
