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

MOST_KNOWN: Final = 1024
"""Most grammars whose result is remembered."""
PATIENCE_S: Final = 30.0
"""Seconds of real time until a process without a result is killed, as on a busy machine."""
TOO_COSTLY: Final = "it takes too long to compile"
NO_TRIAL: Final = "it could not be tried out"
MOST_ERROR: Final = 1000
"""Most characters of a compiler's error that are remembered."""
LIMITS: Final = llguidance.LLParserLimits(verbose_errors=False)
"""The defaults, without schema and state in errors."""


class CompileSandbox:
    """Compiles each grammar in a process, in at most `cpu_s` seconds of CPU time. Thread-safe.

    `tokenizer` is the content of tokenizer.json, `end` the id of the token that ends a text.
    """

    def __init__(self, tokenizer: str, vocab_size: int, end: int, cpu_s: float) -> None:
        self._given = tokenizer, vocab_size, end, cpu_s
        self._known: dict[int, str] = {}
        """Error of a grammar by its hash."""

    def flaw(self, grammar: str) -> str:
        """Returns the error of `grammar`, or "" if it compiles.

        Blocks until the result is known.
        """
        key = hash(grammar)
        if (known := self._known.get(key)) is not None:
            return known
        trial = msgspec.msgpack.encode((*self._given, grammar))
        command = [sys.executable, "-P", __file__]
        try:
            done = subprocess.run(command, input=trial, stdout=subprocess.PIPE, timeout=PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            return NO_TRIAL
        if done.returncode not in (0, -signal.SIGPROF):
            return NO_TRIAL
        flaw = TOO_COSTLY if done.returncode else done.stdout.decode("utf-8", "replace")
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = flaw
        return flaw


def main() -> None:
    """Compiles the grammar from stdin, and writes its error to stdout; SIGPROF ends the process in
    time.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    *tokenizer, cpu_s, grammar = msgspec.msgpack.decode(sys.stdin.buffer.read())
    tokens = llguidance.LLTokenizer(*tokenizer)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_logit_bias()  # finds out whether a first token is left
    sys.stdout.write(str(matcher.get_error())[:MOST_ERROR] if matcher.is_error() else "")


if __name__ == "__main__":
    main()
