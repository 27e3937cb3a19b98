"""Starts that are refused when the application is built."""

import pytest

from config.declaration import ConfigError
from tests.application import app_of


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ('{"name":"a","base_model_name":"another"}', "is for another model ('another')"),
        ('{"path":"a"}', "is no adapter"),
        ('{"name":""}', "has no name"),
        ("{", "is no adapter"),
        ("base=x", "is already a name for the base model"),
        ("foo", "is no adapter"),
        ("a=b,c=d", "is no adapter"),
    ],
)
def test_invalid_adapter_prevents_startup(module: str, line: str) -> None:
    with pytest.raises((SystemExit, ConfigError), match="setting lora-modules:") as caught:
        app_of("--model", "base", "--force-dummy-tokenizer", "--lora-modules", module)
    assert line in str(caught.value)
