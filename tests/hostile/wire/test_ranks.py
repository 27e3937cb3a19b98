"""Data-parallel ranks, each a process with a port of its own; and reloads that nobody notices."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.core.server.gunicorn.healthcheck import main
from tests.hostile.raw_client import Wire, ask, get, metric, post, wait_for_value
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_worker_count
from tests.hostile.wire.test_start import start_refused
from tests.running_server import RunningServer, running_gunicorn

THREE = {
    **{"SIM_DATA_PARALLEL_SIZE": "3", "SIM_POD_NAME": "pod-a", "SIM_SEED": "7"},
    "SIM_INTER_TOKEN_LATENCY": "10ms",
}


@pytest.fixture(scope="module")
def three() -> Iterator[RunningServer]:
    """Three ranks that serve, whose number may be given as that of workers.

    Leave them as they were.
    """
    with running_gunicorn(
        "--workers", "3", env={**THREE, "WEB_CONCURRENCY": "3"}, ports=3
    ) as server:
        wait_until_healthy(ports_of(server))
        yield server


def ports_of(server: RunningServer, size: int = 3) -> list[int]:
    return [server.port + rank for rank in range(size)]


def is_healthy(port: int) -> bool:
    return get(port, "/health").status == 200


def wait_until_healthy(ports: Sequence[int]) -> None:
    for port in ports:
        wait_for_value(is_healthy, port)


def served_models(port: int) -> list[str]:
    return [model["id"] for model in get(port, "/v1/models").json()["data"]]


def worker_behind(server: RunningServer, port: int) -> int:
    """Process id of the only worker that has a listener for `port`."""
    [pid] = [pid for pid in workers_of(server) if port in listened_ports(pid)]
    return pid


def listened_ports(pid: int) -> set[int]:
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(file))
        except FileNotFoundError:
            continue
    return {port for inode, port in listening.items() if f"socket:[{inode}]" in links}


def refusals(server: RunningServer) -> list[str]:
    return [line for line in server.log().splitlines() if "ERROR" in line]


def count_refusals(server: RunningServer) -> int:
    return len(refusals(server))


def first_texts(server: RunningServer, ranks: int) -> list[str]:
    ports = ports_of(server, ranks)
    wait_until_healthy(ports)
    return [post(port, ask(max_tokens=20)).json()["choices"][0]["text"] for port in ports]


def test_killed_rank_is_restarted_on_its_port(
    three: RunningServer,
) -> None:
    """The first test of these ranks, which have said nothing before."""
    texts = first_texts(three, 3)
    assert len(set(texts)) == 3
    first, second, third = ports_of(three)
    with Wire(first).post(ask(max_tokens=150, stream=True)) as streaming:
        events = streaming.events()
        next(events)
        for port in (second, third):
            victim = worker_behind(three, port)
            os.kill(victim, signal.SIGKILL)
            # Nobody is refused: the connection waits in the backlog.
            assert post(port, ask()).status == 200
            assert worker_behind(three, port) != victim
        assert len(list(events)) == 149
    assert [metric(port, "vllm:request_success_total") for port in (first, second, third)] == [
        2,
        1,
        1,
    ]
    with running_gunicorn(env={**THREE, "SIM_DATA_PARALLEL_RANK": "2"}) as alone:
        assert first_texts(alone, 1) == texts[2:]
        assert metric(alone.port, "vllm:request_success_total", engine="2") == 1
        assert len(workers_of(alone)) == 1


def test_each_rank_has_its_own_worker_port_and_counters(three: RunningServer) -> None:
    ports = ports_of(three)
    assert len(workers_of(three)) == len({worker_behind(three, port) for port in ports}) == 3
    counts_before = [
        metric(port, "vllm:request_success_total", engine=str(rank))
        for rank, port in enumerate(ports)
    ]
    for rank, port in enumerate(ports):
        for _ in range(rank):
            assert post(port, ask(max_tokens=3)).headers["x-inference-port"] == str(port)
        lines = get(port, "/metrics").body.decode().splitlines()
        assert not [line for line in lines if "engine=" in line and f'engine="{rank}"' not in line]
    after = [metric(port, "vllm:request_success_total") for port in ports]
    assert [now - earlier for now, earlier in zip(after, counts_before, strict=True)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preload"], "preload_app"),
        (["--bind", "127.0.0.1:9000", "-b", "127.0.0.1:9001", "-b", "127.0.0.1:9003"], "bind"),
    ],
)
def test_several_ranks_reject_preloading_and_multiple_bind_addresses(
    arguments: list[str], named: str
) -> None:
    status, output = start_refused(*arguments, SIM_DATA_PARALLEL_SIZE="3")
    assert status == 1
    [error] = [line for line in output.splitlines() if line.startswith("error: ")]
    assert named in error
    assert "Traceback" not in output and "Booting worker" not in output


def test_signals_to_add_or_remove_a_worker_are_rejected_with_several_ranks(
    three: RunningServer,
) -> None:
    workers_before = set(workers_of(three))
    for refused, sent in enumerate((signal.SIGTTIN, signal.SIGTTOU), len(refusals(three)) + 1):
        three.process.send_signal(sent)
        wait_for_value(count_refusals, three, equals=refused)
        assert "must be 3, one for each rank" in refusals(three)[-1]
        assert set(workers_of(three)) == workers_before


class Reloaded:
    def __init__(self, server: RunningServer, file: Path) -> None:
        self.server = server
        self.file = file

    def reloads_to(self, model: str, **settings: Any) -> None:
        """Change the file, then SIGHUP, then wait until all ranks serve `model`."""
        write(self.file, {"served_model_name": model, **settings})
        self.server.process.send_signal(signal.SIGHUP)
        ports = ports_of(self.server, 2)
        for port in ports:
            wait_for_value(served_models, port, equals=[model])

    def refuses(self, named: str, **settings: Any) -> None:
        """Change the file, then SIGHUP:

        one error line that has `named` in it, and the same workers.
        """
        workers = set(workers_of(self.server))
        refusal_count = len(refusals(self.server))
        write(self.file, settings)
        self.server.process.send_signal(signal.SIGHUP)
        wait_for_value(count_refusals, self.server, equals=refusal_count + 1)
        [line] = refusals(self.server)[refusal_count:]
        assert "reload rejected" in line and named in line
        assert set(workers_of(self.server)) == workers
        assert self.server.process.poll() is None


def write(file: Path, settings: Mapping[str, Any]) -> None:
    """Settings of two ranks, unless another number is among them."""
    rows = {"data_parallel_size": 2, **settings}
    file.write_text("".join(f"{name.replace('_', '-')}: {value}\n" for name, value in rows.items()))


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    """Two ranks, whatever --workers says, slow streams, a short graceful timeout; the model is
    `before`.
    """
    file = tmp_path_factory.mktemp("reloaded") / "settings.yaml"
    write(file, {"served_model_name": "before"})
    env = {"SIM_CONFIG": str(file), "SIM_GRACEFUL_TIMEOUT": "1s", "SIM_INTER_TOKEN_LATENCY": "20ms"}
    with running_gunicorn("--workers=4", env=env, ports=2) as server:
        wait_until_healthy(ports_of(server, 2))
        yield Reloaded(server, file)


def test_reload_with_invalid_settings_changes_nothing(reloaded: Reloaded) -> None:
    server = reloaded.server
    reloaded.refuses("max-num-seqs", max_num_seqs=-1)
    reloaded.refuses("parsed", model="[unclosed")
    reloaded.refuses("number of ranks", data_parallel_size=3)
    reloaded.refuses("/nowhere", tokenizer="/nowhere")
    reloaded.refuses("/nowhere", ssl_certfile="/nowhere", ssl_keyfile="/nowhere")
    # A rank that is started again has the settings of its sibling, not those of the file.
    os.kill(worker_behind(server, server.port), signal.SIGKILL)
    assert [served_models(port) for port in ports_of(server, 2)] == [["before"], ["before"]]
    reloaded.reloads_to("other")
    [line] = [line for line in server.log().splitlines() if "workers=" in line]
    assert "workers=4: 2 workers serve, one for each rank: each worker is a separate server" in line


def test_streams_during_a_reload_continue_beyond_the_graceful_timeout(
    reloaded: Reloaded,
) -> None:
    server = reloaded.server
    wait_for_worker_count(server, 2)
    with Wire(server.port + 1) as streaming, Wire(server.port + 1) as staying:
        events = streaming.post(ask(max_tokens=100, stream=True)).events()
        next(events)
        next(staying.post(ask(max_tokens=4000, stream=True)).events())
        streamed_by = worker_behind(server, server.port + 1)
        reloaded.reloads_to("after")
        wait_for_worker_count(server, 3)
        assert streamed_by in workers_of(server)
        # The arbiter is not busy waiting for it: another reload, and a killed successor, are seen
        # to.
        reloaded.reloads_to("later")
        wait_for_worker_count(server, 3)
        os.kill(worker_behind(server, server.port + 1), signal.SIGKILL)
        assert post(server.port + 1, ask()).json()["model"] == "later"
        assert metric(server.port + 1, "vllm:request_success_total", engine="1") == 1
        assert len(list(events)) == 99
        assert streamed_by in workers_of(server)
    wait_for_worker_count(server, 2)
    assert "cuts" not in server.log() and "Traceback" not in server.log()
    with Wire(server.port).post(ask(max_tokens=4000, stream=True)) as streaming:
        next(streaming.events())
        reloaded.reloads_to("last")
        wait_for_worker_count(server, 3)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
    assert "is cutting off 1 requests" in server.log()


def test_health_check_queries_every_rank(
    three: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(size: int) -> int:
        return main((), {"SIM_PORT": str(three.port), "SIM_DATA_PARALLEL_SIZE": str(size)})

    assert (checked(3), checked(8)) == (0, 1)
    errors = capsys.readouterr().err
    assert f":{three.port + 7}" in errors and f":{three.port + 2}" not in errors
