"""The engine's process:

one for all workers, private, started again when it dies, gone with its server.
"""

import os
import re
import signal
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import load
from app.extensions.llm.engine_process import private_folder
from config import ConfigError
from tests.extensions.llm.remote.served import SENTENCE, Peer, new_peer, served
from tests.hostile.raw_client import Wire, get, is_error, post, wait_for_value, wait_until
from tests.hostile.waits import wait_for_log, wait_for_status
from tests.running_server import RunningServer, running_gunicorn

CHATS = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    return new_peer(tmp_path / "model")


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def says(server: RunningServer, port: int | None = None) -> str:
    answer = post(port or server.port, HELLO, CHATS).json()
    return str(answer["choices"][0]["message"]["content"])


def test_engine_killed_under_load_is_replaced(
    peer: Peer,
) -> None:
    with served(peer) as server, Wire(server.port) as streaming, Wire(server.port) as waiting:
        peer.says(SENTENCE * 50, pace_s=0.05)
        events = streaming.post(HELLO | {"stream": True}, CHATS).events()
        next(events), next(events)
        waiting.post(HELLO, CHATS)
        peer.wait_for_orders(2)
        os.kill(peer.pids[0], signal.SIGKILL)
        assert get(server.port, "/health").status == 503
        is_error(post(server.port, HELLO | {"stream": True}, CHATS), 503, "Service Unavailable")
        *_, last = events
        assert (last["error"]["code"], last["error"]["type"]) == (500, "InternalServerError")
        is_error(waiting.answer(), 503, "Service Unavailable")
        wait_for_status(server.port, 200)
        peer.says(SENTENCE)
        assert says(server) == SENTENCE
        assert len(peer.pids) == 2
        assert "Traceback" not in server.log()


def test_hanging_engine_is_unhealthy_until_it_continues(peer: Peer) -> None:
    with served(peer, engine_timeout="8s") as server:
        os.kill(peer.pids[0], signal.SIGSTOP)
        wait_for_status(server.port, 503, limit_s=20)
        assert get(server.port, "/health/ready").status == 503
        is_error(post(server.port, HELLO, CHATS), 503, "Service Unavailable")
        os.kill(peer.pids[0], signal.SIGCONT)
        wait_for_status(server.port, 200)
        assert says(server) == SENTENCE
        assert len(peer.pids) == 1


def test_engine_that_hangs_too_long_is_killed_and_replaced(peer: Peer) -> None:
    with served(peer, engine_timeout="4s") as server, Wire(server.port) as streaming:
        peer.says(SENTENCE * 50, pace_s=0.05)
        events = streaming.post(HELLO | {"stream": True}, CHATS).events()
        next(events), next(events)
        os.kill(peer.pids[0], signal.SIGSTOP)
        *_, last = events
        assert (last["error"]["code"], last["error"]["type"]) == (500, "InternalServerError")
        wait_for_status(server.port, 200, limit_s=20)
        peer.says(SENTENCE)
        assert says(server) == SENTENCE
        assert len(peer.pids) == 2
        assert re.search(
            rf"The engine process \(pid {peer.pids[0]}\) has not responded for .* s. Killing it",
            server.log(),
        )
        assert "Traceback" not in server.log()


def test_replaced_worker_reconnects_to_the_shared_engine(
    peer: Peer,
) -> None:
    with served(peer, ports=2, data_parallel_size="2") as server:
        assert says(server, server.port) == says(server, server.port + 1) == SENTENCE
        children_before = children(server.process.pid) - set(peer.pids)
        os.kill(min(children_before), signal.SIGKILL)
        wait_until(lambda: bool(children(server.process.pid) - {*peer.pids, *children_before}))
        for port in (server.port, server.port + 1):
            wait_for_status(port, 200)
            assert says(server, port) == SENTENCE
        assert len(peer.pids) == 1


def test_engine_socket_is_private_and_removed_at_shutdown(peer: Peer) -> None:
    with served(peer) as server:
        [socket] = re.findall(
            r"understudy-engine-\w+", Path(f"/proc/{peer.pids[0]}/cmdline").read_text()
        )
        [folder] = Path("/tmp").glob(socket) or [Path(os.environ["TMPDIR"], socket)]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert server.stop() == 0
        assert not folder.exists()
        assert not is_alive(peer.pids[0])


def test_shutdown_lets_running_requests_finish(peer: Peer) -> None:
    peer.says(SENTENCE, pace_s=0.05)
    with served(peer) as server, Wire(server.port) as streaming:
        events = streaming.post(HELLO | {"stream": True}, CHATS).events()
        next(events)
        server.process.send_signal(signal.SIGTERM)
        *_, last = events
        assert last["choices"][0]["finish_reason"] == "stop"
        assert server.process.wait(10) == 0


def test_killed_master_process_leaves_no_engine_process(peer: Peer) -> None:
    with served(peer) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(5)
        wait_for_value(is_alive, peer.pids[0], equals=False)


def test_socket_path_that_is_too_long_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(ConfigError, match="too long for a socket path"):
        private_folder()
    assert not any(folder.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="cannot create a folder for the llm engine's socket"):
        private_folder()


def test_model_that_cannot_be_loaded_prevents_startup(peer: Peer) -> None:
    (peer.folder / "refusal").write_text("Its weights are cut off.")
    with pytest.raises(RuntimeError, match="status 1") as ended, served(peer):
        pass
    line = f"error: setting model: '{peer.folder}' cannot be used by the llm engine: Its weights are cut off."
    assert [text for text in str(ended.value).splitlines() if "error" in text.lower()][-1] == line
    assert "Traceback" not in str(ended.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mode", "echo"),
        ("timing", "steps"),
        ("lora-modules", "a=b"),
        ("max-loras", "2"),
        ("max-cpu-loras", "2"),
        ("max-lora-rank", "32"),
        ("max-tool-call-array-param-length", "9"),
        ("tool-call-extra-call-probability", "9"),
        ("time-to-first-token", "1s"),
    ],
)
def test_simulation_settings_are_rejected_with_a_real_engine(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"setting {setting}: |argument --{setting}: "):
        load(["--engine", "llm", f"--{setting}", value], {})


def test_reload_with_changed_engine_settings_is_rejected(peer: Peer, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("max-num-seqs: 4")
    with served(peer, config=str(file)) as server:
        file.write_text("max-num-seqs: 5")
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "reload rejected")
        file.write_text("max-num-seqs: 4\nenable-request-id-headers: true")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "x-request-id" in get(server.port, "/health").headers)
        wait_for_status(server.port, 200)
        assert says(server) == SENTENCE
        assert len(peer.pids) == 1


def test_missing_torch_prevents_startup_with_the_install_command(peer: Peer) -> None:
    env = {"SIM_ENGINE": "llm", "SIM_MODEL": str(peer.folder)}
    hidden = {"PYTHONPATH": str(peer.folder / "nowhere")}
    message = r"pip install -e '\.\[engine\]'"
    with pytest.raises(RuntimeError, match=message), running_gunicorn(env=env | hidden):
        pass


def children(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in listed if is_alive(int(child))}
