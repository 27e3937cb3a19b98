"""Prints what vLLM's own parser says about command lines of `serve`.

Runs with the Python of an oracle's environment. Reads a JSON list of words per line, and writes an
object with the exit status and the error per line. `scripts/serve_verdicts.py` compares.
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Answers each line of the standard input."""
    parser = FlexibleArgumentParser(prog="vllm")
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    [command] = cmd_init()
    command.subparser_init(subparsers)
    for line in sys.stdin:
        status = 0
        error = ""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            try:
                command.validate(parser.parse_args(["serve", *json.loads(line)]))
            except SystemExit as exit_:
                status = int(exit_.code or 0)
                error = errors.getvalue().partition("error: ")[2]
            except Exception as flaw:  # such as a missing file
                status = 1
                error = f"{type(flaw).__name__}: {flaw}"
        print(json.dumps({"status": status, "error": error.strip()}), flush=True)


if __name__ == "__main__":
    main()
