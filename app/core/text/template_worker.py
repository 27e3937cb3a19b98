"""The template process: renders conversations with untrusted templates, until its socket closes.

A template can allocate or compute without end, and Python cannot interrupt `'a' * 10**9`. So this
process has a memory limit, and the kernel ends it when a template takes too much processor time. It
runs at a low priority: other requests come first. `template_process` starts it.
"""

import os
import resource
import signal
import socket
import sys
from datetime import datetime

import msgspec

from app.core.text.base import TokenizerInputError
from app.core.text.compiled_template import ChatTemplateCompiler
from app.core.text.template_protocol import (
    LENGTH,
    RenderAnswer,
    RenderRequest,
    prompt_limit,
    read_request,
)

NICENESS = 5
MEMORY_PER_REQUEST_BYTE = 10
"""Bytes of memory for each byte of a request, in addition to the limit."""
MAX_ERROR_LENGTH = 2_000
"""Maximum length of an error, in characters."""
MAX_COMPILERS = 16
"""Maximum number of compilers, one for each kind of templates (special tokens and media)."""


class TemplateWorker:
    """Renders requests. `memory_bytes` limits the address space of the process."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._compilers: dict[tuple[object, ...], ChatTemplateCompiler] = {}
        self._now = datetime.min

    def answer(self, data: bytes) -> RenderAnswer:
        """Returns the answer to the request in `data`."""
        limit_bytes = self._memory_bytes + MEMORY_PER_REQUEST_BYTE * len(data)
        _, hard_limit_bytes = resource.getrlimit(resource.RLIMIT_AS)
        if hard_limit_bytes != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, hard_limit_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard_limit_bytes))
        try:
            prompt = self._render(read_request(data)).encode("utf-8", "surrogatepass")
        except TokenizerInputError as error:
            is_last = isinstance(error.__cause__, MemoryError)
            return RenderAnswer(
                error=str(error)[:MAX_ERROR_LENGTH], param=error.param, is_last=is_last
            )
        except MemoryError:
            return RenderAnswer(error="The chat template requires too much memory.", is_last=True)
        if len(prompt) > prompt_limit(len(data)):
            return RenderAnswer(
                error=f"The chat template makes a prompt of {len(prompt)} bytes: too long."
            )
        return RenderAnswer(prompt=prompt)

    def _request_time(self) -> datetime:
        return self._now

    def _render(self, request: RenderRequest) -> str:
        self._now = request.now
        key = (*sorted(request.special_tokens.items()), request.takes_media)
        compiler = self._compilers.get(key)
        if compiler is None:
            if len(self._compilers) >= MAX_COMPILERS:
                self._compilers.clear()
            compiler = self._compilers[key] = ChatTemplateCompiler(
                request.special_tokens,
                now=self._request_time,
                takes_media=request.takes_media,
            )
        return compiler.compile(request.source).render(request.messages, request.options)


def main(arguments: list[str]) -> None:
    """Answers requests on the socket that is the standard input.

    The arguments are the limits of processor time in seconds and of memory in bytes.
    """
    cpu_s = float(arguments[0])
    worker = TemplateWorker(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    connection = socket.socket(fileno=0)
    connection.setblocking(True)
    with connection, connection.makefile("rb") as requests:
        while True:
            head = requests.read(LENGTH.size)
            if not head:
                break
            data = requests.read(LENGTH.unpack(head)[0])
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process in time
            answer = worker.answer(data)
            signal.setitimer(signal.ITIMER_PROF, 0)
            encoded = msgspec.msgpack.encode(answer)
            connection.sendall(LENGTH.pack(len(encoded)) + encoded)
            if answer.is_last:
                break


if __name__ == "__main__":
    main(sys.argv[1:])
