"""A server without the folder of an extension starts, and answers a chat."""

import pytest

from app.core.built_in import BUILT_IN
from scripts.removal_test import choose, failure_without


@pytest.mark.parametrize("name", BUILT_IN)
def test_server_completes_a_chat_after_any_app_extension_is_removed(name: str) -> None:
    assert failure_without(name, tests=False, workers=0) is None


def test_removal_test_covers_every_app_extension_over_several_commits() -> None:
    chosen = {tuple(choose(f"{commit:040x}")) for commit in range(len(BUILT_IN))}
    assert len(chosen) == len(BUILT_IN)
    assert all(len(set(names)) == 2 for names in chosen)
    assert {name for names in chosen for name in names} == set(BUILT_IN)
