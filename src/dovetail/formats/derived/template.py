"""`Template`: a chat template, compiled once and rendered in a sandbox.

The sandbox (`sandbox`) bounds time and memory. Its strings (`traced`) know whether the template or the request wrote
them, so that only the template writes control tokens.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jinja2
import jinja2.nodes

from dovetail.conversation import ROLES
from dovetail.errors import CheckpointError, RenderError
from dovetail.formats.derived.limits import Limits
from dovetail.formats.derived.sandbox import Environment
from dovetail.formats.derived.traced import Traced, alternating
from dovetail.tokens import Prompt

#: Passes through all loops of one rendering. A template that goes through 10,000 messages for each of 100 of them needs
#: a million.
MAX_LOOP_PASSES = 5_000_000
#: Characters of a template. Real ones have about 20,000; the worst template of this size takes 4 s to compile.
MAX_TEMPLATE_LENGTH = 64 * 1024

#: Variables that the environment or `Template.render` sets. Any other variable is an option of the template.
_PROVIDED = frozenset(
    ("_count_passes", "messages", "tools", "add_generation_prompt", "continue_final_message", "documents")
)

#: The filter and the function whose results are random.
_RANDOM = ("random", "lipsum")
#: The tests and filters with which a template handles undefined variables.
_UNDEFINED_TESTS = ("defined", "undefined", "default")


class Template:
    """A compiled chat template.

    `source` is its text and `options` are the names of the variables that a caller may set. Templates are equal if they
    render alike.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        """`special` maps `bos_token`, `eos_token` and so on to literals, as in the tokenizer's configuration.

        Raises `CheckpointError` for a template that is too long or does not compile.
        """
        if len(source) > MAX_TEMPLATE_LENGTH:
            raise CheckpointError(
                f"the chat template has {len(source):,} characters: at most {MAX_TEMPLATE_LENGTH:,} are read"
            )
        self.source = source
        self._special = dict(special or {})
        environment = Environment()
        try:
            tree = environment.parse(source)
            code = environment.compile(tree)
            self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise CheckpointError(f"the chat template cannot be read: {error}") from error
        names = environment.undeclared - _PROVIDED - environment.globals.keys() - self._special.keys()
        self.options = tuple(sorted(names - _own(tree, names)))
        #: Whether the same conversation may be rendered in two ways.
        self.is_random = not (environment.undeclared | environment.used_filters).isdisjoint(_RANDOM)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and (self.source, self._special) == (other.source, other._special)

    def __hash__(self) -> int:
        return hash(self.source)

    def render(
        self,
        messages: Any,
        tools: Any,
        *,
        controls: re.Pattern[str],
        add_generation_prompt: bool,
        options: Mapping[str, Any] = MappingProxyType({}),
        limits: Limits | None = None,
        now: datetime.datetime | None = None,
    ) -> Prompt:
        """The prompt for messages and tools.

        `controls`: finds the literals of control tokens (see `pattern`). Only those that the template itself wrote
        become control tokens.
        `options`: values for the template's own variables.
        `limits`: what the template may do; None: what a template of a real model needs.
        `now`: the time that the template gets if it asks; None: the time.

        Raises `RenderError` if the template raises an error or exceeds a limit of the sandbox.
        """
        limits = Limits(MAX_LOOP_PASSES) if limits is None else limits
        clock = {} if now is None else {"strftime_now": now.strftime}
        try:
            with limits:
                text = self._template.render(
                    self._special,
                    messages=_traced_messages(messages),
                    tools=_traced(tools) if tools else None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    _count_passes=limits,
                    **clock,
                    **{name: _traced(value) for name, value in options.items()},
                )
        except RenderError:
            raise
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
            raise RenderError(f"the chat template refuses this conversation: {error}") from error
        except (TypeError, ValueError, MemoryError) as error:
            raise RenderError(f"the chat template cannot render this conversation: {error}") from error
        return Prompt.alternating(alternating(text, controls))


def pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """A regex that finds the literals of control tokens as its only group, the longest one at each position."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(literals, key=len, reverse=True))) or '(?!)'})")


def _own(tree: jinja2.nodes.Template, names: Container[str]) -> set[str]:
    """Those of `names` that the template sets whether or not the caller did."""
    own: set[str] = set()
    defaults: set[str] = set()

    def visit(node: jinja2.nodes.Node, conditions: tuple[jinja2.nodes.Node, ...]) -> None:
        """`conditions`: what decides whether `node` runs."""
        if isinstance(node, jinja2.nodes.If):
            conditions = (*conditions, node.test)
        elif isinstance(node, jinja2.nodes.Assign):
            conditions = (*conditions, node.node)
        elif isinstance(node, jinja2.nodes.Name) and node.ctx != "load" and node.name in names:
            tests = (part for part in _descendants(conditions) if getattr(part, "name", "") in _UNDEFINED_TESTS)
            if node.name not in _names(conditions):
                own.add(node.name)
            if node.name in _names(tests):
                defaults.add(node.name)
        for child in node.iter_child_nodes():
            visit(child, conditions)

    visit(tree, ())
    return own - defaults


def _names(nodes: Iterable[jinja2.nodes.Node]) -> set[str]:
    return {node.name for node in _descendants(nodes) if isinstance(node, jinja2.nodes.Name)}


def _descendants(nodes: Iterable[jinja2.nodes.Node]) -> Iterator[jinja2.nodes.Node]:
    """Nodes and all nodes in them."""
    for node in nodes:
        yield node
        yield from node.find_all(jinja2.nodes.Node)


#: Names of message fields.
_FIELDS = frozenset(
    "arguments content function id name reasoning reasoning_content role thinking tool_call_id tool_calls type".split()
)


def _traced_messages(messages: Any) -> Any:
    """Messages with every string traced except roles and field names, which are words of the protocol.

    Templates build control tokens from them, as in ``'<|' ~ message.role ~ '|>'``.
    """
    if type(messages) is list:
        return [_traced_messages(message) for message in messages]
    if type(messages) is not dict:
        return _traced(messages)
    return {
        key if key in _FIELDS else _traced(key): value
        if key == "role" and value in ROLES
        else (_traced_messages if key in ("tool_calls", "function") else _traced)(value)
        for key, value in messages.items()
    }


def _traced(value: Any) -> Any:
    """`value` as plain JSON types with every string traced, keys too. Raises `TypeError` if it is not JSON."""
    kind = type(value)
    if kind is str:
        return Traced(value)
    if kind is dict:
        return {_traced(key): _traced(item) for key, item in value.items()}
    if kind is list:
        return [_traced(item) for item in value]
    if isinstance(value, str):
        return value if isinstance(value, Traced) else Traced(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_traced(key): _traced(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_traced(item) for item in value]
    raise TypeError(f"a {kind.__name__} is not a JSON value")
