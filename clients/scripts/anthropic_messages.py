"""The anthropic package: Messages."""

import anthropic
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
    ROOT,
    SCHEMA,
    SIGHT,
    TOO_LONG,
    TOOL,
    WEATHER,
    feature,
    feature_of_sight,
    main,
    raises,
    result_of,
)

client = anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
TOOLS = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


def request(text, temperature=0, **fields):
    # The package has no field for the temperature any more.
    extra = {"extra_body": {"temperature": temperature}}
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2048, **extra, **fields}


def ask(text, **fields):
    return client.messages.create(**request(text, **fields))


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def calls(message):
    return [[block.name, block.input] for block in message.content if block.type == "tool_use"]


@feature
def plain():
    return text_of(ask(HELLO))


@feature
def stream():
    with client.messages.stream(**request(COUNT)) as events:
        pieces = list(events.text_stream)
        assert text_of(events.get_final_message()) == "".join(pieces)
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def reasoning():
    message = ask(HELLO, thinking=THINKING)
    return "".join(block.thinking for block in message.content if block.type == "thinking")


@feature
def usage():
    counted = ask(HELLO).usage
    before = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": HELLO}]).input_tokens
    assert before == counted.input_tokens + (counted.cache_read_input_tokens or 0), (before, counted)
    return [before, counted.output_tokens]


@feature
def call():
    message = ask(WEATHER, tools=TOOLS)
    assert message.stop_reason == "tool_use"
    return calls(message)


@feature
def streamed_call():
    with client.messages.stream(**request(WEATHER, tools=TOOLS)) as events:
        return calls(events.get_final_message())


@feature
def parallel():
    return calls(ask(BOTH, tools=TOOLS))


@feature
def result():
    """The answer's blocks go back as they came, thinking and its signature too."""
    thinking = {"thinking": THINKING} if MODEL == "scripted" else {}
    message = ask(WEATHER, tools=TOOLS, **thinking)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": result_of("Paris")}
        for block in message.content
        if block.type == "tool_use"
    ]
    messages = [
        {"role": "user", "content": WEATHER},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    return text_of(ask("", messages=messages, tools=TOOLS, **thinking))


@feature
def structured():
    """A tool that the model has to use, as the API's documentation does it."""
    tool = {"name": "person", "input_schema": SCHEMA}
    message = ask(PERSON_REQUEST, tools=[tool], tool_choice={"type": "tool", "name": "person"})
    return calls(message)[0][1]


def image(url):
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    return {"type": "image", "source": source}


@feature_of_sight
def sight():
    return text_of(ask([{"type": "text", "text": SIGHT}, image(RED), image(BLUE)]))


@feature_of_sight
def looked():
    tools = [{"name": LOOK_TOOL["name"], "input_schema": LOOK_TOOL["parameters"]}]
    message = ask(LOOK, tools=tools)
    [use] = [block for block in message.content if block.type == "tool_use"]
    messages = [
        {"role": "user", "content": LOOK},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [image(RED)]}]},
    ]
    return text_of(ask("", messages=messages, tools=tools))


@feature
def length():
    return ask(COUNT, max_tokens=5).stop_reason


@feature
def bad_field():
    return raises(anthropic.BadRequestError, lambda: ask(HELLO, temperature=9))


@feature
def overflow():
    return raises(anthropic.BadRequestError, lambda: ask(TOO_LONG))


@feature
def headers():
    tools = [{"name": PARTLY_ENFORCED["name"], "input_schema": PARTLY_ENFORCED["parameters"]}]
    response = client.messages.with_raw_response.create(**request(HELLO, tools=tools))
    assert response.parse().content
    return response.headers["x-dovetail-unenforced"]


main()
