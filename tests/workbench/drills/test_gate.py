"""Gates in front of pods: what passes in each state, and which requests are noted."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import gevent
import gevent.socket
import pytest

from app.shared.http_client import exchange
from tests import stubs
from workbench.drills.gate import Attempt, Gate
from workbench.fleet.processes import FleetError, Processes

COMPLETIONS = "/v1/completions"
BODY = b'{"user": "drill-000007"}'
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
STILL_S = 0.05
"""Time in which nothing must come; what came wrongly would fail the test, never the load."""


@contextmanager
def gate_before(application: Callable[..., object]) -> Iterator[tuple[Gate, list[Attempt]]]:
    """An open gate in front of a pod, and what it notes."""
    attempts: list[Attempt] = []
    processes = Processes()
    with stubs.serving(application) as address:
        gate = Gate(
            3,
            processes.port(),
            int(address.rpartition(":")[2]),
            now=float,
            note=attempts.append,
        )
        gate.open()
        try:
            yield gate, attempts
        finally:
            gate.close()
            processes.close()


def connect(gate: Gate) -> gevent.socket.socket:
    return gevent.socket.create_connection(("127.0.0.1", gate.port), stubs.PATIENCE_S)


def read_answer(sock: gevent.socket.socket) -> bytes:
    """The whole answer of `stubs.Pod("one")`."""
    received = b""
    while not received.endswith(b"\r\n\r\none"):
        piece = sock.recv(4096)
        assert piece, received
        received += piece
    return received


def ids(attempts: list[Attempt]) -> list[str]:
    return [attempt.request_id for attempt in attempts]


def test_open_drill_proxy_forwards_requests_and_records_their_ids() -> None:
    with gate_before(stubs.Pod("one")) as (gate, attempts):
        status, text = exchange(gate.address, "POST", COMPLETIONS, BODY)
        assert (status, text) == (201, b"one")
        assert attempts == [Attempt("drill-000007", 3, 0.0)]
        assert not gate.probed.is_set()
        exchange(gate.address, "GET", "/health")
        assert gate.probed.is_set()
        assert len(attempts) == 1


def test_request_id_is_recorded_once_even_if_it_arrives_in_pieces() -> None:
    with gate_before(stubs.Pod("one")) as (gate, attempts):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        with closing(connect(gate)) as sock:
            for name in (b"drill-000001", b"drill-000001", b"drill-000002"):
                sock.sendall(head + b"x-request-id: " + name[:9])
                gevent.sleep(0)
                sock.sendall(name[9:] + b"\r\nx-again: " + name + b"\r\n\r\n{}")
                assert b"201 Created" in read_answer(sock)
        assert ids(attempts) == ["drill-000001", "drill-000001", "drill-000002"]


def test_closed_drill_proxy_breaks_all_connections_until_it_reopens() -> None:
    with gate_before(stubs.Pod("one")) as (gate, attempts):
        with closing(connect(gate)) as sock:
            sock.sendall(HEALTH)
            assert b"201 Created" in read_answer(sock)
            gate.close()
            with pytest.raises(OSError), gevent.Timeout(stubs.PATIENCE_S):
                if not sock.recv(4096):
                    raise ConnectionResetError
        with pytest.raises(ConnectionRefusedError):
            exchange(gate.address, "GET", "/health")
        gate.open()
        assert exchange(gate.address, "GET", "/health")[0] == 201


def test_partitioned_drill_proxy_holds_requests_until_the_partition_ends() -> None:
    pod = stubs.Pod("one")
    with gate_before(pod) as (gate, attempts):
        gate.cut()
        request = gevent.spawn(exchange, gate.address, "POST", COMPLETIONS, BODY)
        gevent.sleep(STILL_S)
        assert not pod.asked
        assert not attempts
        gate.heal()
        assert request.get(timeout=stubs.PATIENCE_S) == (201, b"one")
        assert ids(attempts) == ["drill-000007"]


def test_stuck_engine_answers_health_checks_but_holds_generated_data() -> None:
    pod = stubs.Pod("one")
    with gate_before(pod) as (gate, _):
        gate.hold_answers()
        request = gevent.spawn(exchange, gate.address, "POST", COMPLETIONS, BODY)

        def has_request() -> bool:
            return bool(pod.asked)

        stubs.eventually(has_request)
        assert exchange(gate.address, "GET", "/health")[0] == 201
        assert not request.ready()
        gate.pass_answers()
        assert request.get(timeout=stubs.PATIENCE_S) == (201, b"one")


def test_occupied_drill_proxy_port_is_reported_in_one_line() -> None:
    with gate_before(stubs.Pod("one")) as (gate, _):
        second = Gate(5, gate.port, 1, now=float, note=print)
        with pytest.raises(FleetError, match=f"port {gate.port} of pod 5: Address already in use"):
            second.open()
        second.close()


def test_open_drill_proxy_breaks_connections_to_a_stopped_pod() -> None:
    processes = Processes()
    gate = Gate(0, processes.port(), processes.port(), now=float, note=print)
    gate.open()
    try:
        with pytest.raises(OSError):
            exchange(gate.address, "GET", "/health")
    finally:
        gate.close()
        processes.close()
