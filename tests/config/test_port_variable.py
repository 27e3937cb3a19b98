"""PORT, as platforms set it: gunicorn's default port, but not that of vLLM's command line."""

from collections.abc import Mapping

import pytest

from app.core.settings import load, resolve, settings_type
from config import ConfigError, Settings
from config.environment import as_environment
from vllm_facts.serve import settings_of


def loaded(*argv: str, **environ: str) -> Settings:
    return load(argv, environ, warn=pytest.fail)


def served(*argv: str, **environ: str) -> Settings:
    return resolve(settings_of(argv, environ, settings_type()), environ, warn=pytest.fail)


def test_sim_port_and_port_flag_override_the_port_variable() -> None:
    assert loaded(PORT="9001").server.port == 9001
    assert loaded(PORT="9001", SIM_PORT="9002").server.port == 9002
    assert loaded("--port", "9003", PORT="9001", SIM_PORT="9002").server.port == 9003


def test_error_for_an_invalid_port_names_the_port_variable() -> None:
    with pytest.raises(
        ConfigError, match=r"^setting port: 'web' \(environment variable PORT\) must be"
    ):
        loaded(PORT="web")


def test_serve_command_ignores_the_port_variable() -> None:
    environ: Mapping[str, str] = {"PORT": "9001"}
    assert served("model", **environ).server.port == 8000
    assert served("model", SIM_PORT="9002", **environ).server.port == 9002
    assert served("model", "--port", "9003", **environ).server.port == 9003


def test_server_started_by_the_serve_command_ignores_the_port_variable() -> None:
    environ = {"PORT": "9001"}
    flags = settings_of(["model"], environ, settings_type())
    settings = resolve(flags, environ, warn=pytest.fail)
    variables = {**environ, **as_environment(flags, settings, environ)}
    assert load((), variables, warn=pytest.fail).server.port == 8000
