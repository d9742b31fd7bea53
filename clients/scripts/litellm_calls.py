"""litellm: `completion` with the provider that the harness names, `text_completion` and `responses`."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from common import (
    BOTH,
    COUNT,
    HELLO,
    KEY,
    MODEL,
    PERSON_REQUEST,
    ROOT,
    SCHEMA,
    TOO_LONG,
    TOOL,
    URL,
    WEATHER,
    calls_of,
    feature,
    main,
    raises,
    result_of,
)

API = os.environ["DOVETAIL_API"]
PROVIDER = {"chat": "openai", "messages": "anthropic", "responses": "openai/responses"}[API]
TOOLS = [{"type": "function", "function": TOOL}]
# It refuses reasoning for a model that it does not know; on Responses it also simulates the stream of one, and then
# doubles the arguments of calls.
KNOWN = {"supports_reasoning": True, "supports_native_streaming": True}
for provider in ("openai", "anthropic"):
    litellm.register_model({f"{provider}/{MODEL}": {"litellm_provider": provider, **KNOWN}})


def ask(text, **fields):
    fields = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    base = ROOT if API == "messages" else URL
    return litellm.completion(f"{PROVIDER}/{MODEL}", api_base=base, api_key=KEY, num_retries=0, **fields)


def folded(stream):
    return litellm.stream_chunk_builder(list(stream)).choices[0].message


@feature
def plain():
    return ask(HELLO).choices[0].message.content


@feature
def stream():
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(COUNT, stream=True) if chunk.choices]
    return {"text": "".join(pieces), "pieces": len(list(filter(None, pieces)))}


@feature
def reasoning():
    thinking = {
        "chat": {},
        "messages": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "responses": {"reasoning_effort": {"effort": "medium", "summary": "auto"}},
    }[API]
    return getattr(ask(HELLO, **thinking).choices[0].message, "reasoning_content", None)


@feature
def usage():
    counted = ask(HELLO).usage
    return [counted.prompt_tokens, counted.completion_tokens]


@feature
def call():
    return calls_of(ask(WEATHER, tools=TOOLS).choices[0].message.tool_calls)


@feature
def streamed_call():
    return calls_of(folded(ask(WEATHER, tools=TOOLS, stream=True)).tool_calls)


@feature
def parallel():
    return calls_of(ask(BOTH, tools=TOOLS).choices[0].message.tool_calls)


@feature
def result():
    message = ask(WEATHER, tools=TOOLS).choices[0].message
    results = [{"role": "tool", "tool_call_id": made.id, "content": result_of("Paris")} for made in message.tool_calls]
    messages = [{"role": "user", "content": WEATHER}, message, *results]
    return ask("", messages=messages, tools=TOOLS).choices[0].message.content


@feature
def structured():
    schema = {"type": "json_schema", "json_schema": {"name": "Person", "schema": SCHEMA, "strict": True}}
    return json.loads(ask(PERSON_REQUEST, response_format=schema).choices[0].message.content)


@feature
def length():
    return ask(COUNT, max_tokens=16).choices[0].finish_reason


@feature
def bad_field():
    return raises(litellm.BadRequestError, lambda: ask(HELLO, temperature=9))


@feature
def overflow():
    return raises(litellm.ContextWindowExceededError, lambda: ask(TOO_LONG))


main()
