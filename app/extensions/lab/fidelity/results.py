"""Output of the commands simulate and plan."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from app.extensions.lab.fidelity.job_flags import STDOUT
from app.extensions.lab.load.output_files import atomic_file


@contextmanager
def write_results(options: Namespace, figures: object, text: str) -> Iterator[ExitStack]:
    """Yields a stack for output files: either all files are written, or none.

    Afterwards prints the text, or the figures as JSON for `--json -`.
    """
    document = msgspec.json.format(msgspec.json.encode(figures)) + b"\n"
    with ExitStack() as files:
        yield files
        if options.json is not None and options.json != STDOUT:
            files.enter_context(atomic_file(options.json)).write_bytes(document)
    if options.json == STDOUT:
        print(document.decode(), end="")
    else:
        print(text)
