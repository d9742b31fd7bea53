"""JSON values as rules of Lark, so that their numbers have a bound on their digits.

llguidance writes a whole schema by itself (`%json`), without such a bound. What `json_rules` does not write stays
`%json`. But for the digits, the rules allow what `%json` allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.grammar.cache import Cache
from dovetail.grammar.json_rules import STRING, JsonRules, NotPlainError, Undeclared
from dovetail.grammar.lark_schema import OPTIONS, complaint
from dovetail.grammar.patterns import other_texts
from dovetail.grammar.schemas.keywords import ABOUT
from dovetail.grammar.schemas.walk import SpelledSchema

#: Keywords that compare numbers.
_EXACT = frozenset((*ABOUT["number"], "const", "enum"))
#: The library's complaints about schemas, which are often the same ones in several tools.
_COMPLAINTS: Cache[str] = Cache(1024, 4 * 2**20)


def write(spelled: SpelledSchema, rules: dict[str, str]) -> str | None:
    """The name of the rule or terminal for a schema in the words of `lark_schema`; None if it has to be `%json`.

    `rules`: the names of rules and terminals by their body. This schema adds its own.
    """
    if any(pointer.rpartition("/")[2] in _EXACT for pointer in spelled.unenforced):
        return None  # a number that the library cannot compare may need more digits than the bound
    writer = _LarkRules(spelled.schema, rules)
    try:
        whole = writer.value(spelled.schema)
    except (NotPlainError, RecursionError, UnicodeEncodeError):
        return None
    if whole is None:
        return None  # no value is valid: the library says why
    whole = writer.named("value", whole)
    rules.update(writer.made)
    return whole


class _LarkRules(JsonRules):
    comment = "//"

    def __init__(self, root: Any, rules: Mapping[str, str]) -> None:
        super().__init__(root, rules)
        self._numbers: dict[str, bool] = {}  # by reference: whether its values may be numbers

    def value(self, schema: Any) -> str | None:
        if isinstance(schema, dict) and schema.keys() - {"x-guidance", "$defs"} == {"anyOf"}:
            branches = schema["anyOf"]
            if isinstance(branches, list) and sum(map(self._may_be_number, branches)) > 1:
                # llguidance's lexer takes the longest text of any of them: the sign or the digits of one number would
                # end the others.
                return self.other(schema)
        return super().value(schema)

    def terminal(self, regex: str) -> str:
        return self.named("JSON", f"/{regex}/")  # no regex here has a slash

    def other(self, schema: Mapping[str, Any]) -> str | None:
        """A value as the library writes it."""
        own = {**schema, "x-guidance": OPTIONS}
        text = json.dumps(own)
        if '"$ref"' in text:
            raise NotPlainError
        if error := _COMPLAINTS.get(text, len(text), lambda: complaint(own)):
            if "Unsatisfiable" in error:
                return None
            raise NotPlainError
        return self.named("json", f"%json {text}")

    def undeclared(self, schema: Mapping[str, Any], declared: Mapping[str, Any]) -> Undeclared | None:
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            # `lark_schema` has one pattern for all keys that are not declared.
            ((pattern, values), *more) = schema["patternProperties"].items() or ((None, True),)
            known = pattern == "" or pattern == other_texts(declared)
            return None if more or others is not False or not known else (self._key, values)
        return None if declared and others is not False else (self._key, others)

    def between(self, least: int, most: int) -> str:
        return self.named("json", f"%json {json.dumps({'type': 'integer', 'minimum': least, 'maximum': most})}")

    def _key(self, declared: Iterable[str]) -> str:
        names = [json.dumps(name, ensure_ascii=False) for name in declared]
        if not names:
            return self.string()
        words = " | ".join(json.dumps(name, ensure_ascii=False) for name in names)
        return self.named("JSON", f"/{STRING}/ & ~({words})")

    def _may_be_number(self, schema: Any) -> bool:
        """Whether a value of `schema` may be a number; True where that is not plain to see."""
        if not isinstance(schema, dict):
            return schema is not False
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._numbers:  # looked at once, however many schemas refer to it, itself among them
                self._numbers[reference] = True
                target = self._root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), True)
                self._numbers[reference] = self._may_be_number(target)
            return self._numbers[reference]
        if isinstance(schema.get("anyOf"), list):
            return any(map(self._may_be_number, schema["anyOf"]))
        if "const" in schema or isinstance(schema.get("enum"), list):
            return any(isinstance(each, int | float) for each in schema.get("enum", [schema.get("const")]))
        types = schema.get("type", "number")
        return not {"number", "integer"}.isdisjoint([types] if isinstance(types, str) else types)
