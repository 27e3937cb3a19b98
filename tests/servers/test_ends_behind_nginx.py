"""Two servers behind nginx that end one after another: no request is lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.kept_clients import CLIENTS, LATENCY, asking
from tests.hostile.raw_client import Wire, wait_until
from tests.needs import NGINX
from tests.running_server import free_port, running_command, running_gunicorn
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
        }}
    }}
}}
"""


@pytest.mark.nginx
@pytest.mark.parametrize("keepalive", ["keepalive 16;", ""], ids=["kept", "new"])
def test_servers_that_end_one_after_another_behind_nginx_lose_no_request(
    tmp_path: Path, keepalive: str
) -> None:
    """nginx tries the next server only where nothing has been sent, as by default."""
    port = free_port()
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_gunicorn(env=LATENCY)) for _ in range(2))
        ports = {"port": port, "first": first.port, "second": second.port, "keepalive": keepalive}
        file = tmp_path / "nginx.conf"
        file.write_text(NGINX_CONFIGURATION.format(folder=tmp_path, **ports))
        command = as_somebody([str(NGINX), "-c", str(file), "-e", "stderr"])
        stack.enter_context(running_command(command, port, {}))
        with asking(lambda: Wire(port)) as clients:
            assert first.stop() == 0
            before = clients.answered
            wait_until(lambda: clients.answered > before + 10 * CLIENTS)
