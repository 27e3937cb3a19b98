"""Compiled parts beside an older library than they were built with."""

import subprocess
import sys
from pathlib import Path

import msgspec

from fidelity.oracle.symbols import make_optional

KNOWN = b"\0GLIBC_2.14\0"
MISSING = b"\0GLIBC_9.14\0"


def is_loaded(path: Path) -> bool:
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True)
    return done.returncode == 0


def test_compiled_part_loads_without_a_version_of_symbols_that_is_optional(tmp_path: Path) -> None:
    [compiled] = Path(msgspec.__file__).parent.glob("_core*.so")
    built = compiled.read_bytes()
    assert KNOWN in built
    path = tmp_path / "part.so"
    path.write_bytes(built.replace(KNOWN, MISSING))
    assert not is_loaded(path)
    make_optional(path, ("GLIBC_9.14",))
    assert is_loaded(path)


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "part.so"
    path.write_bytes(b"anything")
    make_optional(path, ())
    assert path.read_bytes() == b"anything"
