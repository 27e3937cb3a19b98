"""The compile sandbox: a structured output is compiled in a process that may be killed.

llguidance has limits, but none for a few patterns that must hold together: it computes for minutes, fills the
memory with 50 MB a second, and cannot be stopped from another thread. So `CompileSandbox` starts
`python -m app.llm.compile_sandbox` for each grammar that is new, with a limit of CPU time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Final

import llguidance
import msgspec

ROOT: Final = Path(__file__).parents[2]
MOST_KNOWN: Final = 1024
"""Grammars whose outcome is remembered."""
PATIENCE_S: Final = 30.0
"""Seconds until a process without an answer is killed, on a machine that is busy."""
TOO_COSTLY: Final = "it takes too long to compile"
NO_TRIAL: Final = "it could not be tried out"


class Trial(msgspec.Struct, frozen=True):
    """Input of the process."""

    tokenizer: str
    """Content of tokenizer.json."""
    vocab_size: int
    end: int
    """Token that ends a text."""
    cpu_s: float
    """Most seconds of CPU time that compiling may take."""
    grammar: str = ""
    """In llguidance's notation."""


def limits() -> llguidance.LLParserLimits:
    """Returns llguidance's usual limits; its errors show neither schema nor state."""
    return llguidance.LLParserLimits(verbose_errors=False)


class CompileSandbox:
    """Compiles grammars with `trial`'s tokenizer in processes of their own. For several threads."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._known: OrderedDict[int, str] = OrderedDict()

    def flaw(self, grammar: str) -> str:
        """Returns what is wrong with `grammar`; "" for one that compiles. Blocks until that is known."""
        key = hash(grammar)
        flaw = self._known.get(key)
        if flaw is None:
            flaw = self._compile(msgspec.structs.replace(self._trial, grammar=grammar))
            if flaw != NO_TRIAL:
                self._known[key] = flaw
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return flaw

    def _compile(self, trial: Trial) -> str:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "app.llm.compile_sandbox"],
                input=msgspec.msgpack.encode(trial),
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
                timeout=PATIENCE_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return NO_TRIAL
        if done.returncode == -signal.SIGPROF:
            return TOO_COSTLY
        return NO_TRIAL if done.returncode else done.stdout.decode("utf-8", "replace")


def main() -> None:
    """Writes what is wrong with the grammar on stdin; a signal ends the process when its time is up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    trial = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Trial)
    tokens = llguidance.LLTokenizer(trial.tokenizer, trial.vocab_size, trial.end)
    signal.setitimer(signal.ITIMER_PROF, trial.cpu_s)
    matcher = llguidance.LLMatcher(tokens, trial.grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_logit_bias()  # finds out whether a first token is left
    sys.stdout.write(str(matcher.get_error()) if matcher.is_error() else "")


if __name__ == "__main__":
    main()
