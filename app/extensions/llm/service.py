"""The engine process, which workers share: `python -m app.extensions.llm.service OPTIONS`.

OPTIONS are `EngineProcessOptions` as JSON. Workers send the orders of `app.extensions.llm.wire`
over ZMQ, and get one message each after each step. The process ends with its parent, on SIGTERM, or
with status 1 on an error. The socket is bound, and orders wait, while torch and the model are
loaded.
"""

import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Final

import msgspec
import zmq

from app.extensions.llm.errors import LLMError
from app.extensions.llm.heartbeat import DUMP_STACKS_SIGNAL, Heartbeat
from app.extensions.llm.llama_cpp.package import may_compute
from app.extensions.llm.threads import wait_shortly
from app.extensions.llm.wire import CommandResult, EngineProcessOptions
from config.declaration import install
from config.untrusted import UntrustedDataError, decode_untrusted

PARENT_CHECK_SECONDS: Final = 0.5
"""Time between two checks for the parent."""
SHUTDOWN_SECONDS: Final = 10.0
"""Maximum time of an orderly shutdown when the parent is gone."""
MAX_MESSAGE_BYTES: Final = 64 << 20
"""Maximum size of a message; a larger one ends the connection."""
MAX_QUEUED_MESSAGES: Final = 10_000
"""Maximum messages, one a step, that wait for a worker that does not read."""
LINGER_MS: Final = 500
"""Time on close to send the last notices."""

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Runs the process and returns its exit status."""
    try:
        options = decode_untrusted(argv[0] if argv else "", type=EngineProcessOptions)
    except UntrustedDataError as error:
        print(f"error: invalid options of the engine: {error}", file=sys.stderr)
        return 1
    logging.basicConfig(
        level=options.log_level, format="%(asctime)s [engine %(process)d] %(message)s"
    )
    if options.parent_pid is not None:
        if os.getppid() != options.parent_pid:  # the parent ended before this process started
            remove_socket(options.endpoint)
            return 1
        # A terminal sends Ctrl-C to all processes; the parent ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        arguments = (options.parent_pid, options.endpoint)
        Thread(target=end_with_parent, args=arguments, daemon=True).start()
    try:
        return serve(options)
    except (LLMError, zmq.ZMQError) as error:
        logger.error("%s", error)
    except ModuleNotFoundError as error:
        logger.error("%s: %s", error, install("engine"))
    except Exception:
        logger.exception("the engine has failed")
    return 1


def bind(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    queued_messages: int = MAX_QUEUED_MESSAGES,
) -> zmq.Socket[bytes]:
    """Returns the socket to all workers.

    Raises:
        zmq.ZMQError: The `endpoint` cannot be bound.
    """
    socket = context.socket(zmq.ROUTER)
    socket.router_mandatory = 1  # sending to a worker that has left is an error
    socket.sndhwm = queued_messages
    socket.maxmsgsize = MAX_MESSAGE_BYTES
    socket.linger = LINGER_MS
    socket.bind(endpoint)
    return socket


def serve(options: EngineProcessOptions) -> int:
    """Loads the model, while orders of workers wait, and serves it until SIGTERM.

    Returns the exit status.
    """
    started = time.monotonic()
    with zmq.Context() as context, bind(context, options.endpoint) as socket:
        wait_shortly(os.environ, is_llama_cpp=may_compute(options.model))
        from app.extensions.llm.starting import start_service  # and torch, which takes a second

        try:
            service = start_service(options, socket)
        except LLMError as error:
            if not socket.poll(0):
                raise
            result = msgspec.msgpack.encode([CommandResult(number=0, error=str(error))])
            while socket.poll(0):  # workers that have sent a `Hello`
                socket.send_multipart([socket.recv_multipart()[0], result])
            return 1

        def stop(signal_number: int, frame: FrameType | None) -> None:
            service.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, stop)
        faulthandler.register(DUMP_STACKS_SIGNAL, all_threads=True)
        logger.info("%s became ready after %.1f s", options.model, time.monotonic() - started)
        service.run()
    return 0


def remove_socket(endpoint: str) -> None:
    """Removes the socket, and its folder if empty, in place of the parent that created both."""
    Heartbeat(endpoint).stop()
    with suppress(OSError):
        socket = Path(endpoint.removeprefix("ipc://"))
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()


def end_with_parent(parent_pid: int, endpoint: str) -> None:
    """Ends this process soon after its parent, and removes the socket."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_SECONDS)
    remove_socket(endpoint)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SHUTDOWN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)  # without waiting for structured outputs that are still being compiled
