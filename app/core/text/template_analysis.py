"""Analysis of a chat template's syntax: how the template reads the content of messages."""

from collections import defaultdict
from collections.abc import Container, Iterable

from jinja2 import nodes

from app.core.text.conversation import ContentFormat

BLOCKS = (
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.AssignBlock,
    nodes.Block,
    nodes.EvalContextModifier,
)
"""Statements that may change what is printed inside."""


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Returns "openai" (a list of parts) for a template that loops over a message's content.

    All other templates get "string". As vLLM, follows `messages` through assignments to a loop,
    then `message.content` through macros to a `for`.
    """
    copies = defaultdict(list)
    for node in template.find_all(nodes.Assign):
        if isinstance(node.target, nodes.Name):
            copies[_variable_read(node.node)].append(node.target.name)
    messages: set[str | None] = {"messages"}
    names = ["messages"]
    for name in names:  # the list grows meanwhile
        new_names = set(copies[name]) - messages
        names += new_names
        messages |= new_names
    loops = [*template.find_all(nodes.For)]
    loop_names = {
        loop.target.name
        for loop in loops
        if isinstance(loop.target, nodes.Name) and _variable_read(loop.iter) in messages
    }
    return "openai" if _has_content_loop(template, loops, loop_names) else "string"


def _has_content_loop(
    template: nodes.Template, loops: Iterable[nodes.For], message_names: Container[str | None]
) -> bool:
    calls = defaultdict(list)
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            calls[call.node.name].append(call)
    in_macros: set[nodes.For] = set()
    for macro in template.find_all(nodes.Macro):
        parameters = _content_parameters(macro, calls[macro.name], message_names)
        macro_loops = [*macro.find_all(nodes.For)]
        in_macros.update(macro_loops)
        for loop in macro_loops:
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters:
                return True
    for loop in loops:
        is_by_name = isinstance(loop.iter, nodes.Name) and loop.iter.name == "content"
        if is_by_name and loop not in in_macros:
            return True
        if _variable_read(loop.iter, "content") in message_names:
            return True
    return False


def _content_parameters(
    macro: nodes.Macro, calls: Iterable[nodes.Call], message_names: Container[str | None]
) -> set[str]:
    """Returns the parameters of a macro that a call passes the content of a message for."""
    names = [argument.name for argument in macro.args]
    parameters = set()
    for call in calls:
        keyword_arguments = [(pair.key, pair.value) for pair in call.kwargs]
        for name, argument in [*zip(names, call.args, strict=False), *keyword_arguments]:
            if _variable_read(argument, "content") in message_names:
                parameters.add(name)
    return parameters


def _variable_read(node: nodes.Node | None, field: str | None = None) -> str | None:
    """Returns the variable that `node` reads, possibly filtered, tested or sliced.

    With `field`, returns the variable whose field it reads.
    """
    while isinstance(node, nodes.Filter | nodes.Test | nodes.Getitem):
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            break
        node = node.node
    if field is None:
        return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None
    if isinstance(node, nodes.Getitem):
        is_field = isinstance(node.arg, nodes.Const) and node.arg.value == field
        return _variable_read(node.node) if is_field else None
    if isinstance(node, nodes.Getattr) and node.attr == field:
        return _variable_read(node.node)
    return None


def wraps_content(template: nodes.Template) -> bool:
    """Returns True for a template that only prints the content of messages, unchanged.

    Then the text around the content of a single message depends on its role alone.
    """
    loops = [
        loop for loop in template.find_all(nodes.For) if _variable_read(loop.iter) == "messages"
    ]
    names = {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)}
    if any(template.find_all(BLOCKS)) or len(loops) != 1 or len(names) != 1:
        return False
    # Every use of the loop's variable and of `messages` has to be one that is understood: the loop
    # itself, and reads of fields.
    understood = 1 + isinstance(loops[0].iter, nodes.Name)
    printed = {id(node) for output in template.find_all(nodes.Output) for node in output.nodes}
    reads: list[nodes.Getattr | nodes.Getitem] = [*template.find_all(nodes.Getattr)]
    reads += template.find_all(nodes.Getitem)
    for node in reads:
        field = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if not isinstance(node.node, nodes.Name) or node.node.name not in names:
            continue
        if not isinstance(field, str) or hasattr(dict, field):  # `get` may read the content
            continue
        if field != "content" or id(node) in printed:
            understood += 1
    names.add("messages")
    return understood == sum(node.name in names for node in template.find_all(nodes.Name))
