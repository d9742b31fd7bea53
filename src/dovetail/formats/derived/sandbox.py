"""The sandbox in which chat templates run: it bounds time and memory, forbids writes, and traces text (`traced`).

A template sees Hugging Face's environment: trimmed blocks, loop controls, `generation` blocks, `tojson`,
`raise_exception`, `strftime_now`, `dict` and `namespace`. Source: transformers, `chat_template_utils`.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from markupsafe import Markup

from dovetail.errors import RenderError
from dovetail.formats.derived.limits import CHECKED, Limits, check_format, check_length, check_operation, check_product
from dovetail.formats.derived.traced import Escaping, Mixture, Traced, joined

#: Characters. A text of at most this length is not checked when it is made from others.
_SHORT = 1024


def _output(parts: Iterable[str]) -> str:
    """The output of a template, a block or a macro."""
    listed = list(parts)
    if (length := sum(map(len, listed))) > _SHORT:
        check_length(length)
    return joined(listed)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Hugging Face's environment with counted loops, bounded products and traced concatenation."""

    intercepted_binops = frozenset(("*", "**", "%"))
    concat = staticmethod(_output)

    def __init__(self) -> None:
        extensions = [_Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_printed)
        self.filters = {name: _traced_filter(function, name in _TRACING) for name, function in self.filters.items()}
        self.filters |= {
            "tojson": _to_json,
            "safe": _safe,
            "escape": _escape,
            "e": _escape,
            "forceescape": _escape_again,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: datetime.datetime.now().strftime(layout),
            "dict": _Dict(),
            "namespace": _Namespace,
            "lipsum": _lipsum,
            "_joined": _concatenated,
            "_added": _added,
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
            check_format(left)
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
        if function is _concatenated or function is _added or kind is Limits:
            return function(*arguments)
        if kind in _TEMPLATE_CALLABLES:
            context.get("_count_passes").spend()
        owner = getattr(function, "__self__", None)
        # Jinja passes the variables of loops and blocks too. Only functions that take the context may receive them.
        scopes = {name: named.pop(name) for name in ("_loop_vars", "_block_vars") if name in named}
        if isinstance(owner, str):
            check_operation(function.__name__, owner, arguments, named)
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


#: What Jinja passes to filters before their input.
_SCOPES = (jinja2.Environment, jinja2.nodes.EvalContext, jinja2.runtime.Context)
#: Filters that return their input, or a string made by the input's own methods, so that the result is traced.
_TRACING = frozenset("attr d default first last max min random replace reverse string trim truncate".split())


def _traced_filter(function: Callable[..., Any], tracing: bool) -> Callable[..., Any]:
    name = function.__name__.removeprefix("do_").removeprefix("_")

    @functools.wraps(function)
    def filter(*arguments: Any, **named: Any) -> Any:
        if name in CHECKED:
            values = [value for value in arguments if not isinstance(value, _SCOPES)]
            check_operation(name, values[0], tuple(values[1:]), named)
        result = function(*arguments, **named)
        if tracing and any(isinstance(argument, Traced) for argument in arguments[:2]):  # the context may come first
            return result
        if isinstance(result, Mixture) and not tracing:
            return Traced(str.__str__(result))
        return _traced_result(result, arguments, named)

    return filter


def _traced_result(result: Any, *arguments: Any) -> Any:
    """`result`, which counts as the request's text if it is a plain string and an argument may contain such text."""
    if isinstance(result, str) and not isinstance(result, Traced | Markup) and _may_contain_traced(arguments):
        return Traced(str.__str__(result))
    return result


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
        return value  # type: ignore[no-any-return]  # mypy does not narrow by `type(…) is`
    return value.traced if isinstance(value, Escaping) else _traced_result(str(value), value)


def _concatenated(*parts: Any) -> str:
    text = joined(map(_printed, parts))
    if len(text) > _SHORT:
        check_length(len(text))
    return text


def _added(left: Any, right: Any) -> Any:
    """``left + right`` in a place from which the template may add to the result again."""
    result = left + right
    if isinstance(result, str | list) and len(result) > _SHORT:
        check_length(len(result))
    return result


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
    """Makes loops call `_count_passes`, `a ~ b` call `_joined`, and sums that may grow call `_added`."""

    _growing = 0  # how many assignments, macros and calls are around the current node

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        self.generic_visit(node)
        node.iter = _call("_count_passes", [node.iter], node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: jinja2.nodes.ScopedEvalContextModifier) -> NoReturn:
        raise jinja2.TemplateSyntaxError("a chat template cannot use autoescape", node.lineno)

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
    check_operation("tojson", value, (indent,), {})
    return Traced(
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )
