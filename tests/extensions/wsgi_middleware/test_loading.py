"""Which middleware is used, and which stops the start."""

import logging
import sys
from pathlib import Path

import pytest

from app.core.settings import settings_type
from app.extensions.wsgi_middleware.loading import load_middleware, usable_middleware
from config import ConfigError
from tests.application import app_of
from tests.extensions.wsgi_middleware.examples import Tagged, tagged
from vllm_facts.serve import settings_of

EXAMPLES = "tests.extensions.wsgi_middleware.examples"


def test_last_configured_middleware_is_the_outermost() -> None:
    application = app_of(f"--middleware={EXAMPLES}.tagged", f"--middleware={EXAMPLES}.Tagged")
    client = application.test_client()
    answer = client.get("/health")
    assert (answer.status_code, answer.headers.getlist("x-tag")) == (200, ["function", "class1"])
    assert client.get("/health", headers={"X-Refuse": "yes"}).status_code == 403


def test_asgi_middleware_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"{EXAMPLES}.{name}" for name in ("Asgi", "Tagged", "of_fastapi", "tagged")]
    with caplog.at_level(logging.WARNING):
        assert usable_middleware(names) == [Tagged, tagged]
    asgi_names = [names[0], names[2]]
    for record, name in zip(caplog.records, asgi_names, strict=True):
        assert f"middleware {name} is ASGI" in record.message


def test_middleware_that_needs_a_missing_asgi_package_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "of_an_asgi_user.py").write_text("import starlette\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "starlette", None)
    with caplog.at_level(logging.WARNING):
        assert usable_middleware(["of_an_asgi_user.Auth"]) == []
    assert "of_an_asgi_user.Auth is not used because it requires a package for ASGI" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Tagged", "must have the form MODULE.NAME"),
        ("no.such.module.Class", "cannot import no.such.module.Class: ModuleNotFoundError"),
        (f"{EXAMPLES}.Missing", "AttributeError"),
        (f"{EXAMPLES}.NUMBER", "Must be a function or a class."),
    ],
)
def test_unusable_middleware_name_is_rejected(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_middleware(name)


def test_each_middleware_of_a_serve_command_is_added() -> None:
    words = ["m", "--middleware", "a.B", "--middleware", "c.D"]
    assert settings_of(words, {}, settings_type()).values["middleware"] == ["a.B", "c.D"]
