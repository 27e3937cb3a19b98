"""Proxies as they come, or as docs/proxies.md configures them, in front of our server."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.raw_client import aborts, ask, post, running, wait_until
from tests.needs import APACHE, HAPROXY, NGINX
from tests.running_server import ROOT, RunningServer, free_port, running_command, running_gunicorn
from tests.servers.starts import APACHE_HEAD, as_somebody
from tests.servers.test_matrix import SETTINGS, broken_answer, leave_stream, stream_by_token

[HAPROXY_CONFIGURATION] = re.findall(
    r"```haproxy\n(.*?)```", (ROOT / "docs" / "proxies.md").read_text("utf-8"), re.DOTALL
)
PROXIES = {
    "nginx": """
daemon off; pid {folder}/nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{server}; proxy_buffering off; }}
    }}
}}
""",
    "Apache": APACHE_HEAD
    + """
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
ProxyPass / http://127.0.0.1:{server}/
""",
    "HAProxy": HAPROXY_CONFIGURATION.replace("127.0.0.1:8080", "127.0.0.1:{port}").replace(
        "127.0.0.1:8000", "127.0.0.1:{server}"
    ),
}


@contextmanager
def proxied(proxy: str, server: RunningServer, folder: Path) -> Iterator[RunningServer]:
    """`proxy` in front of a server, with hardly a word of configuration, or with that of the page."""
    port = free_port()
    file = folder / "proxy.conf"
    modules = os.environ.get("APACHE_MODULES", "/usr/lib/apache2/modules")
    file.write_text(
        PROXIES[proxy].format(port=port, server=server.port, folder=folder, modules=modules)
    )
    if proxy == "nginx":
        command = [str(NGINX), "-c", str(file), "-e", "stderr"]
    elif proxy == "HAProxy":
        command = [str(HAPROXY), "-db", "-f", str(file)]
    else:
        command = [str(APACHE), "-f", str(file), "-DFOREGROUND"]
    with running_command(as_somebody(command), port, {}) as running_proxy:
        yield running_proxy


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_gunicorn(env=SETTINGS) as running_server:
        yield running_server


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=getattr(pytest.mark, name.lower())) for name in PROXIES],
)
def proxy(
    request: pytest.FixtureRequest, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with proxied(request.param, server, tmp_path_factory.mktemp("proxy")) as running_proxy:
        yield running_proxy


def test_proxy_forwards_a_stream_token_by_token(proxy: RunningServer) -> None:
    stream_by_token(proxy)


def test_proxy_forwards_a_non_streamed_response(proxy: RunningServer) -> None:
    assert post(proxy.port, ask(max_tokens=3)).json()["usage"]["completion_tokens"] == 3


def test_client_disconnect_at_the_proxy_frees_the_slot_of_the_request(
    proxy: RunningServer, server: RunningServer
) -> None:
    aborts_before = aborts(server.port)
    leave_stream(proxy)
    wait_until(lambda: running(server.port) == 0 and aborts(server.port) == aborts_before + 1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_proxy_aborts_a_response_that_the_server_aborts(proxy: RunningServer, stream: bool) -> None:
    """Also where the proxy speaks HTTP/1.0 to the server, as nginx did by default up to 1.29.6."""
    came, is_broken = broken_answer(proxy, stream)
    assert is_broken and came.count(b"data: ") == 3 * stream


@pytest.mark.haproxy
def test_haproxy_accepts_the_documented_configuration_without_a_warning(tmp_path: Path) -> None:
    assert "option http-no-delay" in HAPROXY_CONFIGURATION  # else tokens arrive in lumps of 200 ms
    file = tmp_path / "proxy.conf"
    file.write_text(HAPROXY_CONFIGURATION)
    done = subprocess.run([str(HAPROXY), "-c", "-dW", "-f", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
