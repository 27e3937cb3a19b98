"""What all tests of the lab share."""

from math import inf

import pytest

from workbench.load import progress


@pytest.fixture(autouse=True)
def no_progress_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars would be drawn among expected messages, where a busy machine takes a second."""
    monkeypatch.setattr(progress, "QUIET_S", inf)
