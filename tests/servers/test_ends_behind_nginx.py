"""Two servers behind nginx that end one after another: no request is lost, or as by vLLM."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.hostile.kept_clients import CLIENTS, LATENCY, asking
from tests.hostile.raw_client import Wire, ask, post, refuses, running, wait_until
from tests.hostile.waits import wait_for_status
from tests.needs import NGINX
from tests.running_server import (
    RunningServer,
    free_port,
    running_command,
    running_gunicorn,
    running_image,
)
from tests.servers.starts import as_somebody

NGINX_CONFIGURATION = """
daemon off; pid {folder}/nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    upstream servers {{
        server 127.0.0.1:{first} max_fails=0;
        server 127.0.0.1:{second} max_fails=0;
        {keepalive}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextmanager
def behind_nginx(
    tmp_path: Path, first: RunningServer, second: RunningServer, keepalive: str
) -> Iterator[int]:
    """The port of nginx, which tries the next server only where nothing has been sent."""
    port = free_port()
    ports = {"port": port, "first": first.port, "second": second.port, "keepalive": keepalive}
    file = tmp_path / "nginx.conf"
    file.write_text(NGINX_CONFIGURATION.format(folder=tmp_path, **ports))
    command = as_somebody([str(NGINX), "-c", str(file), "-e", "stderr"])
    with running_command(command, port, {}):
        yield port


@pytest.mark.nginx
@pytest.mark.parametrize("keepalive", ["keepalive 16;", ""], ids=["kept", "new"])
def test_stopping_servers_one_by_one_behind_nginx_loses_no_request(
    tmp_path: Path, keepalive: str
) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_gunicorn(env=LATENCY)) for _ in range(2))
        port = stack.enter_context(behind_nginx(tmp_path, first, second, keepalive))
        with asking(port) as clients:
            assert first.stop() == 0
            clients.wait_for_more(10 * CLIENTS)


@pytest.mark.nginx
def test_nginx_passes_on_the_500_of_a_serve_command_that_is_shutting_down(
    tmp_path: Path,
) -> None:
    """With time for running requests, nginx passes on the 500 of a server that ends."""
    serve = ("serve", "tiny", "--inter-token-latency", "20ms")
    with ExitStack() as stack:
        first = stack.enter_context(running_image(*serve, "--shutdown-timeout", "20"))
        second = stack.enter_context(running_image(*serve))
        port = stack.enter_context(behind_nginx(tmp_path, first, second, ""))
        streaming = stack.enter_context(Wire(first.port))
        events = streaming.post(ask(max_tokens=100, stream=True)).events()
        next(events)
        first.process.send_signal(signal.SIGTERM)
        wait_for_status(first.port, 503, path="/ready")
        answers = [post(port, ask()) for _ in range(10)]
        statuses = {answer.status for answer in answers}
        assert statuses == {200, 500}, "a router that does not look at /ready sends to both"
        refused = next(answer for answer in answers if answer.status == 500)
        assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        assert len(list(events)) == 99
        assert first.process.wait(10) == 0
        assert {post(port, ask()).status for _ in range(10)} == {200}


@pytest.mark.nginx
def test_serve_without_a_shutdown_timeout_fails_only_running_requests(
    tmp_path: Path,
) -> None:
    serve = ("serve", "tiny", "--inter-token-latency", "20ms")
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_image(*serve)) for _ in range(2))
        port = stack.enter_context(behind_nginx(tmp_path, first, second, ""))
        wires = [stack.enter_context(Wire(port)) for _ in range(4)]
        for wire in wires:
            wire.post(ask(max_tokens=100))
        wait_until(lambda: running(first.port) + running(second.port) == len(wires))
        on_first = running(first.port)
        first.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(first.port))
        assert {post(port, ask()).status for _ in range(10)} == {200}
        statuses = sorted(wire.answer().status for wire in wires)
        assert 0 < on_first < len(wires)
        assert statuses.count(500) == on_first and statuses.count(200) == len(wires) - on_first
        assert first.process.wait(10) == 0
