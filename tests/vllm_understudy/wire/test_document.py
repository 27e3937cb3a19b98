"""docs/testing.md: its tests pass, and its recipes are of the form that GitHub and GitLab read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml

import vllm_understudy
from app.core.settings import settings_table
from tests.running_server import ROOT
from tests.vllm_understudy.wire.conftest import PLUGIN_OPTIONS

BY_NAME = settings_table().by_name

PAGE = (ROOT / "docs" / "testing.md").read_text()
[TESTS, BLOCK, _, MARKED, REPLIES, SCOPE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[SCRIPT, *RECIPE_TEXTS] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
RECIPES = [yaml.safe_load(text) for text in RECIPE_TEXTS]


def test_tests_shown_in_the_documentation_pass(tmp_path: Path) -> None:
    (tmp_path / "test_client.py").write_text(TESTS)
    (tmp_path / "test_replies.py").write_text(REPLIES)
    plugin = [*PLUGIN_OPTIONS, "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *plugin, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_documented_script_answers_the_documented_test(tmp_path: Path) -> None:
    (tmp_path / "replies.yaml").write_text(SCRIPT)
    ask = REPLIES.partition("def test_")[0]
    client = "\n\ndef run_my_client(url, text):\n    return ask(Address(url), text)\n\n\n"
    address = "class Address:\n    def __init__(self, url):\n        self.base_url = url\n\n\n"
    (tmp_path / "test_script.py").write_text(f"{ask}{address}{client}{MARKED}")
    command = [sys.executable, "-m", "pytest", *PLUGIN_OPTIONS, "-p", "no:cacheprovider"]
    command += ["-c", f"{ROOT}/pyproject.toml", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_documented_example_of_a_with_block_runs() -> None:
    urls: list[str] = []
    exec(BLOCK, {"run_my_client": urls.append})
    assert urls


def test_documented_example_of_a_scope_runs_without_an_error() -> None:
    def ask_with(url: str, headers: dict[str, str]) -> None:
        body = {"prompt": "hi", "max_tokens": 1}
        assert requests.post(f"{url}/completions", json=body, headers=headers, timeout=20).ok

    exec(SCOPE, {"run_my_client": ask_with, "vllm_understudy": vllm_understudy})


def test_documented_client_methods_exist() -> None:
    documented = set(
        re.findall(r"`(\w+)(?=[(`])", PAGE.partition("## What a server can be asked")[2])
    )
    public = {name for name in vars(vllm_understudy.Server) if not name.startswith("_")}
    assert public - {"is_healthy"} <= documented


@pytest.mark.parametrize("schema", ["vendor.github-workflows", "vendor.gitlab-ci"])
def test_documented_ci_recipes_satisfy_their_schema(schema: str, tmp_path: Path) -> None:
    ours = [recipe for recipe in RECIPES if ("jobs" in recipe) == ("github" in schema)]
    assert len(ours) == 2
    files = [tmp_path / f"{k}.yml" for k in range(len(ours))]
    for file, recipe in zip(files, ours, strict=True):
        file.write_text(
            yaml.safe_dump(recipe).replace("true:", "on:")
        )  # YAML 1.1 takes that for a truth
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        schema,
        *map(str, files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def test_environment_variables_of_the_ci_recipes_are_names_of_settings() -> None:
    jobs = [recipe["jobs"]["test"] for recipe in RECIPES if "jobs" in recipe]
    services = [job.get("services", {}).get("vllm") for job in jobs]
    [variables] = [service["env"] for service in services if service]
    assert set(variables) <= {f"SIM_{name.upper().replace('-', '_')}" for name in BY_NAME}
