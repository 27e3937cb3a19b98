"""Models that the README, the manifests and the workflows name start in a checkout."""

import re
from pathlib import Path

import pytest

from app.core.settings import settings_type
from vllm_facts.serve import settings_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("README.md", "docker-compose.yml", "Dockerfile", "action.yml"),
    *("docs/**/*.md", "deploy/**/*.yaml", "deploy/**/*.yml", "examples/**/*.y*ml"),
    *(".github/workflows/*.yml", "vllm_understudy/**/*.py", "tests/**/*.py"),
)
NAME = re.compile(
    r"(?:\bserve |--model[ =]|\bSIM_MODEL: |\bmodel: )[\"']?([\w][\w.-]*(?:/[\w.-]+)?)"
)
NOT_NAMES = ("accepts", "uses", "reads", "the")
"""Words after `serve` in sentences."""


def names() -> set[str]:
    found: set[str] = set()
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            found.update(NAME.findall(path.read_text("utf-8", errors="replace")))
    return {name.rstrip(".") for name in found} - set(NOT_NAMES)


@pytest.mark.parametrize("name", sorted(names()))
def test_name_that_the_repository_uses_is_not_a_folder_without_a_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert settings_of([name], {}, settings_type()).values["model"]
