"""Sizes in bytes as texts of settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.settings import load
from config import ConfigError
from config.sizes import format_size, parse_size, whole_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("96MB", 96_000_000),
        ("1.5GiB", 3 << 29),
        ("163840", 163_840),
        ("2kB", 2_000),
        ("2KiB", 2_048),
        (" 7B ", 7),
        (1000, 1000),
    ],
)
def test_size_is_read_in_decimal_and_binary_units(text: object, size_bytes: int) -> None:
    assert whole_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "MB", "1XB", "1e9", "1.5.5MB", True, None, "9" * 20]
)
def test_other_texts_are_rejected(text: object) -> None:
    with pytest.raises(ValueError, match="must be a size greater than 0"):
        parse_size(text)


@given(st.integers(1, 10**15 - 1))
def test_formatted_size_is_read_as_the_same_size(size_bytes: int) -> None:
    assert whole_size(format_size(size_bytes)) == size_bytes


def test_cache_memory_is_read_from_flags_and_variables() -> None:
    assert load((), {}).server.cache_memory == 96_000_000
    assert load(("--cache-memory", "16MB"), {}).server.cache_memory == 16_000_000
    assert load((), {"SIM_CACHE_MEMORY": "1GiB"}).server.cache_memory == 1 << 30
    with pytest.raises(ConfigError, match="cache-memory.*must be a size greater than 0"):
        load(("--cache-memory", "much"), {})
