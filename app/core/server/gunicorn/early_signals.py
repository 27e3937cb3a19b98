"""Signals that arrive before the arbiter can handle them: `HeldSignals`.

They would end the process, or stop it, while it imports its modules or loads a model.
"""

from __future__ import annotations

import signal
from types import FrameType

HELD = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
"""Signals for a running server. Signals that end it also end its start."""


class HeldSignals:
    """The handler of signals during the start of a server.

    Attributes:
        numbers: The signals that have arrived, in the order of their first arrival.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Notes a signal."""
        if number not in self.numbers:
            self.numbers.append(number)


def hold_signals() -> None:
    """Notes the signals for a running server until the arbiter installs its handlers.

    Does nothing in an arbiter that has installed them, which reads its configuration again.
    """
    if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, signal.SIG_IGN):
        held = HeldSignals()
        for number in HELD:
            signal.signal(number, held)


def ignore_signals() -> None:
    """Ignores the signals for a running server in a process that cannot handle them.

    A program that this process becomes, and processes that it starts, ignore them, too.
    """
    for number in HELD:
        signal.signal(number, signal.SIG_IGN)
