"""The compile sandbox: compiles a structured output in a process that can be killed.

llguidance has limits, but none for a conjunction of patterns: it then computes for minutes,
allocates 50 MB a second, and cannot be stopped from another thread. So `CompileSandbox` runs this
file for each new grammar, with a limit of CPU time.
"""

import signal
import subprocess
import sys
from typing import Final

import llguidance
import msgspec

MAX_RESULTS: Final = 1024
"""Maximum grammars whose result is remembered."""
TIMEOUT_SECONDS: Final = 30.0
"""Real time until a process without a result is killed, as on a busy machine."""
TOO_COSTLY: Final = "it takes too long to compile"
NOT_TRIED: Final = "it could not be tried out"
MAX_ERROR_LENGTH: Final = 1000
"""Maximum length of a compiler's error that is remembered."""
LIMITS: Final = llguidance.LLParserLimits(verbose_errors=False)
"""The defaults, without schema and state in errors."""


class CompileSandbox:
    """Compiles each grammar in a process, in at most `cpu_s` seconds of CPU time. Thread-safe.

    `tokenizer` is the content of tokenizer.json, `end_id` the id of the token that ends a text.
    """

    def __init__(self, tokenizer: str, vocab_size: int, end_id: int, cpu_s: float) -> None:
        self._arguments = (tokenizer, vocab_size, end_id, cpu_s)
        self._errors: dict[int, str] = {}
        """Error of a grammar by its hash."""

    def find_error(self, grammar: str) -> str:
        """Returns the error of `grammar`, or "" if it compiles.

        Blocks until the result is known.
        """
        key = hash(grammar)
        error = self._errors.get(key)
        if error is not None:
            return error
        task = msgspec.msgpack.encode((*self._arguments, grammar))
        command = [sys.executable, "-P", __file__]
        try:
            process = subprocess.run(
                command, input=task, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return NOT_TRIED
        if process.returncode == 0:
            error = process.stdout.decode("utf-8", "replace")
        elif process.returncode == -signal.SIGPROF:
            error = TOO_COSTLY
        else:
            return NOT_TRIED
        if len(self._errors) >= MAX_RESULTS:
            self._errors.clear()
        self._errors[key] = error
        return error


def main() -> None:
    """Compiles the grammar from stdin, and writes its error to stdout.

    SIGPROF ends the process when the CPU time is used up.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    *tokenizer, cpu_s, grammar = msgspec.msgpack.decode(sys.stdin.buffer.read())
    tokens = llguidance.LLTokenizer(*tokenizer)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_logit_bias()  # shows whether a first token is left
    if matcher.is_error():
        sys.stdout.write(str(matcher.get_error())[:MAX_ERROR_LENGTH])


if __name__ == "__main__":
    main()
