"""The openai package: chat completions."""

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
    calls_of,
    feature,
    feature_of_sight,
    main,
    raises,
    result_of,
)

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
TOOLS = [{"type": "function", "function": TOOL}]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


def ask(text, **fields):
    fields = {"temperature": 0, **fields}
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **fields)


@feature
def plain():
    return ask(HELLO).choices[0].message.content


@feature
def stream():
    pieces = [c.choices[0].delta.content for c in ask(COUNT, stream=True) if c.choices and c.choices[0].delta.content]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def reasoning():
    return getattr(ask(HELLO).choices[0].message, "reasoning_content", None)


@feature
def usage():
    counted = ask(HELLO).usage
    *_, last = ask(HELLO, stream=True, stream_options={"include_usage": True})
    assert last.usage.model_dump(exclude={"speculation"}) == counted.model_dump(exclude={"speculation"})
    return [counted.prompt_tokens, counted.completion_tokens]


@feature
def call():
    return calls_of(ask(WEATHER, tools=TOOLS).choices[0].message.tool_calls)


@feature
def streamed_call():
    messages = [{"role": "user", "content": WEATHER}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS, temperature=0) as events:
        for _ in events:
            pass
        return calls_of(events.get_final_completion().choices[0].message.tool_calls)


@feature
def parallel():
    return calls_of(ask(BOTH, tools=TOOLS).choices[0].message.tool_calls)


@feature
def result():
    messages = [{"role": "user", "content": WEATHER}]
    message = ask(WEATHER, tools=TOOLS).choices[0].message
    messages.append(message)
    for made in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": made.id, "content": result_of("Paris")})
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)
    return answer.choices[0].message.content


@feature
def structured():
    messages = [{"role": "user", "content": PERSON_REQUEST}]
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person, temperature=0)
    return parsed.choices[0].message.parsed.model_dump()


@feature_of_sight
def sight():
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in (RED, BLUE)]
    return ask([{"type": "text", "text": SIGHT}, *pictures]).choices[0].message.content


@feature_of_sight
def looked():
    tools = [{"type": "function", "function": LOOK_TOOL}]
    message = ask(LOOK, tools=tools).choices[0].message
    [made] = message.tool_calls
    picture = [{"type": "image_url", "image_url": {"url": RED}}]
    messages = [
        {"role": "user", "content": LOOK},
        message,
        {"role": "tool", "tool_call_id": made.id, "content": picture},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, temperature=0)
    return answer.choices[0].message.content


@feature
def length():
    return ask(COUNT, max_tokens=5).choices[0].finish_reason


@feature
def bad_field():
    return raises(openai.BadRequestError, lambda: ask(HELLO, temperature=9))


@feature
def overflow():
    return raises(openai.BadRequestError, lambda: ask(TOO_LONG))


@feature
def headers():
    messages, tools = [{"role": "user", "content": HELLO}], [{"type": "function", "function": PARTLY_ENFORCED}]
    response = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, tools=tools)
    assert response.parse().choices
    return response.headers["x-dovetail-unenforced"]


main()
