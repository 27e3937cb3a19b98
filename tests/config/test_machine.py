"""The memory that cgroups of both versions leave to a process."""

from pathlib import Path

import pytest

from config.cores import cgroup_cores
from config.machine import resident_bytes, usable_memory
from config.sections.server import ServerSettings

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": "2147483648\n", "a/b/memory.max": "max\n"}, 2 * GIB),
        ("0::/a/b\n", {"a/memory.max": "2147483648\n", "a/b/memory.max": "1073741824\n"}, GIB),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "1073741824\n"}, GIB),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "1073741824\n"}, GIB),
        ("4:cpu:/x\n", {"cpu/x/memory.limit_in_bytes": "1073741824\n"}, None),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("nonsense\n", {"memory.max": "1073741824\n"}, None),
    ],
)
def test_memory_is_the_least_limit_of_the_cgroups_and_the_machine(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    write(tmp_path / "groups", groups)
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    machine_bytes = usable_memory(tmp_path / "root", tmp_path / "absent")
    assert machine_bytes > GIB
    memory = usable_memory(tmp_path / "root", tmp_path / "groups")
    assert memory == (expected or machine_bytes)


def test_cores_are_read_from_the_same_groups(tmp_path: Path) -> None:
    write(tmp_path / "groups", "0::/a\n")
    write(tmp_path / "root/a/cpu.max", "150000 100000\n")
    assert cgroup_cores(tmp_path / "root", tmp_path / "groups") == 1.5


def test_ranks_share_the_memory_of_their_server() -> None:
    server = ServerSettings(server_memory=3 * GIB, data_parallel_size=3)
    assert server.process_memory == GIB
    assert server.memory_share(0.5, 10 * GIB) == GIB // 2
    assert server.memory_share(0.5, 100) == 100
    assert ServerSettings().process_memory == usable_memory()


def test_resident_memory_of_this_process_is_known() -> None:
    assert resident_bytes() > 1 << 20
