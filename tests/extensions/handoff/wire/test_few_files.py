"""Side channels of a server that may open few files."""

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.hostile.raw_client import get, post
from tests.running_server import free_port, running_command

MAX_FILES = 256
PEERS = 250


def test_decodes_that_name_many_peers_fail_without_noise() -> None:
    port = free_port()
    shell = f"ulimit -n {MAX_FILES}; exec {sys.executable} -m gunicorn wsgi:app"
    env = {
        "SIM_HOST": "127.0.0.1",
        "SIM_PORT": str(port),
        "SIM_ENABLE_KVCACHE": "true",
        "SIM_KV_CONNECTOR": "nixl",
        "SIM_KV_SIDE_CHANNEL_HOST": "127.0.0.1",
        "SIM_KV_SIDE_CHANNEL_PORT": str(free_port()),
    }

    def decode(number: int) -> int:
        params = {
            "do_remote_prefill": True,
            "remote_block_ids": [[1]],
            "remote_engine_id": f"e{number}",
            "remote_request_id": "r",
            "remote_host": f"127.0.0.{number}",
            "remote_port": 1,
            "tp_size": 1,
        }
        return post(port, {"prompt": "hi", "max_tokens": 1, "kv_transfer_params": params}).status

    with running_command(["/bin/sh", "-c", shell], port, env) as server:
        with ThreadPoolExecutor(200) as clients:
            statuses = set(clients.map(decode, range(1, PEERS)))
        assert statuses == {500}
        assert get(port, "/health").status == 200
        assert "Exception ignored" not in server.log()
        assert "Too many open files" not in server.log()
