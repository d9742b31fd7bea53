"""The sandbox that chat templates run in: work without end and writes are refused, and text is traced (see `traced`).

To a template it is Hugging Face's environment: trimmed blocks, loop controls, `generation` blocks, and `tojson`,
`raise_exception`, `strftime_now`, `dict` and `namespace`. Source: transformers, `chat_template_utils`.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterator, Mapping
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
from dovetail.formats.traced import Escaping, Mixture, Traced, joined

#: Characters of one product.
LONGEST_TEXT = 64 * 1024 * 1024


class LoopPasses:
    """Counts the turns of all loops."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def __call__(self, items: Any) -> Iterator[Any]:
        for item in items:
            self._left -= 1
            if self._left < 0:
                raise RenderError(f"the chat template loops more than {self._most:,} times over this conversation")
            yield item


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Hugging Face's environment, with every loop counted, every product bounded and every joint traced."""

    intercepted_binops = frozenset(("*", "**", "%"))
    concat = staticmethod(joined)  # a Traced is a str

    def __init__(self) -> None:
        extensions = [_Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_printed)
        self.filters = {name: _guarded(function, name in _FOLLOWED) for name, function in self.filters.items()}
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
            "_joined": _together,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Rewrite().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 10**6 and abs(right) <= 64):
            raise RenderError("the chat template raises a number too high")
        if operator == "*" and isinstance(left, str | list | tuple) and len(left) * max(right, 0) > LONGEST_TEXT:
            raise RenderError("the chat template makes a text too long")
        return _guard(super().call_binop(context, operator, left, right), right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, which looks longest at what is asked most."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_A_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _METHODS.get(kind, ()) or (kind in _OPEN and not attribute.startswith("_")):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        kind = type(function)
        if function is _together or kind is LoopPasses:
            return function(*arguments)
        owner = getattr(function, "__self__", None)
        # Variables of loops and blocks: not arguments, and for those functions only that ask for the context.
        scopes = {name: named.pop(name) for name in ("_loop_vars", "_block_vars") if name in named}
        if kind is jinja2.runtime.Macro or type(owner) in _METHODS:
            result = function(*arguments, **named)
        else:
            result = super().call(context, function, *arguments, **named, **scopes)
        if kind in _WRITERS or isinstance(owner, Traced):
            return result
        return _guard(result, arguments, named, owner if type(owner) is bytes else None)


class _Namespace(jinja2.utils.Namespace):
    """`namespace`, in which no name may begin with an underscore."""

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


#: Types whose attributes are a template's to read, all but those that begin with an underscore.
_OPEN = (jinja2.runtime.LoopContext, _Namespace)
#: What a template has to call that gives back what the template itself writes, traced.
_WRITERS = (jinja2.runtime.Macro, jinja2.runtime.LoopContext, jinja2.runtime.BlockReference)
_OF_A_DICT = frozenset(dir(dict))
#: What a template may call of the types that messages are made of: all that is public and changes nothing. (How a
#: string is formatted is the sandbox's to watch.)
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


#: Filters whose results are what they were given, or made of it by its own methods.
_FOLLOWED = frozenset("attr d default first last max min random replace reverse string trim truncate".split())


def _guarded(function: Callable[..., Any], followed: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if followed and any(isinstance(argument, Traced) for argument in arguments[:2]):  # what is filtered
            return result
        if isinstance(result, Mixture) and not followed:
            return Traced(str.__str__(result))
        return _guard(result, arguments, named)

    return guarded


def _guard(result: Any, *arguments: Any) -> Any:
    """A string that a method of a plain one, or a filter, has made of the request's text is the request's."""
    if isinstance(result, str) and not isinstance(result, Traced | Markup) and _holds_traced(arguments):
        return Traced(str.__str__(result))
    return result


_HOLDS_NOTHING = (
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
        return value  # type: ignore[no-any-return]  # mypy does not see what the types say
    return value.traced if isinstance(value, Escaping) else _guard(str(value), value)


def _together(*parts: Any) -> str:
    return joined(map(_printed, parts))


def _holds_traced(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_traced, value)) or any(map(_holds_traced, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_traced, value))
    # Anything else may have held the request's text: a generator that is used up by now, say.
    return not (type(value) is str or isinstance(value, _HOLDS_NOTHING))


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: marks what the model is trained on, and prints what is in it."""

    tags = {"generation"}  # noqa: RUF012  # as the library declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewrite(jinja2.visitor.NodeTransformer):
    """Loops go through `_count_passes`, and `a ~ b` through `_joined`."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        self.generic_visit(node)
        node.iter = _call("_count_passes", [node.iter], node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: jinja2.nodes.ScopedEvalContextModifier) -> NoReturn:
        raise jinja2.TemplateSyntaxError("autoescape is not for chat templates", node.lineno)

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


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Traced:
    return Traced(
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )
