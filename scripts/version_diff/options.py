"""Command-line options of `vllm serve`, and the keys of those that take a JSON object."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from scripts.version_diff.annotations import choices_in, type_text
from scripts.version_diff.fact import UNKNOWN, Fact
from scripts.version_diff.package import Module, Package
from scripts.version_diff.shorthands import shorthands_of
from scripts.version_diff.values import (
    CannotReadError,
    ClassField,
    Scope,
    evaluate,
    fields_of,
    keyword_of,
    texts_in,
    value_text,
)

ENGINE_FILE = "vllm/engine/arg_utils.py"
SERVE_FILES = ("vllm/entrypoints/cli/serve.py", "vllm/scripts.py")
"""The command `serve`, since and before 0.9; it adds options to those of the server."""
OTHER_COMMANDS = ("vllm/entrypoints/openai/run_batch.py", "vllm/entrypoints/launchers/run_batch.py")
PARSER_FUNCTIONS = ("make_arg_parser", "add_cli_args", "subparser_init", "main")
"""Functions that declare the options of `serve`."""
FIELD_LOOP = "key.replace("
"""Part of the name of an option in a loop over the fields of a class."""
FRONTEND_CLASS = "FrontendArgs"
OVERRIDE = re.compile(r"frontend_kwargs\['(?P<name>\w+)'\]\['(?P<attribute>action|type|nargs)'\]")
"""An argument of argparse for a field of that class."""
NO_LIST = "None"
"""The `nargs` of an option that takes one value although its type is a list."""
SERVE_PARSER = "serve_parser"
"""The variable of the parser in `main`, which declares other commands, too."""
MAX_KEY_DEPTH = 4
"""Most keys in a row, as in --compilation-config.pass_config.fuse_norm_quant."""
DEPRECATED = ("deprecated", "DEPRECATED", "Deprecated")


def option_facts(package: Package) -> Iterator[Fact]:
    """Yields options and JSON keys."""
    for module in _declaring_modules(package):
        for function in _parser_functions(module):
            scope = Scope(package, module).inside(function)
            for call in _calls_of_add_argument(function):
                yield from _facts_of_call(scope, call)
    for scope, node in _registered_classes(package):
        overrides = _overrides(scope.module)
        for name, class_field in fields_of(scope, node).items():
            option = f"--{name.replace('_', '-')}"
            yield from _facts_of_field(option, class_field, overrides.get(name, {}))


def _declaring_modules(package: Package) -> Iterator[Module]:
    for path in (ENGINE_FILE, *SERVE_FILES):
        module = package.module(path)
        if module is not None:
            yield module
    for module in package.modules("vllm/entrypoints/", "def make_arg_parser"):
        if module.path not in (*SERVE_FILES, *OTHER_COMMANDS):
            yield module


def _parser_functions(module: Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.name in PARSER_FUNCTIONS:
            yield node


def _calls_of_add_argument(function: ast.FunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_other_command = function.name == "main" and (
            not isinstance(node.func.value, ast.Name) or node.func.value.id != SERVE_PARSER
        )
        if node.func.attr == "add_argument" and not is_other_command:
            yield node


def _registered_classes(package: Package) -> Iterator[tuple[Scope, ast.ClassDef]]:
    """Yields classes whose fields are all registered as options, by one loop over `get_kwargs`."""
    for module in package.modules("vllm/entrypoints/", "get_kwargs"):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == FRONTEND_CLASS:
                yield Scope(package, module), node


def _overrides(module: Module) -> dict[str, dict[str, str]]:
    """Returns what `frontend_kwargs["middleware"]["action"] = "append"` and `del` change."""
    overrides: dict[str, dict[str, str]] = {}
    for statement in ast.walk(module.tree):
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            value = ast.unparse(statement.value).strip("'")
        elif isinstance(statement, ast.Delete):
            target = statement.targets[0]
            value = NO_LIST
        else:
            continue
        match = OVERRIDE.fullmatch(ast.unparse(target))
        if match is not None:
            overrides.setdefault(match["name"], {})[match["attribute"]] = value
    return overrides


def _facts_of_call(scope: Scope, call: ast.Call) -> Iterator[Fact]:
    names = [name for name in _flags(scope, call.args) if name.startswith("--")]
    if not names:
        if any(FIELD_LOOP in ast.unparse(argument) for argument in call.args):
            return  # the loop over the fields of a class, which `_registered_classes` reads
        if call.args and not isinstance(call.args[0], ast.Constant):
            yield Fact("option", f"{UNKNOWN}: {ast.unparse(call.args[0])}")
        return
    class_field = _field_of_kwargs(scope, call)
    if class_field is not None:
        overrides = _attributes_of_call(scope, call)
        for name in names:
            yield from _facts_of_field(name, class_field, overrides)
        return
    attributes = _attributes_of_call(scope, call)
    if any(word.arg is None for word in call.keywords):
        attributes["further arguments"] = UNKNOWN
    for name in names:
        yield Fact("option", name, attributes=attributes)
        yield from _keys(name, _object_class(scope, keyword_of(call, "type"), name))


def _flags(scope: Scope, arguments: Sequence[ast.expr]) -> Iterator[str]:
    for argument in arguments:
        loop = _assigned(scope, argument)
        if isinstance(loop, ast.For):  # for name, kind in [("--a", str), ("--b", bool)]
            names = [node.value for node in ast.walk(loop.iter) if isinstance(node, ast.Constant)]
        else:
            names = [_flag(scope, argument)]
        for name in names:
            yield str(name).replace("_", "-")


def _flag(scope: Scope, argument: ast.expr) -> str:
    try:
        return str(evaluate(scope, argument))
    except CannotReadError:
        return ""


def _field_of_kwargs(scope: Scope, call: ast.Call) -> ClassField | None:
    """Returns the field of `**model_kwargs["seed"]`, where `model_kwargs = get_kwargs(Model)`."""
    for word in call.keywords:
        if word.arg is not None:
            continue
        kwargs: ast.AST | None = word.value
        if isinstance(kwargs, ast.Dict):  # {**model_kwargs["seed"], "default": None}
            entries = zip(kwargs.keys, kwargs.values, strict=True)
            kwargs = next((value for key, value in entries if key is None), None)
        kwargs = _assigned(scope, kwargs)
        if not isinstance(kwargs, ast.Subscript):
            continue
        source = _assigned(scope, kwargs.value)
        if isinstance(source, ast.Call) and source.args:
            owner = scope.class_at(source.args[0])
            name = value_text(scope, kwargs.slice).strip("'")
            if owner is not None:
                return fields_of(*owner).get(name)
    return None


def _assigned(scope: Scope, node: ast.AST | None) -> ast.AST | None:
    """Returns the value of a variable, or another expression as it is."""
    if isinstance(node, ast.Name):
        resolved = scope.resolve(node.id)
        if resolved is not None:
            return resolved[1]
    return node


def _facts_of_field(
    name: str, class_field: ClassField, overrides: Mapping[str, str]
) -> Iterator[Fact]:
    attributes = field_attributes(class_field)
    if attributes["type"].startswith("list[") and overrides:
        attributes["nargs"] = "'+'"  # unless the declaration removes it
    yield Fact("option", name, attributes=attributes | dict(overrides))
    yield from _keys(name, _object_class(class_field.scope, class_field.annotation, name))


def field_attributes(class_field: ClassField) -> dict[str, str]:
    """Returns type, choices, default and limits of a field of a class."""
    attributes = {"type": type_text(class_field.scope, class_field.annotation)}
    try:
        choices = choices_in(class_field.scope, class_field.annotation)
    except CannotReadError:
        attributes["choices"] = UNKNOWN
    else:
        if choices:
            attributes["choices"] = ", ".join(sorted(map(str, choices)))
    attributes["default"] = class_field.default_text()
    limits = []
    for limit in ("ge", "gt", "le", "lt", "min_length", "max_length"):
        value = class_field.keyword(limit)
        if value is not None:
            limits.append(f"{limit} {value_text(class_field.scope, value)}")
    if limits:
        attributes["limits"] = ", ".join(limits)
    return attributes


def _attributes_of_call(scope: Scope, call: ast.Call) -> dict[str, str]:
    """Returns what the arguments of a call say, except for those of a `**` that is no display."""
    arguments = {word.arg: word.value for word in call.keywords if word.arg is not None}
    for word in call.keywords:
        if word.arg is None and isinstance(word.value, ast.Dict):
            for key, value in zip(word.value.keys, word.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    arguments[str(key.value)] = value
    attributes: dict[str, str] = {}
    for name in ("type", "action", "nargs", "choices", "default"):
        if name not in arguments:
            continue
        if name in ("type", "action"):
            text = ast.unparse(arguments[name]).removeprefix("argparse.").strip("'")
        elif name == "choices":
            text = _choices_text(scope, arguments[name])
        else:
            text = value_text(scope, arguments[name])
        attributes[name] = text
    help_text = arguments.get("help")
    if help_text is not None and any(word in ast.unparse(help_text) for word in DEPRECATED):
        attributes["deprecated"] = "yes"
    return attributes


def _choices_text(scope: Scope, node: ast.expr) -> str:
    try:
        return ", ".join(sorted(texts_in(scope, node)))
    except CannotReadError:
        return f"{UNKNOWN}: {ast.unparse(node)}"


def _object_class(
    scope: Scope, type_node: ast.AST | None, name: str
) -> tuple[Scope, ast.ClassDef] | None:
    """Returns the class of the JSON object that an option takes.

    It is the class in its type, as in `PoolerConfig | None` and `PoolerConfig.from_json`, or the
    class of its name where the type is a plain dictionary: `--speculative-config` takes the fields
    of `SpeculativeConfig`.
    """
    if type_node is not None:
        for node in ast.walk(type_node):
            resolved = scope.class_at(node)
            if resolved is not None and _is_config(resolved[1]):
                return resolved
    is_object = type_node is not None and any(
        word in ast.unparse(type_node) for word in ("dict", "Dict", "json.loads")
    )
    if is_object and name.endswith("-config"):
        return _class_of_name(scope.package, name)
    return None


def _class_of_name(package: Package, name: str) -> tuple[Scope, ast.ClassDef] | None:
    wanted = name.removeprefix("--").replace("-", "")
    module = package.module_named("vllm.config")
    if module is None:
        return None
    for class_name in module.names:
        if class_name.lower() == wanted:
            return Scope(package, module).class_at(ast.Name(class_name))
    return None


def _is_config(node: ast.ClassDef) -> bool:
    """Returns whether a class declares the keys of an object."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    bases = " ".join(map(ast.unparse, node.bases))
    return "config" in decorators or "dataclass" in decorators or "BaseModel" in bases


def _is_internal(class_field: ClassField) -> bool:
    """Returns whether vLLM sets a field itself."""
    init = class_field.keyword("init")
    if isinstance(init, ast.Constant) and init.value is False:
        return True
    annotation = class_field.annotation
    return annotation is not None and "SkipValidation" in ast.unparse(annotation)


def _keys(path: str, owner: tuple[Scope, ast.ClassDef] | None, depth: int = 1) -> Iterator[Fact]:
    if owner is None or depth > MAX_KEY_DEPTH:
        return
    for name, class_field in fields_of(*owner).items():
        if name.startswith("_") or _is_internal(class_field):
            continue
        key = f"{path}.{name}"
        attributes = field_attributes(class_field)
        shorthands = shorthands_of(owner, class_field)
        if shorthands:
            attributes["shorthands"] = ", ".join(shorthands)
        yield Fact("JSON key", key, attributes=attributes)
        inner = _object_class(class_field.scope, class_field.annotation, "")
        if inner is not None and inner[1] is not owner[1]:
            yield from _keys(key, inner, depth + 1)
