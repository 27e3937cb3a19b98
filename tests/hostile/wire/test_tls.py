"""HTTPS: the files are read again when they change, and a certificate can be made at the start."""

import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import requests

from app.core.server.gunicorn.certificates import make_pair
from app.core.server.gunicorn.healthcheck import main
from tests.hostile.raw_client import PATIENCE_S, ask, http_post, wait_for_value, wait_until
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_log_count
from tests.running_server import GENERAL_WAY, RunningServer, running_gunicorn
from tests.sdks import openai

NAMES = ["localhost", "127.0.0.1"]
LONG = 4000
"""Tokens of a stream that goes on, at 5 ms a token, until its client leaves."""


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate that serves as its own authority, and its key."""

    certificate: Path
    key: Path

    def make(self) -> Self:
        """Write a new pair; each file is replaced at once, as careful tools do it."""
        for path, content in zip((self.certificate, self.key), make_pair(NAMES), strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.rename(path)
        return self

    def env(self, **settings: str) -> dict[str, str]:
        env = {"SIM_SSL_CERTFILE": str(self.certificate), "SIM_SSL_KEYFILE": str(self.key)}
        return env | {f"SIM_{name.upper()}": value for name, value in settings.items()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_in(tmp_path).make()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Files]]:
    """A server that all may ask, and its certificate."""
    files = files_in(tmp_path_factory.mktemp("tls")).make()
    fields = {"served_model_name": "tiny", "client_timeout": "500ms", "max_model_len": "200000"}
    with running_gunicorn(env=files.env(inter_token_latency="5ms", **fields)) as server:
        yield server, files
        assert not errors(server)


def files_in(folder: Path) -> Files:
    return Files(folder / "tls.crt", folder / "tls.key")


@contextmanager
def connected(port: int, context: ssl.SSLContext | None = None) -> Iterator[ssl.SSLSocket]:
    """A TLS connection; by default to whoever answers."""
    context = context or ssl._create_unverified_context()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock,
        context.wrap_socket(
            sock, server_hostname="localhost", suppress_ragged_eofs=False
        ) as secure,
    ):
        yield secure


def served_certificate(port: int) -> str:
    with connected(port) as secure:
        der = secure.getpeercert(binary_form=True)
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der)


def is_served(server: RunningServer, files: Files) -> bool:
    return served_certificate(server.port).split() == files.certificate.read_text().split()


def wait_until_served(server: RunningServer, files: Files) -> None:
    wait_for_value(is_served, server, files)


def metrics_page(server: RunningServer, files: Files) -> str:
    url = f"https://localhost:{server.port}/metrics"
    return requests.get(url, verify=str(files.certificate), timeout=PATIENCE_S).text


def posted(url: str, verify: Any, **fields: Any) -> requests.Response:
    return requests.post(
        f"{url}/v1/completions", json=ask(**fields), verify=verify, timeout=PATIENCE_S
    )


def events_of(answer: requests.Response) -> Iterator[Any]:
    for line in answer.iter_lines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def errors(server: RunningServer) -> list[str]:
    return [line for line in server.log().splitlines() if "ERROR" in line or "Traceback" in line]


@pytest.mark.openssl
def test_server_speaks_http_1_over_tls_1_2_or_newer(secure: tuple[RunningServer, Files]) -> None:
    server, files = secure
    context = ssl.create_default_context(cafile=str(files.certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with connected(server.port, context) as client:
        assert (client.selected_alpn_protocol(), client.version()) == ("http/1.1", "TLSv1.3")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with connected(server.port, context) as client:
        assert client.version() == "TLSv1.2"
    shown = subprocess.run(
        ["openssl", "s_client", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]
        + ["-connect", f"127.0.0.1:{server.port}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert shown.returncode != 0 and "protocol version" in shown.stderr


def test_health_check_command_succeeds_over_https(secure: tuple[RunningServer, Files]) -> None:
    server, files = secure
    assert main((), files.env(host="127.0.0.1", port=str(server.port))) == 0


def test_openai_sdk_streams_over_a_verified_tls_connection(
    secure: tuple[RunningServer, Files],
) -> None:
    server, files = secure
    context = ssl.create_default_context(cafile=str(files.certificate))
    with (
        openai.DefaultHttpxClient(verify=context) as transport,
        openai.OpenAI(
            base_url=f"https://localhost:{server.port}/v1",
            api_key="x",
            max_retries=0,
            http_client=transport,
            _strict_response_validation=True,
        ) as client,
    ):
        messages: Any = [{"role": "user", "content": "Say something."}]
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
        assert whole.usage is not None and whole.usage.completion_tokens == 5
        with client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=30,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            assert sum(bool(chunk.choices[0].delta.content) for chunk in stream) == 30
        with client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=LONG,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            next(chunk for chunk in stream if chunk.choices[0].delta.content)
            page = metrics_page(server, files)
            assert re.search(r"(?m)^vllm:num_requests_running\{.*\} 1\.0$", page), "it has ended"
    page = metrics_page(server, files)
    taken = "flask" if os.environ.get(GENERAL_WAY) else "fast"
    assert re.search(f'understudy_requests_total{{way="{taken}"}} [1-9]', page)


def test_stream_over_http_1_0_ends_with_close_notify(
    secure: tuple[RunningServer, Files],
) -> None:
    """An HTTP/1.0 client that knows no chunks reads until close_notify."""
    with connected(secure[0].port) as client:
        body = json.dumps(ask(max_tokens=5, stream=True)).encode()
        client.sendall(http_post("/v1/completions", body, version="1.0"))
        received = b""
        while data := client.recv(65536):  # an end without close_notify would raise
            received += data
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_renewed_certificate_is_loaded_while_streams_continue(
    tmp_path: Path,
) -> None:
    def version(name: str) -> Files:
        (tmp_path / name).mkdir()
        return files_in(tmp_path / name).make()

    first = version("..first")
    second = version("..second")
    (tmp_path / "..data").symlink_to("..first")
    linked = files_in(tmp_path)
    linked.certificate.symlink_to("..data/tls.crt")
    linked.key.symlink_to("..data/tls.key")
    with running_gunicorn(env=linked.env(inter_token_latency="20ms")) as server:
        assert is_served(server, first)
        url = f"https://localhost:{server.port}"
        fields = ask(max_tokens=200, stream=True)
        with requests.post(
            f"{url}/v1/completions", json=fields, verify=str(first.certificate), stream=True
        ) as answer:
            events = events_of(answer)
            next(events)
            (tmp_path / "..data_tmp").symlink_to("..second")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            wait_until_served(server, second)
            assert len(list(events)) == 199  # four seconds: the arbiter has looked twice, too
        assert requests.get(f"{url}/health", verify=str(second.certificate)).ok
        assert not errors(server)
        # Files that do not fit leave the old certificate, also to a worker that comes back, and one
        # error.
        _, strange_key = make_pair(NAMES)
        second.key.write_bytes(strange_key)
        wait_until(lambda: len(errors(server)) == 1)
        assert "do not belong together" in errors(server)[0]
        [worker] = workers_of(server)
        os.kill(worker, signal.SIGKILL)
        wait_until_served(server, second)
        second.make()
        wait_until_served(server, second)


def test_self_signed_certificate_is_shared_by_all_ranks(
    tmp_path: Path,
) -> None:
    env = {
        "SIM_SELF_SIGNED_CERTS": "true",
        "SIM_ALLOWED_HOSTS": "vllm.example.com,10.1.2.3",
        "SIM_DATA_PARALLEL_SIZE": "2",
        "POD_NAME": "vllm-0",
        "POD_IP": "10.9.8.7",
    }
    with running_gunicorn(env=env, ports=2) as server:
        certificate = served_certificate(server.port)
        assert served_certificate(server.port + 1) == certificate
        trusted = tmp_path / "ca.pem"
        trusted.write_text(certificate)
        assert posted(f"https://localhost:{server.port}", str(trusted)).status_code == 200
        assert posted(f"https://127.0.0.1:{server.port + 1}", str(trusted)).status_code == 200
        for name in (
            "vllm.example.com",
            "10.1.2.3",
            "vllm-0",
            "10.9.8.7",
            "::1",
            socket.gethostname(),
        ):
            assert trusts(server.port, trusted, name)
        assert not trusts(server.port, trusted, "other.example.com")
        [folder] = {
            Path(word).parent for word in server.log().split() if word.endswith("/cert.pem")
        }
        assert (folder / "cert.pem").read_text().split() == certificate.split()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
        server.process.send_signal(signal.SIGHUP)  # which does not take it away
        wait_for_log_count(server, "model: ", 2)
        assert served_certificate(server.port) == certificate
        assert server.stop() == 0
        assert not folder.exists()


def trusts(port: int, trusted: Path, name: str) -> bool:
    """A strict client that knows the server as `name` accepts the certificate."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            context.wrap_socket(sock, server_hostname=name).close()
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_clients_that_do_not_speak_tls_affect_no_other_client(files: Files) -> None:
    with running_gunicorn(env=files.env(graceful_timeout="10s")) as server:
        url = f"https://localhost:{server.port}"
        with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
            with suppress(ConnectionResetError):
                assert b"HTTP" not in plain.recv(100)
        with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)) as silent:
            socket.create_connection(("127.0.0.1", server.port)).close()
            assert posted(url, str(files.certificate)).status_code == 200
            start = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - start < 5
            silent.recv(100)  # it is told why, and that is all
            assert silent.recv(1) == b""
        assert not errors(server)


def test_client_that_reads_nothing_loses_its_stream(secure: tuple[RunningServer, Files]) -> None:
    server, files = secure
    with connected(server.port) as client:
        body = json.dumps(ask(max_tokens=150000, stream=True, n=128, temperature=1)).encode()
        client.sendall(http_post("/v1/completions", body))
        assert client.recv(10)

        def aborted() -> bool:
            page = requests.get(
                f"https://localhost:{server.port}/metrics", verify=str(files.certificate)
            )
            samples = [
                line
                for line in page.text.splitlines()
                if line.startswith("understudy_aborted_requests_total")
            ]
            return any(float(line.rpartition(" ")[2]) > 0 for line in samples)

        wait_until(aborted)
