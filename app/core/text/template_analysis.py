"""Analysis of a chat template's syntax: how the template reads the content of messages."""

from collections.abc import Iterator

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
    messages: set[str] = set()
    new_names = {"messages"}
    while new_names:
        messages |= new_names
        assignments = [
            node
            for node in template.find_all(nodes.Assign)
            if any(_reads(node.node, name) for name in messages)
        ]
        targets = [node.target for node in assignments]
        new_names = {node.name for node in targets if isinstance(node, nodes.Name)} - messages
    loop_names = {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages)
    }
    return "openai" if any(_content_loops(template, loop_names)) else "string"


def _content_loops(template: nodes.Template, message_names: set[str]) -> Iterator[nodes.For]:
    in_macros: set[nodes.For] = set()
    for macro in template.find_all(nodes.Macro):
        parameters = _content_parameters(template, macro, message_names)
        for loop in macro.find_all(nodes.For):
            in_macros.add(loop)
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters:
                yield loop
    for loop in template.find_all(nodes.For):
        is_by_name = (
            isinstance(loop.iter, nodes.Name)
            and loop.iter.name == "content"
            and loop not in in_macros
        )
        if is_by_name or any(_reads(loop.iter, name, "content") for name in message_names):
            yield loop


def _content_parameters(
    template: nodes.Template, macro: nodes.Macro, message_names: set[str]
) -> set[str]:
    """Returns the parameters of a macro that a call passes the content of a message for."""
    names = [argument.name for argument in macro.args]
    parameters = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        keyword_arguments = [(pair.key, pair.value) for pair in call.kwargs]
        for name, value in [*zip(names, call.args, strict=False), *keyword_arguments]:
            if any(_reads(value, message, "content") for message in message_names):
                parameters.add(name)
    return parameters


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Returns True if `node` is the variable or its field, possibly filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, field)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, field)
    if field is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return (
            _reads(node.node, name)
            and isinstance(node.arg, nodes.Const)
            and node.arg.value == field
        )
    return isinstance(node, nodes.Getattr) and node.attr == field and _reads(node.node, name)


def wraps_content(template: nodes.Template) -> bool:
    """Returns True for a template that only prints the content of messages, unchanged.

    Then the text around the content of a single message depends on its role alone.
    """
    loops = [loop for loop in template.find_all(nodes.For) if _reads(loop.iter, "messages")]
    names = {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)}
    if any(template.find_all(BLOCKS)) or len(loops) != 1 or len(names) != 1:
        return False
    # Every use of the loop's variable and of `messages` has to be one that is understood: the loop
    # itself, and reads of fields.
    understood = 1 + isinstance(loops[0].iter, nodes.Name)
    printed = [node for output in template.find_all(nodes.Output) for node in output.nodes]
    reads: list[nodes.Getattr | nodes.Getitem] = [*template.find_all(nodes.Getattr)]
    reads += template.find_all(nodes.Getitem)
    for node in reads:
        field = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if not isinstance(node.node, nodes.Name) or node.node.name not in names:
            continue
        if not isinstance(field, str) or hasattr(dict, field):  # `get` may read the content
            continue
        if field != "content" or any(node is printed_node for printed_node in printed):
            understood += 1
    names.add("messages")
    return understood == sum(node.name in names for node in template.find_all(nodes.Name))
