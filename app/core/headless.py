"""A node of vLLM that runs engines only (`serve --headless`).

The node opens no port and waits for a signal.
"""

import signal
import sys


def run() -> int:
    """Blocks until SIGTERM or SIGINT. Returns the exit status."""
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    print(
        "headless: no port is opened, and no engine runs here; waiting for SIGTERM", file=sys.stderr
    )
    signal.sigwait(ending)
    return 0
