"""A server without the folder of an extension starts, and answers a chat."""

import pytest

from app.core.built_in import BUILT_IN
from scripts.removal_test import PASSING, choose, failure_without


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_server_without_an_extension_answers_a_chat(name: str) -> None:
    assert failure_without(name, tests=False, workers=0) is None


def test_each_commit_chooses_two_extensions_whose_tests_pass_without_them() -> None:
    chosen = {tuple(choose(f"{commit:040x}")) for commit in range(len(PASSING))}
    assert len(chosen) == len(PASSING)
    assert {name for names in chosen for name in names} == set(PASSING) <= set(BUILT_IN)
