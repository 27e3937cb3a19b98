"""Long work gives way to others, and long calls are made beside the event loop."""

import subprocess
import sys
import textwrap

from tests.running_server import ROOT


def test_error_in_a_native_thread_is_raised_only_in_the_caller() -> None:
    program = """
    from gevent import monkey; monkey.patch_all()
    from app.core.base.clock.pause import call_off_hub
    try:
        call_off_hub(int, "x")
    except ValueError:
        print(call_off_hub(int, "7"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")
