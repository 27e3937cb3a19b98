"""The end of processes that `server_template` forks."""

import atexit
import os
import sys


class ForkExit:
    """Ends a fork after all other exit handlers, without freeing its objects.

    Freeing them writes to, and so copies, every page that the fork shares with the template: half
    of the processor time of a short-lived server.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        """None in the template, and for a fork that ends by an error."""
        atexit.register(self._end)

    def _end(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)
