"""Files of strangers name no further files of the machine, and modules of theirs are notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check
from tests.workbench.opened_files import no_file_is_opened_in

MODEL = "Qwen/Qwen3-8B"


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the working folder."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "config.json").write_text('{"max_position_embeddings": 99}')
    (folder / "vllm.yaml").write_text("max-num-seqs: 99\n")
    return folder


@pytest.mark.parametrize("name", ["SECRETS/vllm.yaml", "link.yaml"])
def test_configuration_outside_of_the_checkout_is_not_opened(
    secrets: Path, tmp_path: Path, check: Check, name: str
) -> None:
    name = name.replace("SECRETS", str(secrets))
    (tmp_path / "link.yaml").symlink_to(secrets / "vllm.yaml")
    (tmp_path / "run.sh").write_text(f"vllm serve {MODEL} --config {name}\n")
    with no_file_is_opened_in(secrets):
        [finding] = check("run.sh")
    assert finding["code"] == "F501"
    assert f"{name} is outside of the folder" in finding["message"]


def test_file_with_the_name_of_the_command_line_is_a_file(
    secrets: Path, tmp_path: Path, check: Check
) -> None:
    text = f"vllm serve {MODEL} --config {secrets / 'vllm.yaml'}"
    (tmp_path / "<command line>").write_text(text + "\n")
    with no_file_is_opened_in(secrets):
        assert [each["code"] for each in check("'<command line>'")] == ["F501"]
    (tmp_path / "<command line>").unlink()
    assert check(f"-- {text}") == []


def test_configuration_of_the_checkout_is_read(tmp_path: Path, check: Check) -> None:
    (tmp_path / "vllm.yaml").write_text("max-num-sqs: 8\nmax-num-seqs: 8\n")
    (tmp_path / "run.sh").write_text(f"vllm serve {MODEL} --config vllm.yaml\n")
    assert [each["code"] for each in check("run.sh")] == ["O101"]


@pytest.mark.parametrize("name", ["SECRETS", "./link", "./folder"])
def test_model_outside_of_the_checkout_is_not_opened(
    secrets: Path, tmp_path: Path, check: Check, name: str
) -> None:
    name = name.replace("SECRETS", str(secrets))
    (tmp_path / "link").symlink_to(secrets)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").symlink_to(secrets / "config.json")
    (tmp_path / "run.sh").write_text(f"vllm serve {name} --max-model-len 100\n")
    with no_file_is_opened_in(secrets):
        findings = check("run.sh")
    assert [each["code"] for each in findings] == ["F501"]
    assert "--model-config" in findings[0]["fix"]
    typed = check(f"-- vllm serve {name} --max-model-len 100")
    assert [each["code"] for each in typed] == ["D403"]


def test_module_of_a_deployment_is_a_note(tmp_path: Path, check: Check) -> None:
    (tmp_path / "run.sh").write_text(f"vllm serve {MODEL} --middleware a.B --worker-cls c.D\n")
    findings = check("run.sh")
    assert [each["code"] for each in findings] == ["F504", "F504"]
    assert [each["column"] for each in findings] == [26, 43]
    assert "imports a.B" in findings[0]["message"]
