"""The health check reads where a server listens, and nothing else."""

from pathlib import Path

import pytest

from app.core.server.gunicorn.healthcheck import environment_of_server, main
from tests.http_server import Handler, serving
from tests.running_server import ROOT, free_port


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


@pytest.mark.parametrize(
    ("configuration", "is_in_checkout", "is_ours"),
    [
        (ROOT / "gunicorn.conf.py", False, True),
        (Path("gunicorn.conf.py"), True, True),
        (Path("gunicorn.conf.py"), False, False),
        (Path("/another/gunicorn.conf.py"), False, False),
    ],
)
def test_running_server_of_this_checkout_is_found_in_any_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    configuration: Path,
    is_in_checkout: bool,
    is_ours: bool,
) -> None:
    working_folder = ROOT if is_in_checkout else tmp_path
    process = tmp_path / "proc" / "17"
    process.mkdir(parents=True)
    arguments = ("python", "-m", "gunicorn", "-c", str(configuration), "wsgi:app", "")
    (process / "cmdline").write_text("\0".join(arguments))
    (process / "environ").write_text("SIM_UDS=vllm.sock\0")
    (process / "cwd").symlink_to(working_folder)
    monkeypatch.chdir("/")
    expected = {"SIM_UDS": "vllm.sock"} if is_ours else {}
    assert environment_of_server(tmp_path / "proc") == expected
    assert Path.cwd() == (working_folder if is_ours else Path("/"))
