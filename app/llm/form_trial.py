"""Forms are tried out in a process of their own, where one that explodes holds up and harms nobody.

llguidance has no limit of its own for some of them: of a few patterns that must hold together it computes
for minutes, in gigabytes, and cannot be stopped. `python -m app.llm.form_trial` reads what it is to know of
the tokenizer, then one grammar after the other, and answers each with what is wrong with it. It ends with its
input.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Final

import llguidance
import msgspec

ROOT: Final = Path(__file__).parents[2]
MOST_KNOWN: Final = 4096
"""Grammars whose trial is remembered."""
PATIENCE_S: Final = 20.0
"""For an answer, on a machine that is busy."""
MOST_ERROR_BYTES: Final = 1000
LENGTH: Final = struct.Struct("!I")
TOO_COSTLY: Final = "it takes too long to compile"
NO_TRIAL: Final = "it could not be tried out"


class Setup(msgspec.Struct, frozen=True):
    """What a trial needs to know."""

    tokenizer: str
    """As tokenizer.json."""
    vocab_size: int
    end: int
    """The token that ends a text."""
    most_cpu_s: float
    """Of the CPU, for each grammar."""


def limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(verbose_errors=False)


def flaw_of(tokens: llguidance.LLTokenizer, grammar: str) -> str:
    """Why no text of this form can be written; empty when the first token of one is found."""
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_logit_bias()
    return str(matcher.get_error()) if matcher.is_error() else ""


class FormTrial:
    """Has a process for each thread that tries at the same time; they end when this is closed, or we do."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._idle: list[subprocess.Popen[bytes]] = []
        self._known: dict[bytes, str] = {}
        self._lock = Lock()

    def flaw(self, grammar: str) -> str:
        """What is wrong with `grammar`, in the library's notation; empty when nothing is. Waits for it."""
        digest = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            flaw = self._known.pop(digest, None)
        if flaw is None:
            try:
                flaw = self._try(grammar)
            except (OSError, EOFError):
                return NO_TRIAL
        with self._lock:
            self._known[digest] = flaw
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return flaw

    def close(self) -> None:
        """End the processes that try nothing now."""
        while self._idle:
            _end(self._idle.pop())

    def _try(self, grammar: str) -> str:
        """OSError or EOFError when there is no answer."""
        with self._lock:
            process = self._idle.pop() if self._idle else _begun(self._setup)
        try:
            flaw = self._ask(process, grammar)
        except (OSError, EOFError):
            _end(process)
            raise
        self._idle.append(process)
        return flaw

    def _ask(self, process: subprocess.Popen[bytes], grammar: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        _write(process.stdin.fileno(), grammar.encode())
        if not select.select([process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError
        return _read(process.stdout).decode("utf-8", "replace")


def _begun(setup: Setup) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "app.llm.form_trial"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdin is not None
    _write(process.stdin.fileno(), msgspec.msgpack.encode(setup))
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what was written last may never have been read
            pipe.close()  # type: ignore[union-attr]


# Frames: a length of four bytes, and as many bytes.


def _write(pipe: int, frame: bytes) -> None:
    left = memoryview(LENGTH.pack(len(frame)) + frame)
    while left:
        left = left[os.write(pipe, left) :]


def _read(pipe: IO[bytes]) -> bytes:
    """EOFError at the end."""
    (length,) = LENGTH.unpack(_exactly(pipe, LENGTH.size))
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    parts = []
    while count:
        part = pipe.read(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# The process.


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    with suppress(EOFError):
        setup = msgspec.msgpack.decode(_read(sys.stdin.buffer), type=Setup)
        tokens = llguidance.LLTokenizer(setup.tokenizer, setup.vocab_size, setup.end)
        while True:
            _try(tokens, _read(sys.stdin.buffer).decode(), setup.most_cpu_s)


def _try(tokens: llguidance.LLTokenizer, grammar: str, most_cpu_s: float) -> None:
    """In a child, which the kernel ends when it has had its time, and which says itself what it finds."""
    answer = sys.stdout.fileno()
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_PROF, most_cpu_s)  # whose signal nobody handles
        try:
            flaw = flaw_of(tokens, grammar)
        except BaseException as error:
            flaw = str(error) or NO_TRIAL
        _write(answer, flaw.encode()[:MOST_ERROR_BYTES])
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        _write(answer, TOO_COSTLY.encode())


if __name__ == "__main__":
    main()
