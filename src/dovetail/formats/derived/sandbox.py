"""The sandbox in which chat templates run: it bounds time and memory, forbids writes, and traces text (`traced`).

A template sees Hugging Face's environment: trimmed blocks, loop controls, `generation` blocks, `tojson`,
`raise_exception`, `strftime_now`, `dict` and `namespace`. Source: transformers, `chat_template_utils`.
"""

from __future__ import annotations

import datetime
import functools
import json
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.idtracking
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from markupsafe import Markup

from dovetail.errors import RenderError
from dovetail.formats.derived.limits import (
    MAX_LENGTH,
    SHORT,
    Limits,
    check_call,
    check_comparison,
    check_copy,
    check_filter,
    check_format,
    check_length,
    check_operation,
    check_product,
    check_text,
    check_value,
    listed,
)
from dovetail.formats.derived.traced import Escaping, Mixture, Traced, joined


def _output(parts: Iterable[str]) -> str:
    """The output of a template, a block or a macro."""
    texts = list(parts)
    if (length := sum(map(len, texts))) > SHORT:
        check_length(length)
    return joined(texts)


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Notes the names that a template reads and does not set, and its filters, so that nothing has to look for them."""

    environment: Environment

    def enter_frame(self, frame: jinja2.compiler.Frame) -> None:
        super().enter_frame(frame)
        loads = frame.symbols.loads.values()
        self.environment.undeclared |= {
            name for action, name in loads if action == jinja2.idtracking.VAR_LOAD_RESOLVE and name is not None
        }

    def pull_dependencies(self, nodes: Iterable[jinja2.nodes.Node]) -> None:
        super().pull_dependencies(nodes)
        self.environment.used_filters |= self.filters.keys()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Hugging Face's environment with counted loops, bounded products and traced concatenation, for one template.

    `undeclared`: the names that the template reads and does not set. `used_filters`: the names of its filters.
    """

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset(("*", "**", "%"))
    concat = staticmethod(_output)

    def __init__(self) -> None:
        self.undeclared: set[str] = set()
        self.used_filters: set[str] = set()
        extensions = [_Generation, jinja2.ext.loopcontrols]
        options = {"trim_blocks": True, "lstrip_blocks": True, "finalize": _printed, "extensions": extensions}
        # To compute constants while it compiles takes longer than templates save by it.
        super().__init__(**options, optimized=False)
        own = {"tojson": _to_json, "safe": _safe, "escape": _escape, "e": _escape, "forceescape": _escape_again}
        self.filters = {name: _filter(name, function) for name, function in (self.filters | own).items()}
        self.tests |= {name: _comparison(name) for name in self.tests if name in _OPERATORS or name in _TESTS}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: datetime.datetime.now().strftime(layout),
            "dict": _Dict(),
            "namespace": _Namespace,
            "lipsum": _lipsum,
            "_joined": _concatenated,
            "_added": _added,
            "_compared": _compared,
            "_counted": _counted,
            "_part": _part,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Rewrite().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 10**6 and abs(right) <= 64):
            raise RenderError("the chat template raises a number too high")
        if operator == "*":
            check_product(left, right)
        if operator == "%":
            check_format(left, right if isinstance(right, tuple) else (right,))
        return _traced_result(super().call_binop(context, operator, left, right), right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the base class does it, with a shortcut for the fields and methods that templates use most."""
        kind = type(obj)
        if attribute in ("format", "format_map"):
            check_format(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _METHODS.get(kind, ()) or (kind in _READABLE and not attribute.startswith("_")):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        kind = type(function)
        if kind is Limits or (kind is types.FunctionType and function in _OF_REWRITES):
            return function(*arguments)
        if kind in _TEMPLATE_CALLABLES:
            context.get("_count_passes").spend()
        owner = getattr(function, "__self__", None)
        # Jinja passes the variables of loops and blocks too. Only functions that take the context may receive them.
        scopes = {name: named.pop(name) for name in ("_loop_vars", "_block_vars") if name in named}
        if kind not in _TEMPLATE_CALLABLES:
            name = getattr(function, "__name__", "")
            if name == "join":
                arguments = tuple(map(listed, arguments))
            method = getattr(function, "__wrapped__", None)  # the base class wraps `format` and `format_map`
            check_call(name, owner if method is None else getattr(method, "__self__", None), arguments, named)
        if kind is jinja2.runtime.Macro or type(owner) in _METHODS:
            result = function(*arguments, **named)
        else:
            result = super().call(context, function, *arguments, **named, **scopes)
        if kind in _TEMPLATE_CALLABLES or isinstance(owner, Traced):
            return result
        return _traced_result(result, arguments, named, owner if type(owner) is bytes else None)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, *rest = arguments
        attributes = dict(*rest, **named)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not keep {name!r}: it begins with an underscore")


#: Types whose attributes a template may read, except those that begin with an underscore.
_READABLE = (jinja2.runtime.LoopContext, _Namespace)
#: Callables that return text of the template itself, which is traced already.
_TEMPLATE_CALLABLES = (jinja2.runtime.Macro, jinja2.runtime.LoopContext, jinja2.runtime.BlockReference)
_DICT_ATTRIBUTES = frozenset(dir(dict))
#: The methods that a template may call on the types that messages consist of: the public ones that change nothing.
#: The base class checks `format` and `format_map`, because a format string can reach private attributes.
_METHODS = {
    kind: frozenset(
        name
        for name in dir(kind)
        if not (
            name.startswith("_")
            or name in ("format", "format_map")
            or jinja2.sandbox.modifies_known_mutable(kind(), name)
        )
    )
    for kind in (str, Traced, Mixture, dict, list)
}


#: Filters that return their input, or a string made by the input's own methods, so that the result is traced.
_TRACING = frozenset("attr d default first last max min random replace reverse string trim truncate".split())


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `name`, counted and traced.

    It takes the context, as Jinja runs all other filters of constants while it compiles, outside the limits.
    """
    tracing, scope = name in _TRACING, getattr(function, "jinja_pass_arg", None)

    @jinja2.pass_context
    @functools.wraps(function)
    def filter(context: jinja2.runtime.Context, *arguments: Any, **named: Any) -> Any:
        if name == "join":
            arguments = tuple(map(listed, arguments))
        check_filter(name, [*arguments], named)
        result = function(*_SCOPES[scope](context), *arguments, **named)
        if isinstance(result, types.GeneratorType):
            return context["_count_passes"](result)
        if tracing and isinstance(arguments[0], Traced):
            return result
        if isinstance(result, Mixture) and not tracing:
            return Traced(str.__str__(result))
        return _traced_result(result, arguments, named)

    return filter


def _traced_result(result: Any, *arguments: Any) -> Any:
    """`result`, which counts as the request's text if it is a plain string and an argument may contain such text."""
    if isinstance(result, str) and not isinstance(result, Traced | Markup):
        check_value(arguments)
        if _may_contain_traced(arguments):
            return Traced(str.__str__(result))
    return result


_PASSED = type(jinja2.pass_context(lambda _: None).jinja_pass_arg)  # type: ignore[attr-defined]
#: What a filter takes before its input.
_SCOPES: Mapping[Any, Callable[[jinja2.runtime.Context], tuple[Any, ...]]] = {
    None: lambda context: (),
    _PASSED.context: lambda context: (context,),
    _PASSED.eval_context: lambda context: (context.eval_ctx,),
    _PASSED.environment: lambda context: (context.environment,),
}


#: Types that never contain text of the request.
_WITHOUT_TEXT = (
    type(None),
    int,
    float,
    jinja2.Environment,
    jinja2.nodes.EvalContext,
    jinja2.runtime.Context,
    jinja2.Undefined,
)


def _printed(value: Any) -> str:
    kind = type(value)
    if kind is str or kind is Traced or kind is Mixture:
        if len(value) > SHORT:
            check_text(value)
        return value  # type: ignore[no-any-return]  # mypy does not narrow by `type(…) is`
    check_value(value)
    return value.traced if isinstance(value, Escaping) else _traced_result(str(value), value)


def _concatenated(*parts: Any) -> str:
    text = joined(map(_printed, parts))
    if len(text) > SHORT:
        check_length(len(text))
    return text


def _added(left: Any, right: Any) -> Any:
    """``left + right`` in a place from which the template may add to the result again."""
    result = left + right
    if isinstance(result, str | list) and len(result) > SHORT:
        check_length(len(result))
    return result


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
#: Other names of the operators, as tests have them.
_TESTS = {
    **{"==": "eq", "equalto": "eq", "!=": "ne", ">": "gt", "greaterthan": "gt", ">=": "gteq", "ge": "gteq"},
    **{"<": "lt", "lessthan": "lt", "<=": "lteq", "le": "lteq"},
}


def _compared(operator: str, left: Any, right: Any) -> Any:
    check_comparison(operator, left, right)
    return _OPERATORS[operator](left, right)


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    return functools.partial(_compared, _TESTS.get(name, name))


def _counted(value: Any) -> Any:
    """`value`, of which a walk is counted."""
    check_value(value)
    return value


def _part(value: Any, *of: Any) -> Any:
    """A slice of `value`."""
    part = value[slice(*of)]
    check_copy(part)
    return part


#: The functions that calls of `_Rewrite` call.
_OF_REWRITES = frozenset((_concatenated, _added, _compared, _counted, _part))


def _may_contain_traced(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_may_contain_traced, value)) or any(map(_may_contain_traced, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_may_contain_traced, value))
    # Any other object may have contained it, such as a generator that is exhausted by now.
    return not (type(value) is str or isinstance(value, _WITHOUT_TEXT))


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which marks training text: its content is printed as it is."""

    tags = {"generation"}  # noqa: RUF012  # as the library declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewrite(jinja2.visitor.NodeTransformer):
    """Makes loops call `_count_passes`, `a ~ b` call `_joined`, and sums that may grow call `_added`.

    Comparisons, slices and keys that may take long call `_compared`, `_part` and `_counted`.
    """

    _growing = 1  # how many assignments, macros and calls are around the current node, and 1 for what is not printed

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        self.generic_visit(node)
        node.iter = _call("_count_passes", [node.iter], node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: jinja2.nodes.ScopedEvalContextModifier) -> NoReturn:
        raise jinja2.TemplateSyntaxError("a chat template cannot use autoescape", node.lineno)

    def visit_Output(self, node: jinja2.nodes.Output) -> jinja2.nodes.Output:
        self._growing -= 1  # `_printed` counts it
        self.generic_visit(node)
        self._growing += 1
        return node

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Expr:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if any(isinstance(side, jinja2.nodes.Const) for side in (sides if node.ops[0].op not in _IN else sides[1:])):
            return node  # no longer than the template
        if len(sides) > 2:
            node.expr = _call("_counted", [node.expr], node.lineno)
            for operand in node.ops:
                operand.expr = _call("_counted", [operand.expr], node.lineno)
            return node
        return _call("_compared", [jinja2.nodes.Const(node.ops[0].op), *sides], node.lineno)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Expr:
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            return _call("_part", [node.node, *(each or jinja2.nodes.Const(None) for each in ends)], node.lineno)
        if not isinstance(node.arg, jinja2.nodes.Const):
            node.arg = _call("_counted", [node.arg], node.lineno)
        return node

    def visit_Pair(self, node: jinja2.nodes.Pair) -> jinja2.nodes.Pair:
        self.generic_visit(node)
        if not isinstance(node.key, jinja2.nodes.Const):
            node.key = _call("_counted", [node.key], node.lineno)
        return node

    def visit_Add(self, node: jinja2.nodes.Add) -> jinja2.nodes.Expr:
        self.generic_visit(node)
        return _call("_added", [node.left, node.right], node.lineno) if self._growing else node

    def _visit_growing(self, node: jinja2.nodes.Node) -> jinja2.nodes.Node:
        self._growing += 1
        self.generic_visit(node)
        self._growing -= 1
        return node

    visit_Assign = visit_Macro = visit_CallBlock = visit_Call = visit_Filter = _visit_growing

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Call:
        self.generic_visit(node)
        return _call("_joined", node.nodes, node.lineno)


_IN = ("in", "notin")


def _call(name: str, arguments: list[Any], line: int) -> jinja2.nodes.Call:
    function = jinja2.nodes.Name(name, "load", lineno=line)
    return jinja2.nodes.Call(function, arguments, [], None, None, lineno=line)


class _Dict:
    """`dict` without the attributes of a type."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


def _safe(value: Any) -> Escaping:
    return Escaping.of(_printed(value))


def _escape(value: Any) -> Escaping:
    return value if isinstance(value, Escaping) else _escape_again(value)


def _escape_again(value: Any) -> Escaping:
    return Escaping.escaped(_printed(value))


def _lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    check_operation("lipsum", None, (n,), {})
    check_operation("center", None, (min, max), {})
    return jinja2.utils.generate_lorem_ipsum(n, html, min, max)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Traced:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return Traced(encoder.encode(value))
    parts, length = [], 0
    for part in encoder.iterencode(value):  # what is nested deep is mostly indentation
        parts.append(part)
        length += len(part)
        if length > MAX_LENGTH:
            break
    check_length(length)
    return Traced("".join(parts))
