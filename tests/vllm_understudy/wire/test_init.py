"""`understudy init`: what it writes runs as it is, and it writes over nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml

from app.core.cli import main
from tests.running_server import running_image

NEXT = "Next: pip install pytest && pytest {}/understudy\n"
WORKFLOWS = Path(".github", "workflows")
ROOT = Path(__file__).parents[3]
VERSION_TEST = """
import json
import urllib.request

import pytest


def version_of(server):
    with urllib.request.urlopen(server.base_url.removesuffix("/v1") + "/version") as answer:
        return json.load(answer)["version"]


def test_version_of_the_project(understudy):
    assert version_of(understudy) == "0.27.1"


@pytest.mark.understudy(vllm_version="0.11")
def test_version_of_a_test(understudy):
    assert version_of(understudy) == "0.11.2"


@pytest.mark.understudy(vllm_version="0.9")
def test_unknown_version(understudy):
    pass
"""


NODE_VERSION_TEST = """
test("the server has the version of the project", async () => {
  const answer = await fetch(`${server.url}/version`);
  assert.equal((await answer.json()).version, "0.27.1");
});
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with a space") / "new"
    assert main(["init", "--js", str(folder)]) == 0
    return folder


def commands(project: Path, workflow: str) -> list[str]:
    [job] = yaml.safe_load((project / WORKFLOWS / workflow).read_text())["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("understudy.yml", "3 passed"),
        pytest.param("understudy-js.yml", "# pass 1", marks=pytest.mark.node),
    ],
)
def test_commands_of_the_generated_workflows_succeed(
    workflow: str, expected: str, project: Path, environment: dict[str, str]
) -> None:
    printed = ""
    for command in commands(project, workflow):
        words = ["bash", "-ec", command.replace("node --test", "node --test --test-reporter=tap")]
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, timeout=55
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    assert "replies.yaml: 3 rules are valid\n" in printed or "js" in workflow
    assert expected in printed


def test_job_error_names_the_unset_understudy_variable(
    project: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        ["bash", "-ec", commands(project, "understudy.yml")[0]],
        env={**environment, "UNDERSTUDY": ""}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode and "UNDERSTUDY: is not set" in done.stderr


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [("compose-spec", "understudy/compose.yaml"), ("github-workflows", f"{WORKFLOWS}/*")],
)
def test_generated_yaml_satisfies_the_schemas(schema: str, pattern: str, project: Path) -> None:
    files = sorted(project.glob(pattern))
    assert len(files) == (2 if "*" in pattern else 1)
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{schema}",
        *map(str, files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def test_generated_service_has_a_health_check_on_its_port(project: Path) -> None:
    service = yaml.safe_load((project / "understudy" / "compose.yaml").read_text())["services"][
        "vllm"
    ]
    [port] = {mapping.split(":")[-1] for mapping in service["ports"]}
    assert service["healthcheck"]["test"][-1] == f"http://localhost:{port}/health"
    assert service["command"][-2:] == ["--port", port]
    host, inside, _ = service["volumes"][0].split(":")
    variables = service["environment"]
    assert variables["SIM_SCRIPT"] == inside
    variables = {**variables, "SIM_SCRIPT": str(project / "understudy" / host)}
    with running_image(*service["command"][:-2], env=variables) as server:
        body = {"messages": [{"role": "user", "content": "Hello!"}]}
        answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=20).json()
        assert answer["choices"][0]["message"]["content"] == "Hello from the script."
        assert requests.get(f"{server.url}/console", timeout=20).status_code == 200


def test_existing_files_are_overwritten_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "understudy" / "compose.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert capsys.readouterr() == (
        "",
        f"error: {mine} already exists; use --force to overwrite it\n",
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "mine"
    assert main(["init", "--force", str(tmp_path)]) == 0
    assert mine.read_text() != "mine"
    printed = capsys.readouterr().out.splitlines()
    files = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {*printed[:-1]} == files and f"{printed[-1]}\n" == NEXT.format(tmp_path)


def test_folder_that_cannot_be_created_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 1
    captured = capsys.readouterr()
    assert (
        captured.out == "" and captured.err.count("\n") == 1 and "Not a directory" in captured.err
    )
    place = tmp_path / "understudy"
    place.write_text("")
    assert main(["init", str(tmp_path)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"file", "understudy"}


@pytest.mark.parametrize("words", [(), ("--force",)], ids=["plain", "force"])
@pytest.mark.parametrize(
    "linked", ["understudy", ".github", ".github/workflows", "understudy/compose.yaml"]
)
def test_nothing_is_written_through_a_symbolic_link(
    tmp_path: Path, linked: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    project = tmp_path / "project"
    link = project / linked
    link.parent.mkdir(parents=True)
    targets = [elsewhere, elsewhere / "missing"]
    if "." in link.name[1:]:
        targets = [elsewhere / "kept", elsewhere / "missing"]
    for target in targets:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert main(["init", *words, str(project)]) == 1
        assert capsys.readouterr().err == (
            f"error: {link} is a symbolic link, and nothing is written through links\n"
        )
        assert [path.name for path in elsewhere.iterdir()] == ["kept"]
        assert (elsewhere / "kept").read_text() == "kept"
        assert [path for path in project.rglob("*") if path.is_file() and path != link] == []


def test_overwritten_file_keeps_the_content_of_its_other_names(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    project = tmp_path / "project"
    file = project / "understudy" / "compose.yaml"
    file.parent.mkdir(parents=True)
    file.hardlink_to(other)
    assert main(["init", "--force", str(project)]) == 0
    assert other.read_text() == "mine"
    assert "services:" in file.read_text()


def test_project_in_a_linked_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert main(["init", str(tmp_path / "link")]) == 0
    assert (tmp_path / "real" / "understudy" / "compose.yaml").is_file()


def test_version_of_init_is_that_of_compose_and_of_the_tests(tmp_path: Path) -> None:
    assert main(["init", "--vllm-version", "v0.27.1rc1", str(tmp_path)]) == 0
    compose = yaml.safe_load((tmp_path / "understudy" / "compose.yaml").read_text())
    assert compose["services"]["vllm"]["environment"]["SIM_VLLM_VERSION"] == "0.27.1"
    (tmp_path / "understudy" / "test_version.py").write_text(VERSION_TEST, "utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "vllm_understudy.pytest_plugin"]
    done = subprocess.run(
        [*words, "understudy/test_version.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "must be a version of vLLM from 0.10" in done.stdout


@pytest.mark.node
def test_version_of_init_is_that_of_the_tests_for_node(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert main(["init", "--js", "--vllm-version", "0.27", str(tmp_path)]) == 0
    script = tmp_path / "understudy" / "agent.test.mjs"
    script.write_text(script.read_text("utf-8") + NODE_VERSION_TEST, "utf-8")
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert "# pass 2" in done.stdout, done.stdout + done.stderr


def test_init_with_an_unknown_version_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--vllm-version", "0.9", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert "must be a version of vLLM from 0.10" in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
