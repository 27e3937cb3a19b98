"""Routes of the HTTP server."""

import ast
from collections.abc import Iterator

from scripts.version_diff.annotations import type_text
from scripts.version_diff.fact import UNKNOWN, Fact
from scripts.version_diff.package import Package
from scripts.version_diff.values import (
    CannotReadError,
    Scope,
    called_name,
    evaluate,
    keyword_of,
    texts_in,
    value_text,
)

METHODS = ("get", "post", "put", "patch", "delete", "head", "options", "websocket")
DECLARING = ("router", "@app.", "Mount(")
"""Texts in modules that declare routes."""
OTHER_SERVERS = ("vllm/entrypoints/api_server.py", "dp_supervisor")
"""Parts of paths of files whose routes are those of other servers than `vllm serve`."""
MOUNTED_METHODS = ("GET",)
"""Methods of the applications that are mounted below a path, such as /metrics."""
FROM_SERVER = ("Request", "Response", "WebSocket", "BackgroundTasks")
"""Types of parameters that are not sent by clients."""
Handler = ast.FunctionDef | ast.AsyncFunctionDef


def route_facts(package: Package) -> Iterator[Fact]:
    """Yields the routes that decorators and calls of `add_api_route` and `Mount` declare."""
    for module in package.modules("vllm/entrypoints/"):
        has_routes = any(word in module.text for word in DECLARING)
        if not has_routes or any(part in module.path for part in OTHER_SERVERS):
            continue
        scope = Scope(package, module)
        for node in ast.walk(module.tree):
            if isinstance(node, Handler):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call):
                        yield from _declared(scope, decorator, node)
            elif isinstance(node, ast.Call) and called_name(node) == "add_api_route":
                yield from _declared(scope, node, None)
            elif isinstance(node, ast.Call) and called_name(node) == "Mount":
                yield from _mounted(scope, node)


def _mounted(scope: Scope, call: ast.Call) -> Iterator[Fact]:
    """Yields the routes of an application that is mounted below a path, such as /metrics."""
    for argument in call.args[:1]:
        path = value_text(scope, argument).strip("'")
        for method in MOUNTED_METHODS:
            yield Fact("route", f"{method} {path}")


def _declared(scope: Scope, call: ast.Call, handler: Handler | None) -> Iterator[Fact]:
    function = call.func
    if not isinstance(function, ast.Attribute) or not call.args:
        return
    if function.attr in METHODS:
        methods = [function.attr.upper()]
    elif function.attr in ("api_route", "add_api_route"):
        methods = _methods(scope, call)
    else:
        return
    path = _path(scope, function.value, call.args[0])
    attributes = {}
    if handler is not None:
        attributes = _attributes(scope, handler)
    for method in methods:
        yield Fact("route", f"{method} {path}", attributes=attributes)


def _methods(scope: Scope, call: ast.Call) -> list[str]:
    node = keyword_of(call, "methods")
    if node is None:
        return ["GET"]
    try:
        return texts_in(scope, node)
    except CannotReadError:
        return [UNKNOWN]


def _path(scope: Scope, router: ast.expr, node: ast.expr) -> str:
    """Returns a path with the prefix of its router."""
    try:
        path = str(evaluate(scope, node))
    except CannotReadError:
        return f"{UNKNOWN}: {ast.unparse(node)}"
    if isinstance(router, ast.Name):
        resolved = scope.resolve(router.id)
        if resolved is not None and isinstance(resolved[1], ast.Call):
            prefix = keyword_of(resolved[1], "prefix")
            if prefix is not None:
                return f"{value_text(scope, prefix)}{path}".replace("'", "")
    return path


def _attributes(scope: Scope, handler: Handler) -> dict[str, str]:
    """Returns the parameters that clients send, and keys of the objects in a handler."""
    parameters = []
    for argument in [*handler.args.args, *handler.args.kwonlyargs]:
        type_name = type_text(scope, argument.annotation)
        if argument.annotation is not None and type_name not in FROM_SERVER:
            parameters.append(f"{argument.arg}: {type_name}")
    keys: dict[str, None] = {}
    for statement in handler.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Dict):
                names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                keys.update(dict.fromkeys(map(str, names)))
    attributes = {}
    if parameters:
        attributes["parameters"] = ", ".join(parameters)
    if keys:
        attributes["keys"] = ", ".join(sorted(keys))
    return attributes
