"""`serve --headless`: the command waits for a signal and opens no port."""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.running_server import ROOT, free_port


def listening_ports(pid: int) -> set[int]:
    """Returns the TCP ports on which a process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = ""
        with suppress(FileNotFoundError):  # closed since the folder was read
            target = str(descriptor.readlink())
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_headless_node_opens_no_port_and_exits_on_sigterm() -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "app",
        "serve",
        "Qwen/Qwen3-0.6B",
        "--headless",
        "--port",
        str(port),
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert (
                line
                == "headless: no port is opened, and no engine runs here; waiting for SIGTERM\n"
            )
            assert listening_ports(process.pid) == set()
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", port)) != 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
