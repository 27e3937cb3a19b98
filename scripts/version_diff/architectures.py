"""Architectures of models in vLLM's registry: what their classes do, as far as it can be read.

vLLM imports the class of a model to learn whether it generates or pools. Here the class and its
bases are parsed: an attribute or a method of one of them says the same. Start reading at
`architecture_facts`.
"""

import ast
from collections.abc import Iterator, Sequence

from scripts.version_diff.fact import UNKNOWN, Fact
from scripts.version_diff.package import Package
from scripts.version_diff.values import (
    MAX_DEPTH,
    CannotReadError,
    Scope,
    called_name,
    evaluate,
    keyword_of,
    texts_in,
)

FILE = "vllm/model_executor/models/registry.py"
FOLDER = "vllm.model_executor.models"
REGISTRY = "_VLLM_MODELS"
CONFIG_FILES = ("vllm/config/model.py", "vllm/config/__init__.py", "vllm/config.py")
SUFFIXES = "_SUFFIX_TO_DEFAULTS"
OLD_SUFFIXES = "suffix_to_preferred_runner"
"""A list inside a function of 0.10.0 and earlier releases, which has no conversions."""
OLD_RUNNERS = {"generate": "generate none first", "pooling": "pooling embed first"}
CLASSIFIER = "ForSequenceClassification"
"""End of the architectures that these releases serve as classifiers before all else."""
FLAGS = {
    "supports_multimodal": "multimodal",
    "supports_transcription": "transcription",
    "supports_transcription_only": "transcription-only",
    "supports_cross_encoding": "cross-encoder",
}
"""Attribute of a class -> word for it. Older releases have no `score_type`."""
GENERATING_METHOD = "compute_logits"
INTERFACES_FILE = "vllm/model_executor/models/interfaces_base.py"
FORWARD_ARGUMENTS = frozenset(("input_ids", "positions"))
EMBEDDING_METHODS = ("embed_input_ids", "get_input_embeddings")
"""Methods of which a release may require one of each model."""
POOLING_ATTRIBUTE = "is_pooling_model"
SCORE_ATTRIBUTE = "score_type"
SCORE_TYPES = ("cross-encoder", "late-interaction")
LIMITS_METHOD = "get_supported_mm_limits"
"""Method of a processor's class whose result has a key for each kind of input."""
TASKS_METHOD = "get_supported_tasks"
INPUTS = ("image", "video", "audio")
TASKS = ("embed", "token_embed", "classify", "token_classify", "plugin", "embed&token_classify")
OLD_TASKS = {"encode": ("token_embed", "token_classify"), "score": (), "reward": ()}
"""Tasks of earlier releases -> present ones, of which an embedding model has the first one."""
CONVERSIONS = {
    "as_embedding_model": ("embed", "token_embed"),
    "as_seq_cls_model": ("classify", "token_classify", "cross-encoder"),
}
"""Function that makes a pooling model of a class -> words for the result."""
TASKS_BY_FUNCTION = ("token_embed", "token_classify", "embed", "classify", "encode")
"""Ends of the names of functions that make a pooler for one task, as in `pooler_for_embed`."""
Class = tuple[Scope, ast.ClassDef]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def architecture_facts(package: Package) -> Iterator[Fact]:
    """Yields the architectures of the registry, with words for what their models do.

    "generate" and tasks of poolers say what a class does itself, without conversions.
    """
    module = package.module(FILE)
    if module is None:
        return
    for name, model in _registered(Scope(package, module)).items():
        attributes = {"does": " ".join(_words(model)) if model is not None else UNKNOWN}
        yield Fact("architecture", name, attributes=attributes)


def suffix_facts(package: Package) -> Iterator[Fact]:
    """Yields what vLLM takes an architecture for by its end: a runner, and a conversion.

    "first" says that a release compares ends before it looks into the registry.

    Raises:
        ValueError: A suffix hides a longer one. Readers take the longest suffix that fits.
    """
    rows = _suffixes(package)
    for place, (suffix, does) in enumerate(rows):
        if any(later.endswith(suffix) for later, _ in rows[place + 1 :]):
            raise ValueError(f"architectures that end in {suffix} hide longer ends")
        yield Fact("suffix", suffix, attributes={"does": does})


def _suffixes(package: Package) -> list[tuple[str, str]]:
    """Returns the ends of architectures in vLLM's order, with words for what follows."""
    for path in CONFIG_FILES:
        module = package.module(path)
        if module is None:
            continue
        scope = Scope(package, module)
        table = module.names.get(SUFFIXES)
        if table is not None:
            rows = evaluate(scope, table)
            assert isinstance(rows, list)
            return [(suffix, " ".join(defaults)) for suffix, defaults in rows]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == OLD_SUFFIXES:
                assert node.value is not None
                pairs = evaluate(scope, node.value)
                assert isinstance(pairs, list)
                return [
                    (CLASSIFIER, "pooling classify first"),
                    *((suffix, OLD_RUNNERS[runner]) for suffix, runner in pairs),
                ]
    return []


def _registered(scope: Scope) -> dict[str, Class | None]:
    """Returns the class of each architecture; None for one that cannot be read."""
    registry = scope.module.names.get(REGISTRY)
    models: dict[str, Class | None] = {}
    if not isinstance(registry, ast.Dict):
        return models
    for key, part in zip(registry.keys, registry.values, strict=True):
        table = scope.module.names.get(ast.unparse(part))
        if key is not None or not isinstance(table, ast.Dict):
            continue
        for name, entry in zip(table.keys, table.values, strict=True):
            # A comprehension repeats entries of another table.
            if isinstance(name, ast.Constant) and isinstance(entry, ast.Tuple):
                module_name, class_name = texts_in(scope, entry)
                models[str(name.value)] = _class_in(scope, module_name, class_name)
    return models


def _class_in(scope: Scope, module_name: str, class_name: str) -> Class | None:
    if not module_name.startswith("vllm."):
        module_name = f"{FOLDER}.{module_name}"
    module = scope.package.module_named(module_name)
    if module is None:
        return None
    return Scope(scope.package, module).class_at(ast.Name(class_name))


def _words(model: Class) -> Iterator[str]:
    """Yields the words for what a class does, always in the same order."""
    classes = list(_with_bases(*model))
    if _is_model(classes) and _method(classes, GENERATING_METHOD) is not None:
        yield "generate"
    converted = [word for each in classes for word in _conversion(*each)]
    if converted:
        yield from converted
    elif _attribute(classes, POOLING_ATTRIBUTE) is True:
        tasks = _pooler_tasks(classes)
        yield from [task for task in TASKS if task in tasks] or [UNKNOWN]
    score_type = _attribute(classes, SCORE_ATTRIBUTE)
    words = [word for name, word in FLAGS.items() if _attribute(classes, name) is True]
    for word in (*words, score_type):
        if word in SCORE_TYPES or word in FLAGS.values():
            yield str(word)
    if "multimodal" in words:
        yield from _inputs(classes)


def _is_model(classes: Sequence[Class]) -> bool:
    """Returns whether a class has the methods that vLLM expects of each model.

    Some drafters of speculative decoding lack them.
    """
    forward = _method(classes, "forward")
    if forward is not None and forward[1].args.kwarg is None:
        arguments = forward[1].args
        names = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
        if not names >= FORWARD_ARGUMENTS:
            return False
    module = classes[0][0].package.module(INTERFACES_FILE)
    expected = [name for name in EMBEDDING_METHODS if module and f'model, "{name}"' in module.text]
    return not expected or any(_method(classes, name) is not None for name in expected)


def _with_bases(scope: Scope, node: ast.ClassDef, depth: int = 0) -> Iterator[Class]:
    """Yields a class and its bases in vLLM, in the order in which attributes are looked up."""
    yield scope, node
    if depth > MAX_DEPTH:
        return
    lines = [list(_with_bases(*base, depth + 1)) for base in _bases(scope, node)]
    later = [[each[1] for each in line] for line in lines]
    for number, line in enumerate(lines):
        for each in line:
            # A class comes after the classes that are derived from it.
            if not any(each[1] in names for names in later[number + 1 :]):
                yield each


def _conversion(scope: Scope, node: ast.ClassDef) -> tuple[str, ...]:
    """Returns the words for a base that a function makes of another class."""
    for value in _base_expressions(scope, node):
        if isinstance(value, ast.Call) and called_name(value) in CONVERSIONS:
            return CONVERSIONS[called_name(value)]
    return ()


def _bases(scope: Scope, node: ast.ClassDef) -> Iterator[Class]:
    for base in _base_expressions(scope, node):
        expression = base
        if isinstance(base, ast.Subscript):
            expression = base.value
        elif isinstance(base, ast.Call) and base.args:
            expression = base.args[0]
        resolved = scope.class_at(expression)
        if resolved is not None:
            yield resolved


def _base_expressions(scope: Scope, node: ast.ClassDef) -> Iterator[ast.expr]:
    """Yields the bases of a class; a name may have one value at run time, and one for checkers."""
    for base in node.bases:
        values = [
            statement.value
            for statement in ast.walk(scope.module.tree)
            if isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == ast.unparse(base)
        ]
        yield from values or [base]


def _method(classes: Sequence[Class], name: str) -> tuple[Scope, Function] | None:
    """Returns the first method of a name among classes, and the scope of its module."""
    for scope, node in classes:
        for statement in node.body:
            if isinstance(statement, Function) and statement.name == name:
                return scope, statement
    return None


def _attribute(classes: Sequence[Class], name: str) -> object:
    """Returns the first value of an attribute among classes; None without a readable one."""
    for scope, node in classes:
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign | ast.Assign) or statement.value is None:
                continue
            if name in _targets(statement):
                try:
                    return evaluate(scope, statement.value)
                except CannotReadError:
                    return None
    return None


def _targets(statement: ast.AnnAssign | ast.Assign) -> list[str]:
    if isinstance(statement, ast.AnnAssign):
        return [ast.unparse(statement.target)]
    return [ast.unparse(target) for target in statement.targets]


def _inputs(classes: Sequence[Class]) -> Iterator[str]:
    """Yields the kinds of input that the processor of a multimodal model has limits for."""
    for scope, node in classes:
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            if called_name(decorator) != "register_processor":
                continue
            information = scope.class_at(keyword_of(decorator, "info"))
            if information is None:
                return
            texts = _limit_texts(list(_with_bases(*information)))
            yield from (kind for kind in INPUTS if kind in texts)
            return


def _limit_texts(classes: Sequence[Class]) -> set[object]:
    """Returns the texts in the method with the limits, and in those that it extends."""
    texts: set[object] = set()
    for scope, node in classes:
        method = _method([(scope, node)], LIMITS_METHOD)
        if method is None:
            continue
        texts.update(each.value for each in ast.walk(method[1]) if isinstance(each, ast.Constant))
        if f"super().{LIMITS_METHOD}" not in ast.unparse(method[1]):
            break
    return texts


def _pooler_tasks(classes: Sequence[Class]) -> set[str]:
    """Returns the tasks of the pooler that a class makes, in present names."""
    tasks: set[str] = set()
    for scope, node in classes:
        for function in node.body:
            if isinstance(function, Function) and not tasks:
                for value_scope, value in _poolers_set_by(scope, function):
                    tasks |= _tasks(value_scope, value, classes)
    for old_name, names in OLD_TASKS.items():
        if old_name in tasks and names:
            tasks.add(names[0] if "embed" in tasks else names[1])
    return tasks


def _poolers_set_by(
    scope: Scope, function: Function, target: str = "self.pooler", depth: int = 0
) -> Iterator[tuple[Scope, ast.expr]]:
    """Yields what a method assigns to the pooler, also in a function that it passes itself to."""
    inner = scope.inside(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and target in map(ast.unparse, node.targets):
            yield inner, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and depth < 1:
            resolved = scope.resolve(node.func.id)
            passes_self = bool(node.args) and ast.unparse(node.args[0]) == "self"
            if passes_self and resolved is not None and isinstance(resolved[1], Function):
                parameter = resolved[1].args.args[0].arg
                yield from _poolers_set_by(
                    resolved[0], resolved[1], target=f"{parameter}.pooler", depth=depth + 1
                )


def _tasks(scope: Scope, node: ast.AST, owner: Sequence[Class], depth: int = 0) -> set[str]:
    """Returns the tasks of an expression that makes a pooler; empty if they cannot be read.

    Args:
        scope: The scope of the expression.
        node: The expression.
        owner: The class of `self`, with its bases.
        depth: The number of expressions around it.
    """
    if depth > MAX_DEPTH:
        return set()
    match node:
        case ast.Name(id=name) if name in scope.local_names:
            return _tasks(scope, scope.local_names[name], owner, depth + 1)
        case ast.IfExp(body=body, orelse=other):
            return _tasks(scope, body, owner, depth + 1) | _tasks(scope, other, owner, depth + 1)
        case ast.Call(args=[ast.Dict(keys=keys), *_]):
            return {str(key.value) for key in keys if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Attribute(value=ast.Name(id=holder), attr=name)):
            classes = owner
            if holder not in ("self", "cls"):
                resolved = scope.class_at(ast.Name(holder))
                classes = list(_with_bases(*resolved)) if resolved is not None else []
            return _tasks_of_method(classes, name, owner, depth)
        case ast.Call(func=ast.Name(id=name)):
            return _task_of_function(name) or _tasks_of_class(scope, node, owner, depth)
    return set()


def _tasks_of_method(
    classes: Sequence[Class], name: str, owner: Sequence[Class], depth: int
) -> set[str]:
    """Returns the tasks of the pooler that a method returns."""
    if _task_of_function(name):
        return _task_of_function(name)
    method = _method(classes, name)
    tasks: set[str] = set()
    if method is not None:
        scope = method[0].inside(method[1])
        for node in ast.walk(method[1]):
            if isinstance(node, ast.Return) and node.value is not None:
                tasks |= _tasks(scope, node.value, owner, depth + 1)
    return tasks


def _task_of_function(name: str) -> set[str]:
    _, is_for, task = name.partition("for_")
    return {task} if is_for and task in TASKS_BY_FUNCTION else set()


def _tasks_of_class(scope: Scope, call: ast.Call, owner: Sequence[Class], depth: int) -> set[str]:
    """Returns the tasks of an instance of a class: its own ones, or those of its argument."""
    resolved = scope.class_at(call.func)
    if resolved is None:
        return set()
    method = _method(list(_with_bases(*resolved)), TASKS_METHOD)
    if method is not None:
        for node in ast.walk(method[1]):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Set):
                return set(texts_in(method[0], node.value))
    if not call.args:
        return set()
    return _tasks(scope, call.args[0], owner, depth + 1)
