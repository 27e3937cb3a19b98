"""A server without the folder of an extension starts, and answers a chat."""

import pytest

from app.core.built_in import BUILT_IN
from scripts.removal_test import CHOSEN, choose, failure_without


@pytest.mark.parametrize("name", BUILT_IN)
def test_server_completes_a_chat_after_any_app_extension_is_removed(name: str) -> None:
    assert failure_without(name, tests=False, workers=0) is None


def test_weekly_removal_covers_every_app_extension_in_consecutive_weeks() -> None:
    weeks = -(-len(BUILT_IN) // CHOSEN)
    chosen = [choose(week) for week in range(2970, 2970 + weeks)]
    assert all(len(set(names)) == CHOSEN for names in chosen)
    assert {name for names in chosen for name in names} == set(BUILT_IN)
