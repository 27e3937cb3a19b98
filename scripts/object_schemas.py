"""Writes vllm_facts/objects.json: the JSON Schemas of the objects that options of `serve` take.

    $ python -m scripts.object_schemas [FOLDER]

Asks the vLLM of each supported version, which `fidelity.oracle` installs in `.oracle`, or in
FOLDER. A later version has only the schemas that it changed, and null for an option that it
removed.
"""

import json
import subprocess
import sys
from pathlib import Path

from vllm_facts.objects import FILE
from vllm_facts.version import DESCRIBED, PATCHES

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "fidelity" / "oracle" / "object_schemas.py"


def main(folder: Path) -> None:
    """Writes the file.

    Raises:
        subprocess.CalledProcessError: vLLM cannot be imported, and has printed why.
    """
    versions: dict[str, dict[str, object]] = {}
    previous: dict[str, object] = {}
    for version in DESCRIBED:
        release = PATCHES[version]
        python = folder / release / "environment" / "bin" / "python"
        if not python.exists():
            print(f"{python} does not exist: {version} has the schemas of the version before it")
            continue
        result = subprocess.run([python, PROGRAM], capture_output=True, text=True, check=True)
        schemas: dict[str, object] = json.loads(result.stdout)
        changed = {name: item for name, item in schemas.items() if previous.get(name) != item}
        removed = dict.fromkeys(previous.keys() - schemas.keys())
        versions[version] = {**changed, **removed}
        previous = schemas
    FILE.write_text(_lines(versions), "utf-8")
    print(f"{FILE}: {FILE.stat().st_size} bytes")


def _lines(versions: dict[str, dict[str, object]]) -> str:
    """Returns JSON with one line for each option, so that a new version changes few lines."""
    blocks = []
    for version, schemas in versions.items():
        rows = [
            f"{json.dumps(name)}:{json.dumps(schemas[name], separators=(',', ':'))}"
            for name in sorted(schemas)
        ]
        blocks.append(f"{json.dumps(version)}:{{\n" + ",\n".join(rows) + "\n}")
    return "{" + ",\n".join(blocks) + "}\n"


if __name__ == "__main__":
    main(next(map(Path, sys.argv[1:]), ROOT / ".oracle"))
