"""The sandbox of the event loop, which stops a chat template in time.

A template is a program, and a model's is a stranger's. Jinja compiles it to Python, which nothing
interrupts. `TemplateBounds` therefore adds counters to the template's syntax. The sandbox looks at
the clock now and then, and measures each value that a template makes. A template beyond a limit
raises `TemplateOverrunError`. It then runs in another process (`template_process`), which decides;
no limit here has to be exact.

Work is counted in nodes of syntax, of about 50 ns each. Strings and lists are measured in members;
`CHARACTERS_PER_MEMBER` characters count as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.utils import Namespace, _PassArg
from jinja2.visitor import NodeTransformer

from app.core.text.base import TemplateOverrunError
from app.core.text.template_checks import (
    CHARACTERS_PER_MEMBER,
    FILTER_CHECKS,
    FILTERS,
    METHOD_CHECKS,
    OTHER_METHODS,
    check_bits,
    check_joined,
    check_percent_format,
    check_repeated,
    join_parts,
    members_of,
    unchanged,
)
from app.core.text.template_environment import (
    TemplateEnvironment,
    TemplateFunction,
    TemplateIterator,
)

CPU_S = 0.01
"""Processor time that a template may take in the event loop, in seconds."""
CPU_S_PER_CHARACTER = 20e-6
"""Processor time for each character of a long conversation, which has a native thread."""
MAX_CPU_S = 10.0
"""Maximum processor time for a long conversation: three times that of 130,000 short messages."""
WORK_PER_LOOK = 500
"""Work from one look at the clock to the next: about 25 us."""
MAX_NODES = 3_000
"""Maximum size of a template, in nodes of its syntax; public ones have up to 1,400."""
MAX_OPERANDS = 64
"""Maximum number of values that one expression joins; public templates join up to 10."""
MADE_MEMBERS = 10_000
"""Maximum size of a made value, in addition to the size of the conversation, in members."""
FREE_MEMBERS = 20
"""Maximum size of a made value that counts as no work, in members."""
MEASURED_METHODS = OTHER_METHODS | {"join", *METHOD_CHECKS}
"""Methods that may make a large value."""
UNBOUNDED_KINDS = (str, int, float)
"""The types of their owners."""
SIZED = (str, list, tuple, dict, range)
CONTAINERS = (list, tuple, dict)
MAX_DATE_FORMAT = 200
"""Maximum length of a form for dates, in characters."""
ADD_WORK = "add work"
MEASURE = "measure"
WALK = "walk"
"""Names of internal filters, which no template can spell."""


class BoundedContext(Context):
    """The variables of one rendering, with its remaining work."""

    work_left = WORK_PER_LOOK
    cpu_s = CPU_S
    max_members = MADE_MEMBERS
    _end_s: float | None = None
    _cpu_end_s = 0.0

    def allow(self, characters: int, is_long: bool) -> None:
        """Sets the limits for a conversation of so many characters, as JSON."""
        self.max_members = MADE_MEMBERS + characters
        if is_long:
            self.cpu_s = min(CPU_S_PER_CHARACTER * characters, MAX_CPU_S)

    def add_work(self, work: int) -> None:
        """Counts work, and looks at the clock now and then.

        Raises:
            TemplateOverrunError: the time is over.
        """
        self.work_left -= work
        if self.work_left < 0:
            self._look_at_clock()

    def measure(self, made: Any) -> Any:
        """Returns what the template has made, and counts its size as work.

        Raises:
            TemplateOverrunError: it is too large.
        """
        if isinstance(made, str):
            size = len(made) // CHARACTERS_PER_MEMBER
        elif isinstance(made, CONTAINERS):
            size = members_of(made, self.max_members)
        else:
            return made
        if size > FREE_MEMBERS:
            if size >= self.max_members:
                raise TemplateOverrunError
            self.add_work(size)
        return made

    def walk(self, iterable: Any) -> Any:
        """Returns what a loop walks over, and counts its members as work."""
        if isinstance(iterable, SIZED):
            self.add_work(len(iterable))
        return iterable

    def read(self, operand: Any) -> None:
        """Counts a value that a filter reads as work."""
        work = 1
        if isinstance(operand, str):
            work += len(operand) // CHARACTERS_PER_MEMBER
        elif isinstance(operand, SIZED):
            work += len(operand)
        self.add_work(work)

    def _look_at_clock(self) -> None:
        self.work_left = WORK_PER_LOOK
        now_s = time.perf_counter()
        if self._end_s is None:
            self._end_s = now_s + self.cpu_s
            self._cpu_end_s = time.thread_time() + self.cpu_s
        # The processor time takes a system call, and the machine may have been busy otherwise.
        elif now_s > self._end_s and time.thread_time() > self._cpu_end_s:
            raise TemplateOverrunError


class BoundedIterator(TemplateIterator):
    """An iterator whose steps are work."""

    __slots__ = ("_add_work",)

    def __init__(self, wrapped: Iterator[Any], add_work: Callable[[int], None]) -> None:
        super().__init__(wrapped)
        self._add_work = add_work

    def __next__(self) -> Any:
        self._add_work(1)
        return next(self._wrapped)


class BoundedNamespace(Namespace):
    """A namespace that is not printed here: its members may contain each other, many times."""

    def __repr__(self) -> str:
        raise TemplateOverrunError


class BoundedEnvironment(TemplateEnvironment):
    """The sandbox of templates that `TemplateBounds` has visited."""

    intercepted_binops = frozenset(("*", "%", "**"))
    context_class = BoundedContext
    concat = staticmethod(join_parts)

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        # Jinja would look for constant parts once per level of nesting: 0.1 s for 120 filters.
        self.optimized = False
        for name, function in [*self.filters.items()]:
            self.filters[name] = _bounded_filter(name, function)
        self.filters[ADD_WORK] = pass_context(BoundedContext.add_work)
        self.filters[MEASURE] = pass_context(BoundedContext.measure)
        self.filters[WALK] = pass_context(BoundedContext.walk)
        self.globals["namespace"] = TemplateFunction(BoundedNamespace)
        self.globals["lipsum"] = TemplateFunction(_hand_over)
        self.globals["strftime_now"] = TemplateFunction(partial(_bounded_date, now))

    def prepare(self, tree: nodes.Template) -> None:
        """Adds counters and measures to a template.

        Raises:
            TemplateOverrunError: the template is too large.
        """
        TemplateBounds().visit(tree)
        tree.set_environment(self)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the same as `TemplateEnvironment`, or a method that measures its result."""
        found = super().getattr(obj, attribute)
        if attribute in MEASURED_METHODS and isinstance(obj, UNBOUNDED_KINDS):
            return _bounded_method(obj, attribute, found)
        return found

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns the same as `TemplateEnvironment`, or a method that measures its result."""
        found = super().getitem(obj, argument)
        is_name = isinstance(argument, str) and isinstance(obj, UNBOUNDED_KINDS)
        if is_name and argument in MEASURED_METHODS:
            return _bounded_method(obj, argument, found)
        return found

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function or macro, and measures what it returns."""
        __context.add_work(1 + len(args) + len(kwargs))
        return __context.measure(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes with numbers; measures a repeated or formatted text before it exists."""
        if isinstance(left, int) and isinstance(right, int):
            check_bits(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            check_percent_format(left, right)
        elif operator == "*":
            check_repeated(left, right)
            check_repeated(right, left)
        return context.measure(super().call_binop(context, operator, left, right))


class TemplateBounds(NodeTransformer):
    """Adds the counters and measures of `BoundedEnvironment` to a template.

    The body of each loop and macro counts its nodes; expressions that make a text or a container
    pass through a filter.
    """

    def __init__(self) -> None:
        self._work = 0
        """Nodes since the begin of the current body."""
        self.nodes = 0
        """Nodes of the template."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Visits a node of syntax.

        Raises:
            TemplateOverrunError: the template is too large.
        """
        self._work += 1
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TemplateOverrunError
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Counts each iteration; with a condition, also the members that it leaves out."""
        self._visit_body(node)
        if node.test is not None:
            node.iter = _filter(node.iter, WALK)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Counts each call."""
        return self._visit_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Counts each call of the block."""
        return self._visit_body(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures the text of a block."""
        self.generic_visit(node)
        node.filter = _filter(node.filter, MEASURE)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a sum of texts, once for all operands."""
        sums = [node]
        while isinstance(sums[-1].left, nodes.Add):
            sums.append(sums[-1].left)
        self._count_operands(len(sums))
        sums[-1].left = self.visit(sums[-1].left)
        for part in sums:
            part.right = self.visit(part.right)
        return _filter(node, MEASURE)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a joined text."""
        self._count_operands(len(node.nodes))
        return self._measured(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a list."""
        return self._measured(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a dict."""
        return self._measured(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a tuple that is not the target of an assignment."""
        if node.ctx == "load":
            return self._measured(node)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Measures a slice."""
        if isinstance(node.arg, nodes.Slice):
            return self._measured(node)
        return self.generic_visit(node)

    def _measured(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, MEASURE)

    def _visit_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        outer_work = self._work
        self._work = 0
        self.generic_visit(node)
        work = nodes.Const(self._work, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(_filter(work, ADD_WORK), lineno=node.lineno))
        self._work = outer_work
        return node

    def _count_operands(self, count: int) -> None:
        self.nodes += count
        if count > MAX_OPERANDS:
            raise TemplateOverrunError


def _filter(node: nodes.Node | None, name: str) -> nodes.Filter:
    lineno = 1 if node is None else node.lineno
    return nodes.Filter(node, name, [], [], None, None, lineno=lineno)


@pass_context
def _hand_over(*arguments: Any, **keywords: Any) -> NoReturn:
    """Stands for a function that may take any time."""
    raise TemplateOverrunError


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter that counts what it reads, and measures what it makes."""
    if name not in FILTERS:
        return _hand_over
    first_argument: object = _PassArg.from_obj(function)
    check: Callable[..., Any] = FILTER_CHECKS.get(name, unchanged)

    @pass_context
    def apply(context: BoundedContext, operand: Any, *arguments: Any, **keywords: Any) -> Any:
        context.read(operand)
        operand = check(operand, *arguments, **keywords)
        if first_argument is None:
            made = function(operand, *arguments, **keywords)
        elif first_argument is _PassArg.context:
            made = function(context, operand, *arguments, **keywords)
        elif first_argument is _PassArg.environment:
            made = function(context.environment, operand, *arguments, **keywords)
        else:
            made = function(context.eval_ctx, operand, *arguments, **keywords)
        if isinstance(made, TemplateIterator):
            return BoundedIterator(made, context.add_work)
        return context.measure(made)

    return apply


def _bounded_method(owner: str | float, name: str, method: Any) -> Any:
    """Returns a method of a string that measures what it makes, if there is one."""
    if not isinstance(owner, str) or name in OTHER_METHODS:
        raise TemplateOverrunError
    if name == "join":
        return TemplateFunction(partial(_checked_join, owner))
    return TemplateFunction(partial(_checked_method, METHOD_CHECKS[name], owner, method))


def _checked_join(separator: str, joined: Any) -> str:
    return separator.join(check_joined(separator, joined))


def _checked_method(
    check: Callable[..., Any], owner: str, method: Any, *arguments: Any, **keywords: Any
) -> Any:
    check(owner, *arguments, **keywords)
    return method(*arguments, **keywords)


def _bounded_date(now: Callable[[], datetime], form: str) -> str:
    if len(form) > MAX_DATE_FORMAT:
        raise TemplateOverrunError
    return now().strftime(form)
