"""Processes of the oracle's environment that make vLLM's steps."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import msgspec

from fidelity.judge_steps.load import Load, Steps
from fidelity.oracle.install import python_of
from fidelity.oracle.servers import VLLM_VARIABLES

CHECKOUT = Path(__file__).parents[2]


class VllmProcess:
    """One process, which serves one load after another."""

    def __init__(self, version: str, log: Path) -> None:
        command = [str(python_of(version)), "-m", "fidelity.judge_steps.vllm_engine"]
        variables = {
            **os.environ,
            **VLLM_VARIABLES,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(CHECKOUT),
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._log = log

    def steps(self, load: Load) -> Steps:
        """Returns the steps of a load.

        Raises:
            RuntimeError: The process ended; the text names its log.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(load) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reported below
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM's scheduler ended: see {self._log}")
        return msgspec.json.decode(line, type=Steps)

    def stop(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class VllmProcesses:
    """Several processes, which serve loads at the same time."""

    def __init__(self, version: str, count: int, folder: Path) -> None:
        self._processes = [
            VllmProcess(version, folder / f"judge-steps-{index}.log") for index in range(count)
        ]
        self._idle: SimpleQueue[VllmProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._pool = ThreadPoolExecutor(count)

    def steps(self, load: Load) -> Steps:
        """Returns the steps of a load; see `VllmProcess.steps`."""
        process = self._idle.get()
        try:
            return process.steps(load)
        finally:
            self._idle.put(process)

    def map(self, loads: Iterable[Load]) -> Iterator[Steps]:
        """Yields the steps of each load, in order."""
        return self._pool.map(self.steps, loads)

    def stop(self) -> None:
        """Ends all processes."""
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.stop()
