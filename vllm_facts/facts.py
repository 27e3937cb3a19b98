"""The facts of all options of vLLM's `serve`, as options.json has them."""

from pathlib import Path

import msgspec

from vllm_facts.option import Option

FILE = Path(__file__).with_name("options.json")
GROUPS = msgspec.json.decode(FILE.read_bytes(), type=dict[str, dict[str, Option]])
OPTIONS = {name: option for group in GROUPS.values() for name, option in group.items()}
"""Options of all supported versions."""
