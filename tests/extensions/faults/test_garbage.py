"""Faults leave no cyclic garbage behind."""

import pytest

from tests.application import app_of
from tests.core.engine.test_garbage import CHAT, MESSAGES, call, leftovers


@pytest.mark.parametrize("fault", ["error", "rate-limit; rate=1", "truncate", "malformed-chunk"])
def test_injected_fault_leaves_no_cyclic_garbage(fault: str) -> None:
    app = app_of("--force-dummy-tokenizer")
    body = {"messages": MESSAGES, "stream": True}
    assert leftovers(lambda: call(app, CHAT, body, HTTP_X_FAULT=fault)) < 1
