"""Compares our verdicts on JSON Schemas with those of a real vLLM.

    $ python -m fidelity.judge_schemas                        # test suite and random schemas
    $ python -m fidelity.judge_schemas --bench FOLDER         # also the JSON files in FOLDER

The first run installs vLLM, as `fidelity.oracle` does. The statuses of vLLM are recorded once in
.oracle/VERSION/schemas.jsonl. The exit status is 1 if a verdict differs that is not in
known_differences.json.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from app.extensions.forms.schema.backends.verdicts import verdict_on
from fidelity.judge_schemas.sources import bench_schemas, random_schemas, suite_schemas
from fidelity.oracle.configurations import STORE
from fidelity.oracle.install import install, python_of

HERE = Path(__file__).parent
VERSION = "0.32.0"
RANDOM_COUNT = 2_000
MAX_SHOWN = 40
"""Maximum differences that are printed."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default=VERSION, help="version of vLLM (default: %(default)s)")
    parser.add_argument("--bench", type=Path, help="folder with JSONSchemaBench, or other schemas")
    parser.add_argument("--random", type=int, default=RANDOM_COUNT, help="random schemas")
    arguments = parser.parse_args()
    records = STORE / arguments.version
    records.mkdir(parents=True, exist_ok=True)
    schemas = chain(suite_schemas(records), random_schemas(arguments.random))
    if arguments.bench is not None:
        schemas = chain(schemas, bench_schemas(arguments.bench))
    install(arguments.version)
    statuses = recorded(dict(schemas), records / "schemas.jsonl", python_of(arguments.version))
    return compare(statuses)


def recorded(schemas: dict[str, Any], path: Path, python: Path) -> list[dict[str, Any]]:
    """Returns the recorded statuses of `schemas`; records those that are missing."""
    known = read(path)
    missing = {name: schemas[name] for name in schemas.keys() - known.keys()}
    if missing:
        wanted = path.with_suffix(".wanted")
        lines = [json.dumps({"id": name, "schema": schema}) for name, schema in missing.items()]
        wanted.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        script = HERE / "ask_vllm.py"
        # xgrammar writes a warning for every keyword that it ignores.
        subprocess.run(
            [python, script, wanted, path], check=True, stderr=subprocess.DEVNULL, cwd=path.parent
        )
        wanted.unlink()
        known = read(path)
    return [known[name] for name in schemas if name in known]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the recorded lines by the names of their schemas."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["id"]: line for line in lines}


def compare(lines: list[dict[str, Any]]) -> int:
    """Prints the differences; returns the exit status."""
    known_differences = json.loads((HERE / "known_differences.json").read_text(encoding="utf-8"))
    kinds: Counter[str] = Counter()
    for line in lines:
        status = our_status(line["schema"])
        if line["status"] in (0, status) or line["id"] in known_differences:
            continue
        kinds[f"{line['status']} expected, {status} found"] += 1
        if kinds.total() <= MAX_SHOWN:
            print(f"{line['id']}: {line['status']} expected, {status} found")
    for kind, count in kinds.items():
        print(f"{count:5} {kind}")
    print(f"{len(lines) - kinds.total()} of {len(lines)} schemas have vLLM's status")
    return int(bool(kinds))


def our_status(schema: Any) -> int:
    """Returns the status of a chat with this schema."""
    if isinstance(schema, bool):  # the field of a request is an object
        return 400
    verdict = verdict_on(schema)
    if verdict.refusal:
        return 400
    return 500 if verdict.fails else 200


if __name__ == "__main__":
    sys.exit(main())
