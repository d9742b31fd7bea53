"""Synthetic agent conversations: random tools, requests that name their values, calls, results, answers.

`sample(seed)` is one conversation up to an assistant turn and the turns that the model should say from there on. Tool
names, schemas and values are drawn anew for every seed, so a held-out seed is a held-out task.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from dovetail.events import Call, Message

VERBS = {
    "get": ("get", "show me", "tell me", "fetch"),
    "find": ("find", "look for", "search for"),
    "search": ("search", "search for", "look up"),
    "list": ("list", "show all", "give me"),
    "create": ("create", "make", "set up"),
    "delete": ("delete", "remove", "get rid of"),
    "update": ("update", "change", "edit"),
    "book": ("book", "reserve", "arrange"),
    "send": ("send", "deliver", "dispatch"),
    "check": ("check", "verify", "look at"),
    "cancel": ("cancel", "call off", "stop"),
    "start": ("start", "launch", "begin"),
    "convert": ("convert", "translate", "turn"),
    "count": ("count", "tally", "add up"),
    "read": ("read", "open", "load"),
    "write": ("write", "save", "store"),
    "rank": ("rank", "sort", "order"),
    "share": ("share", "publish", "post"),
}
NOUNS = (
    "weather forecast hotel flight train ticket invoice order customer email message meeting event calendar note task "
    "file folder document report image video song playlist recipe restaurant movie book article news stock price "
    "currency account payment transfer balance budget expense parcel route map traffic parking taxi car bike user "
    "team project branch commit issue server database table query backup log alert sensor light door camera "
    "thermostat timer alarm reminder contact phone address survey poll vote game score player match league course "
    "lesson exam grade student patient doctor appointment prescription contract license policy claim product catalog "
    "review coupon discount cart"
).split()
CITIES = (
    "Paris London Tokyo Berlin Madrid Rome Oslo Vienna Prague Lisbon Dublin Athens Cairo Lima Boston Chicago Denver "
    "Seattle Miami Toronto Sydney Mumbai Delhi Beijing Shanghai Seoul Singapore Dubai Nairobi Helsinki"
).split()
PEOPLE = (
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paula Quinn Rosa Sam Tina Uma "
    "Victor Wendy Yusuf Zoe"
).split()
WORDS = (
    "red blue green fast slow big small new old daily weekly urgent open closed final draft public private local "
    "global north south early late simple full main test sales summer winter kitchen garden music travel health budget"
).split()
SYLLABLES = (
    "ba be bo da de di do fa fi ga go ka ki ko la le lo ma mi mo na ne no pa po ra ri ro sa so ta te to va vi za zo"
).split()
UNITS = (
    ("celsius", "fahrenheit"),
    ("metric", "imperial"),
    ("low", "medium", "high"),
    ("asc", "desc"),
    ("json", "csv", "xml"),
)
GREETINGS = (
    ("Hello!", "Hello! How can I help you today?"),
    ("Hi there", "Hi! What can I do for you?"),
    ("Thanks a lot.", "You are welcome!"),
    ("Good morning", "Good morning! How can I help?"),
    ("Who are you?", "I am a small demo model that calls tools."),
    ("What can you do?", "I can call the tools you give me and tell you what they return."),
    ("Tell me a joke.", "I only know tools, but I am happy to call one for you."),
)
PREFACES = ("Let me check.", "One moment.", "I will look that up.", "Sure.")
SYSTEMS = ("You are a helpful assistant.", "You are a careful agent. Use the tools.", "Answer briefly.")


@dataclass(frozen=True)
class Sample:
    """`messages` are OpenAI-shaped; the assistant's messages from index `turn` on are what the model should say."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    thinking: bool
    turn: int

    def answer_at(self, index: int) -> Message:
        message = self.messages[index]
        calls = tuple(
            Call(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
        )
        return Message(message["content"], message.get("reasoning_content", ""), calls)


@dataclass(frozen=True)
class _Parameter:
    name: str
    schema: dict[str, Any]
    kind: str
    required: bool


def sample(seed: int) -> Sample:
    """The conversation of `seed`, the same on every machine."""
    return _Writer(random.Random(seed)).conversation()


class _Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calls_made = 0

    def conversation(self) -> Sample:
        rng = self.rng
        thinking = rng.random() < 0.5
        tools, parameters = self._tools(rng.choice((1, 2, 2, 3, 3, 4)))
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.35:
            messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
        if rng.random() < 0.2:
            self._episode(messages, tools, parameters, thinking=False)
        start = len(messages)
        if rng.random() < 0.1:
            question, answer = rng.choice(GREETINGS)
            messages.append({"role": "user", "content": question})
            self._say(messages, answer, "This needs no tool." if thinking else "")
            if rng.random() < 0.5:
                tools = []
        else:
            self._episode(messages, tools, parameters, thinking)
        turn = next(i for i in range(start, len(messages)) if messages[i]["role"] == "assistant")
        return Sample(messages, tools, thinking, turn)

    def _episode(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        parameters: dict[str, list[_Parameter]],
        thinking: bool,
    ) -> None:
        """One request, the calls it needs (at once), their results and the answer."""
        rng = self.rng
        count = min(rng.choice((1, 1, 1, 1, 2, 2, 3)), 3)
        asked = [self._request(rng.choice(tools)["function"]["name"], parameters) for _ in range(count)]
        request = (rng.choice((" and ", ", then ", " and also "))).join(text for text, _, _ in asked)
        opening, ending = rng.choice(
            (("", "."), ("Please ", "."), ("Can you ", "?"), ("I need you to ", "."), ("Now ", "."))
        )
        request = opening + request + ending
        messages.append({"role": "user", "content": request[0].upper() + request[1:]})
        calls = []
        for _, name, arguments in asked:
            separators = (", ", ": ")
            calls.append(
                {
                    "id": f"functions.{name}:{self.calls_made}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments, ensure_ascii=False, separators=separators),
                    },
                }
            )
            self.calls_made += 1
        preface = rng.choice(PREFACES) if rng.random() < 0.3 else ""
        reasoning = "The user wants " + " and ".join(name for _, name, _ in asked) + "." if thinking else ""
        self._say(messages, preface, reasoning, calls)
        results = []
        for call in calls:
            key = rng.choice(("result", "status", "value", "answer"))
            value: Any = rng.choice((rng.choice(WORDS), rng.choice(CITIES), rng.randint(1, 999), self._coined(2)))
            results.append((key, value))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps({key: value})})
        answer = " ".join(f"The {key} is {value}." for key, value in results)
        self._say(messages, answer, "The tools have answered." if thinking else "")

    def _say(
        self, messages: list[dict[str, Any]], content: str, reasoning: str, calls: list[dict[str, Any]] | None = None
    ) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        messages.append(message)

    def _tools(self, count: int) -> tuple[list[dict[str, Any]], dict[str, list[_Parameter]]]:
        tools: list[dict[str, Any]] = []
        parameters: dict[str, list[_Parameter]] = {}
        while len(tools) < count:
            verb = self.rng.choice(tuple(VERBS))
            noun = self.rng.choice(NOUNS) if self.rng.random() < 0.8 else self._coined(self.rng.choice((2, 3)))
            name = f"{verb}_{noun}"
            if name in parameters:
                continue
            fields = self._parameters()
            required = [f.name for f in fields if f.required]
            schema: dict[str, Any] = {"type": "object", "properties": {f.name: f.schema for f in fields}}
            if required:
                schema["required"] = required
            function: dict[str, Any] = {"name": name, "parameters": schema}
            if self.rng.random() < 0.6:
                function["description"] = self.rng.choice(
                    (f"{verb.capitalize()} a {noun}", f"{verb.capitalize()} the {noun}.")
                )
            tools.append({"type": "function", "function": function})
            # The order of the declaration, which is the order in which the model writes its arguments.
            parameters[name] = sorted(fields, key=lambda f: (not f.required, f.name))
        return tools, parameters

    def _parameters(self) -> list[_Parameter]:
        rng = self.rng
        fields: dict[str, _Parameter] = {}
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3))):
            kind = rng.choice(
                (
                    "city",
                    "person",
                    "word",
                    "coined",
                    "phrase",
                    "integer",
                    "integer",
                    "number",
                    "boolean",
                    "enum",
                    "list",
                )
            )
            name = {
                "city": ("city", "location", "destination", "origin"),
                "person": ("name", "owner", "recipient", "user"),
                "word": ("label", "category", "color", "topic"),
                "coined": ("id", "code", "key", "token"),
                "phrase": ("title", "text", "query", "subject"),
                "integer": ("count", "limit", "days", "page", "quantity"),
                "number": ("amount", "price", "ratio"),
                "boolean": ("urgent", "verbose", "recursive"),
                "enum": ("unit", "mode", "format", "level"),
                "list": ("tags", "items", "names"),
            }[kind]
            chosen = rng.choice(name)
            schema: dict[str, Any] = {
                "type": {"integer": "integer", "number": "number", "boolean": "boolean", "list": "array"}.get(
                    kind, "string"
                )
            }
            if kind == "enum":
                schema["enum"] = list(rng.choice(UNITS))
            if kind == "list":
                schema["items"] = {"type": "string"}
            if rng.random() < 0.15:
                schema["description"] = f"The {chosen}"
            fields[chosen] = _Parameter(chosen, schema, kind, rng.random() < 0.8)
        return list(fields.values())

    def _request(self, tool: str, parameters: dict[str, list[_Parameter]]) -> tuple[str, str, dict[str, Any]]:
        """How a user asks for a call of `tool`: (text, tool name, the arguments that text asks for)."""
        rng = self.rng
        verb, noun = tool.split("_", 1)
        fields = parameters[tool]
        arguments = {f.name: self._value(f) for f in fields if f.required or rng.random() < 0.7}
        named = [f for f in fields if f.name in arguments]
        text = f"{rng.choice(VERBS[verb])} {rng.choice(('the ', 'a ', ''))}{noun}"
        cities = [f for f in named if f.kind == "city"]
        if len(cities) == 1 and rng.random() < 0.5:
            text += f" {rng.choice(('in', 'for'))} {arguments[cities[0].name]}"
            named.remove(cities[0])
        phrases = []
        for field in rng.sample(named, len(named)):
            value = _spelled(arguments[field.name])
            phrases.append(field.name + rng.choice((" ", " set to ", " = ")) + value)
        if phrases:
            text += rng.choice((" with ", " using ", " for ")) + " and ".join(phrases)
        return text, tool, arguments

    def _value(self, field: _Parameter) -> Any:
        rng = self.rng
        match field.kind:
            case "city":
                return rng.choice(CITIES)
            case "person":
                return rng.choice(PEOPLE)
            case "word":
                return rng.choice(WORDS)
            case "coined":
                return self._coined(rng.choice((2, 3, 4)))
            case "phrase":
                return " ".join(rng.choice(WORDS + NOUNS) for _ in range(rng.choice((2, 2, 3))))
            case "integer":
                return rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 999)))
            case "number":
                return rng.randint(1, 99) + rng.choice((0.5, 0.25, 0.75))
            case "boolean":
                return rng.random() < 0.5
            case "enum":
                return rng.choice(field.schema["enum"])
            case _:
                return rng.sample(WORDS, rng.choice((1, 2, 3)))

    def _coined(self, syllables: int) -> str:
        return "".join(self.rng.choice(SYLLABLES) for _ in range(syllables))


def _spelled(value: Any) -> str:
    """An argument as a user would write it in a sentence."""
    if isinstance(value, list):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
