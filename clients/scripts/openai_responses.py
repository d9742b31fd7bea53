"""The openai package: Responses."""

import json

import openai
import pydantic
from common import (
    BLUE,
    BOTH,
    COUNT,
    HELLO,
    KEY,
    LOOK,
    LOOK_TOOL,
    MODEL,
    PARTLY_ENFORCED,
    PERSON_REQUEST,
    RED,
    SIGHT,
    TOO_LONG,
    TOOL,
    URL,
    WEATHER,
    feature,
    feature_of_sight,
    main,
    raises,
    result_of,
)

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
TOOLS = [{"type": "function", "strict": True, **TOOL}]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


def ask(given, **fields):
    return client.responses.create(model=MODEL, input=given, temperature=0, **fields)


def calls(response):
    made = [item for item in response.output if item.type == "function_call"]
    return [[item.name, json.loads(item.arguments)] for item in made]


def answered(response):
    """The outputs of the response's calls, as input items."""
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": result_of("Paris")}
        for item in response.output
        if item.type == "function_call"
    ]


@feature
def plain():
    return ask(HELLO).output_text


@feature
def stream():
    with client.responses.stream(model=MODEL, input=COUNT, temperature=0) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert events.get_final_response().output_text == "".join(pieces)
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def reasoning():
    items = ask(HELLO, reasoning={"summary": "auto"}).output
    parts = [part for item in items if item.type == "reasoning" for part in (item.summary or item.content)]
    return "".join(part.text for part in parts)


@feature
def usage():
    counted = ask(HELLO).usage
    return [counted.input_tokens, counted.output_tokens]


@feature
def call():
    return calls(ask(WEATHER, tools=TOOLS))


@feature
def streamed_call():
    with client.responses.stream(model=MODEL, input=WEATHER, tools=TOOLS, temperature=0) as events:
        for _ in events:
            pass
        return calls(events.get_final_response())


@feature
def parallel():
    return calls(ask(BOTH, tools=TOOLS))


@feature
def result():
    """Both ways of going on: the whole history, and `previous_response_id`."""
    first = ask(WEATHER, tools=TOOLS, include=["reasoning.encrypted_content"])
    history = [{"role": "user", "content": WEATHER}, *first.output, *answered(first)]
    whole = ask(history, tools=TOOLS).output_text
    assert ask(answered(first), tools=TOOLS, previous_response_id=first.id).output_text == whole
    return whole


@feature
def structured():
    parsed = client.responses.parse(model=MODEL, input=PERSON_REQUEST, text_format=Person, temperature=0)
    return parsed.output_parsed.model_dump()


@feature_of_sight
def sight():
    parts = [{"type": "input_text", "text": SIGHT}, *({"type": "input_image", "image_url": url} for url in (RED, BLUE))]
    return ask([{"role": "user", "content": parts}]).output_text


@feature_of_sight
def looked():
    tools = [{"type": "function", **LOOK_TOOL}]
    first = ask(LOOK, tools=tools)
    [made] = [item for item in first.output if item.type == "function_call"]
    picture = [{"type": "input_image", "image_url": RED}]
    output = [{"type": "function_call_output", "call_id": made.call_id, "output": picture}]
    whole = ask([{"role": "user", "content": LOOK}, *first.output, *output], tools=tools).output_text
    assert ask(output, tools=tools, previous_response_id=first.id).output_text == whole
    return whole


@feature
def length():
    cut = ask(COUNT, max_output_tokens=16)
    assert cut.status == "incomplete"
    return cut.incomplete_details.reason


@feature
def bad_field():
    return raises(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input=HELLO, temperature=9))


@feature
def overflow():
    return raises(openai.BadRequestError, lambda: ask(TOO_LONG))


@feature
def headers():
    tools = [{"type": "function", **PARTLY_ENFORCED}]
    response = client.responses.with_raw_response.create(model=MODEL, input=HELLO, tools=tools)
    assert response.parse().output
    return response.headers["x-dovetail-unenforced"]


main()
