"""gunicorn's command-line flags take precedence over equivalent settings."""

import json
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from tests.hostile.raw_client import Wire, ask, get, post, wait_until
from tests.hostile.waits import wait_for_log
from tests.running_server import running_gunicorn

LINE = re.compile(
    r"^127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "
    r'"(\S+ \S+ HTTP/1\.1)" 200 (\d+) "-" "-"$'
)
"""As gunicorn documents --access-logformat."""
REQUESTS = ["GET /version?a=b", "GET /ping", "POST /v1/completions"]
"""One for each way: Flask, probe and fast path."""


def exchange(port: int) -> list[int]:
    """Send all three; the lengths of their answers."""
    answers = [get(port, "/version?a=b"), get(port, "/ping"), post(port, ask())]
    assert [answer.status for answer in answers] == [200] * 3
    return [len(answer.body) for answer in answers]


def access_lines(text: str) -> list[tuple[str, int]]:
    """Request line and bytes of each line but those of the wait for the start."""
    matches = [LINE.match(line) for line in text.splitlines()]
    requests_logged = [(match[1], int(match[2])) for match in matches if match is not None]
    return [line for line in requests_logged if "/health" not in line[0]]


def expected(lengths: list[int]) -> list[tuple[str, int]]:
    return [
        (f"{request} HTTP/1.1", length) for request, length in zip(REQUESTS, lengths, strict=True)
    ]


def test_gunicorn_flags_enable_log_files_and_statsd_metrics(
    tmp_path: Path,
) -> None:
    access = tmp_path / "access.log"
    errors = tmp_path / "errors.log"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(20)
        flags = (
            "--access-logfile",
            str(access),
            "--error-logfile",
            str(errors),
            "--log-level",
            "warning",
        )
        flags += (
            "--statsd-host",
            f"127.0.0.1:{statsd.getsockname()[1]}",
            "--statsd-prefix",
            "mock",
        )
        env = {"SIM_ACCESS_LOG": "true", "SIM_LOG_LEVEL": "debug", "SIM_LOG_FORMAT": "json"}
        with running_gunicorn(*flags, "--dogstatsd-tags", "a:b", env=env) as server:
            assert b"mock.gunicorn.workers:1|g|#a:b" in heard(statsd, b"gunicorn.workers")
            statsd.setblocking(False)
            with suppress(BlockingIOError):  # of the wait for the start, whenever that was told
                while statsd.recv(4096):
                    pass
            statsd.settimeout(20)
            lengths = exchange(server.port)
            for _ in REQUESTS:
                packets = heard(statsd, b"request.status.200")
                assert any(
                    re.match(rb"mock\.gunicorn\.request\.duration:[\d.]+\|ms", packet)
                    for packet in packets
                )
                assert b"mock.gunicorn.requests:1|c|@1.0|#a:b" in packets
            wait_until(lambda: len(access_lines(access.read_text())) == 3)
            assert access_lines(access.read_text()) == expected(lengths)
            with Wire(server.port) as wire:
                assert wire.send(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n").answer().status == 400
            assert server.log() == ""
            [line] = map(json.loads, errors.read_text().splitlines())
            assert (line["level"], line["logger"]) == ("WARNING", "server")
            errors.rename(tmp_path / "errors.1")
            server.process.send_signal(signal.SIGUSR1)  # as logrotate does
            wait_until(errors.exists)


def heard(statsd: socket.socket, last: bytes) -> list[bytes]:
    """What comes, up to the first that tells of `last`."""
    packets = [statsd.recv(4096)]
    while last not in packets[-1]:
        packets.append(statsd.recv(4096))
    return packets


def test_syslog_receives_all_logs_with_any_gunicorn_logger_class() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(20)
        where = f"udp://127.0.0.1:{syslog.getsockname()[1]}"
        for arguments in ((), ("--logger-class", "gunicorn.glogging.Logger")):
            with running_gunicorn("--log-syslog", "--log-syslog-to", where, *arguments) as server:
                assert any(
                    b"gunicorn.wsgi.app.error: " in packet
                    for packet in heard(syslog, b"Listening at")
                )
                exchange(server.port)
                for request in REQUESTS:
                    assert b"gunicorn.wsgi.app.access: " in heard(syslog, request.encode())[-1]
                assert "Traceback" not in server.log()


def test_pidfile_contains_the_arbiter_pid_until_the_server_exits(tmp_path: Path) -> None:
    pidfile = tmp_path / "server.pid"
    with running_gunicorn("--pid", str(pidfile)) as server:
        assert int(pidfile.read_text()) == server.process.pid
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "Hang up: Master")
        assert post(server.port, ask()).status == 200
        assert int(pidfile.read_text()) == server.process.pid
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert not pidfile.exists()
