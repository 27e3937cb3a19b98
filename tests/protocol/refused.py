"""What a refusal tells its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.serving.http.errors import ApiError


def refused(action: Callable[[], Any]) -> tuple[int, str, str | None]:
    """Status, type and field of the error that an action must end with."""
    with pytest.raises(ApiError) as caught:
        action()
    return caught.value.status, caught.value.type, caught.value.param
