"""Backends that simulate the fleets of a plan: local processes, or a Dask cluster."""

import logging
import os
import socket
import sys
import warnings
from argparse import Namespace
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from config import ConfigError
from config.declaration import install, missing
from workbench.load.loads import LoadTrace
from workbench.plan.plan_flags import DASK
from workbench.plan.runs import RunFleets, run_fleet
from workbench.plan.slo import Slo, Verdict
from workbench.runs.job import Job
from workbench.runs.workers import exit_with_parent

DASK_LOGGERS = ("distributed", "distributed.client", "tornado.application")
"""Loggers that print tracebacks when a scheduler dies; tornado's does so while an answer is on its
way.
"""
CONNECT_TIMEOUT_S = 10.0
WARNINGS = "PYTHONWARNINGS"
"""Variable with the filters of warnings of a Python process."""


@contextmanager
def _without_warnings_of_processes() -> Iterator[None]:
    """Silences processes that start meanwhile: an interrupt removes files before they do."""
    earlier = os.environ.get(WARNINGS)
    os.environ[WARNINGS] = "ignore"
    try:
        yield
    finally:
        del os.environ[WARNINGS]
        if earlier is not None:
            os.environ[WARNINGS] = earlier


@contextmanager
def fleet_runner(options: Namespace) -> Iterator[RunFleets]:
    """Yields a function that simulates fleets with the backend of the flags.

    Raises:
        ConfigError: A process ended, or the cluster failed.
    """
    if options.backend is None and missing("plan"):
        if options.processes > 1:
            print(
                f"plan simulates in one process; for {options.processes}: {install('plan')}",
                file=sys.stderr,
            )
        yield _run_here
        return
    joblib = import_module("joblib")
    try:
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about runs that are left when one fails
            stack.enter_context(_without_warnings_of_processes())
            config: dict[str, Any] = {
                "backend": "loky",
                "initializer": exit_with_parent,
                "initargs": (os.getpid(),),
            }
            if options.backend is not None:
                config = {
                    "backend": "dask",
                    "client": stack.enter_context(_connect(options.backend)),
                }
            stack.enter_context(joblib.parallel_config(**config))
            parallel = stack.enter_context(
                joblib.Parallel(n_jobs=options.processes, return_as="generator")
            )

            def run_fleets(
                fleets: Iterable[tuple[LoadTrace, Job, Slo]],
            ) -> Generator[Verdict, None, None]:
                verdicts: Generator[Verdict, None, None] = parallel(
                    joblib.delayed(run_fleet)(*fleet) for fleet in fleets
                )
                return verdicts

            yield run_fleets
    except BrokenExecutor as error:
        raise ConfigError(
            f"a process started by --processes exited: {str(error).partition('.')[0]}"
        ) from None
    except Exception as error:
        if options.backend is None or isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--backend {DASK}{options.backend}: {type(error).__name__}: {error}"
        ) from None


def _run_here(
    fleets: Iterable[tuple[LoadTrace, Job, Slo]],
) -> Generator[Verdict, None, None]:
    """Simulates fleets in this process, one after another."""
    return (run_fleet(*fleet) for fleet in fleets)


def _connect(address: str) -> Any:
    """Returns a client of the Dask scheduler at `address`."""
    distributed = import_module("distributed")
    for name in DASK_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # errors come as exceptions
    host, _, port = address.rpartition(":")
    # A scheduler speaks first. The client would wait for another server without end.
    with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S) as probe:
        probe.recv(1)
    return distributed.Client(f"tcp://{address}", timeout=CONNECT_TIMEOUT_S)
