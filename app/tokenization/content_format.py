"""Does a chat template expect the content of a message as one string or as a list of parts?

Nothing in a template says so; vLLM looks whether it loops over a message's content, and so do we: follow
`messages` through assignments to the loop over it, then `message.content` through macro arguments to a `for`.
"""

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Return "openai" (a list of parts) for a template that loops over a message's content, else "string"."""
    messages = _aliases(template, "messages")
    message: set[str] = set()
    for loop in template.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages):
            message.add(loop.target.name)
    return "openai" if any(_content_loops(template, message)) else "string"


def _content_loops(template: nodes.Template, message: set[str]) -> Iterator[nodes.For]:
    in_macros: set[nodes.For] = set()
    for macro in template.find_all(nodes.Macro):
        bound = _content_parameters(template, macro, message)
        for loop in macro.find_all(nodes.For):
            in_macros.add(loop)
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in bound:
                yield loop
    for loop in template.find_all(nodes.For):
        by_name = isinstance(loop.iter, nodes.Name) and loop.iter.name == "content" and loop not in in_macros
        if by_name or any(_reads(loop.iter, name, "content") for name in message):
            yield loop


def _content_parameters(template: nodes.Template, macro: nodes.Macro, message: set[str]) -> set[str]:
    """Return the parameters of `macro` that some call fills with a message's content."""
    names = [argument.name for argument in macro.args]
    bound = set()
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            named = [(pair.key, pair.value) for pair in call.kwargs]
            for name, value in [*zip(names, call.args, strict=False), *named]:
                if any(_reads(value, each, "content") for each in message):
                    bound.add(name)
    return bound


def _aliases(template: nodes.Template, name: str) -> set[str]:
    """Return `name` and every variable that is assigned from it, at any distance."""
    found, fresh = {name}, [name]
    while fresh:
        source = fresh.pop()
        for assignment in template.find_all(nodes.Assign):
            target = assignment.target
            if not isinstance(target, nodes.Name) or target.name in found:
                continue
            if _reads(assignment.node, source):
                found.add(target.name)
                fresh.append(target.name)
    return found


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Tell whether `node` is the variable (or its field), perhaps filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, field)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, field)
    if field is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == field
    return isinstance(node, nodes.Getattr) and node.attr == field and _reads(node.node, name)
