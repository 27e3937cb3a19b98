"""The health check reads where a server listens, and nothing else."""

import pytest

from app.core.server.gunicorn.healthcheck import main
from tests.http_server import Handler, serving
from tests.running_server import free_port


class Healthy(Handler):
    def do_GET(self) -> None:
        self.reply(200)


def test_health_check_ignores_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    with serving(Healthy) as port:
        assert main([], {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port)}) == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"SIM_PROFILE": "auto", "SIM_DEVICE": "h100", "SIM_MODEL_CONFIG": "/nowhere.json"},
        {"SIM_PROFILE": "/nowhere.yaml"},
        # The limits of the profile make these values possible.
        {"SIM_TIMING": "steps", "SIM_MAX_MODEL_LEN": "100000"},
    ],
)
def test_health_check_command_succeeds_without_loading_the_profile(environ: dict[str, str]) -> None:
    with serving(Healthy) as port:
        address = {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port)}
        assert main([], environ | address) == 0
