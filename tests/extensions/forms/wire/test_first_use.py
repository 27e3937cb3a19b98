"""The first use of the compiler of schemas, by many requests at once."""

import subprocess
import sys

from tests.running_server import ROOT

SCRIPT = """
from gevent import monkey

monkey.patch_all()
import sys
from importlib.abc import MetaPathFinder

import gevent

from app.extensions.forms.schema import Schemas

native_thread_id = monkey.get_original("threading", "get_ident")
threads = set()


class ThreadRecorder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        threads.add(native_thread_id())
        return None


sys.meta_path.insert(0, ThreadRecorder())
schemas = Schemas()
schema = {"type": "object", "properties": {"city": {"type": "string"}}}
compiles = [gevent.spawn(schemas.compile, schema) for _ in range(8)]
gevent.joinall(compiles, raise_error=True)
assert "jsonschema" in sys.modules
print(threads == {native_thread_id()})
"""


def test_structured_output_modules_are_imported_in_the_event_loop_thread() -> None:
    """Two native threads that import the same module under gevent can wait forever."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "True\n", done.stderr
