"""Foreign data has one decoder: no other module decodes it, or lists what a decoder can raise."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.present import is_in_tree
from tests.syntax import dotted_name, last_name, statements

ROOT = Path(__file__).parents[1]
DECODING = {
    "config/untrusted.py": "the decoder",
    "config/yaml_file.py": "the decoder of YAML",
    "workbench/check/json_nodes.py": "JSON with the places of its values",
    # The path of a request, which has errors of its own.
    "app/core/api/plain.py": "bodies of requests on the fast path",
    "app/core/protocol/decoding.py": "bodies of requests",
    "app/core/text/memo.py": "messages of requests",
    "app/extensions/grpc/messages.py": "protobuf messages of requests",
    "app/extensions/forms/plain_chats.py": "bodies of requests on the fast path",
    "app/extensions/pooling/plain.py": "bodies of requests on the fast path",
    "app/core/versions/boundary.py": "answers of this process; requests after the route",
    # Texts of replies, in which JSON begins and ends anywhere.
    "app/extensions/tool_calls/parsing.py": "tool calls in replies",
    "app/extensions/tool_calls/hermes.py": "tool calls in replies",
    "app/extensions/tool_calls/llama.py": "tool calls in replies",
    "app/extensions/tool_calls/markup.py": "tool calls in replies",
    "app/extensions/tool_calls/partial_json.py": "tool calls in replies",
    # Data that this process, or its parent, has written.
    "app/core/server/gunicorn/ranks.py": "settings from the arbiter",
    "app/core/server/middleware/masking.py": "a matched string",
    "app/core/text/words.py": "the state of a tokenizer",
    "app/extensions/anthropic/threads.py": "a stored conversation",
    "app/extensions/llm/compile_sandbox.py": "a job from the engine",
    "app/extensions/responses/stored_response.py": "a stored response",
    "config/settings.py": "a value that was validated",
    "vllm_facts/history.py": "a file of the package",
    "vllm_facts/models.py": "a file of the package",
}
"""Modules that decode data themselves, and what. Only remove entries, or say why."""
DECODE_FUNCTIONS = (
    "json.load",
    "json.loads",
    "msgspec.json.decode",
    "msgspec.msgpack.decode",
    "msgspec.toml.decode",
    "msgspec.yaml.decode",
    "yaml.load",
    "yaml.safe_load",
)
ERRORS = ("DecodeError", "JSONDecodeError", "MsgspecError", "YAMLError")
DECODERS = ("Decoder", "JSONDecoder")
MAY_DECODE = re.compile(rf"\b(?:decode|raw_decode|loads?|safe_load|{'|'.join(ERRORS)})\b")
"""Words of which each flaw has one. Most modules have none, and need no tree."""


def names_of_imports(tree: ast.Module) -> dict[str, str]:
    """Returns the dotted name that each imported name stands for."""
    names: dict[str, str] = {}
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def full_name_of(text: str, names: dict[str, str]) -> str:
    """Returns a dotted name with the module from which its first part was imported."""
    first, dot, attributes = text.partition(".")
    return names.get(first, first) + dot + attributes


def is_own_file(call: ast.Call) -> bool:
    """Returns whether a call decodes a file of the package, which a constant names."""
    for argument in call.args[:1]:
        if isinstance(argument, ast.Call) and last_name(argument.func) == "read_bytes":
            return dotted_name(argument.func).removesuffix(".read_bytes").isupper()
    return False


def flaws(source: str) -> Iterator[str]:
    """Yields the places of a module where foreign data may be decoded."""
    if MAY_DECODE.search(source) is None:
        return
    tree = ast.parse(source)
    names = names_of_imports(tree)
    own_files: set[ast.expr] = set()
    decoders: set[str] = set()
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Call) and is_own_file(node):
            own_files.add(node.func)
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_decoder(node.value, names):
            decoders.add(ast.unparse(node).partition("=")[0].partition(":")[0].strip())
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or node in own_files:
            continue
        full_name = full_name_of(dotted_name(node), names)
        if full_name in DECODE_FUNCTIONS or last_name(node) in ERRORS:
            yield f"{node.lineno}: {ast.unparse(node)}"
        if not isinstance(node, ast.Attribute) or node.attr not in ("decode", "raw_decode"):
            continue
        if is_decoder(node.value, names) or ast.unparse(node.value) in decoders:
            yield f"{node.lineno}: {ast.unparse(node)}"


def is_decoder(node: ast.expr | None, names: dict[str, str]) -> bool:
    """Returns whether an expression makes a decoder of msgspec or of Python."""
    if not isinstance(node, ast.Call):
        return False
    full_name = full_name_of(dotted_name(node.func), names)
    module, _, kind = full_name.rpartition(".")
    return kind in DECODERS and module.startswith(("msgspec", "json"))


def test_only_the_listed_modules_decode_data_themselves() -> None:
    places_of_modules = {}
    for folder in ("app", "config", "vllm_facts", "workbench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            places = list(flaws(path.read_text("utf-8")))
            if places:
                places_of_modules[str(path.relative_to(ROOT))] = places
    unlisted = {path: places for path, places in places_of_modules.items() if path not in DECODING}
    assert unlisted == {}, "use config.untrusted.decode_untrusted"
    unused = sorted(filter(is_in_tree, set(DECODING) - set(places_of_modules)))
    assert unused == [], "remove these entries"


def test_each_way_to_decode_is_found() -> None:
    for line in (
        "import json\njson.loads(x)",
        "from json import loads\nloads(x)",
        "import msgspec\nmsgspec.msgpack.decode(x)",
        "from msgspec.json import decode\ndecode(x)",
        "import msgspec\nmsgspec.msgpack.Decoder(int).decode(x)",
        "from msgspec import msgpack\nD = msgpack.Decoder(int)\nD.decode(x)",
        "from msgspec.msgpack import Decoder\nself.d = Decoder(int)\nself.d.decode(x)",
        "import json\njson.JSONDecoder().raw_decode(x)",
        "import yaml\nyaml.safe_load(x)",
        "try:\n    f()\nexcept msgspec.DecodeError:\n    pass",
    ):
        assert list(flaws(line)) != [], line
    for line in (
        "x.decode()",
        "import json\njson.dumps(x)",
        "import msgspec\nmsgspec.json.decode(TABLE.read_bytes(), type=int)",
        "from msgspec import msgpack\nD = msgpack.Decoder(int)\ndecode_untrusted(x, decoder=D)",
    ):
        assert list(flaws(line)) == [], line
