"""langchain: its chat models, on the API that the harness names."""

import os

import pydantic
from common import (
    BOTH,
    COUNT,
    HELLO,
    KEY,
    MODEL,
    PERSON_REQUEST,
    ROOT,
    TOO_LONG,
    URL,
    WEATHER,
    feature,
    main,
    raises,
    result_of,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool

API = os.environ["DOVETAIL_API"]


def chat(**fields):
    if API == "messages":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model=MODEL, base_url=ROOT, api_key=KEY, max_retries=0, **{"temperature": 0, **fields})
    from langchain_openai import ChatOpenAI

    fields = {"temperature": 0, "use_responses_api": API == "responses", **fields}
    return ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, **fields)


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int


@tool
def get_weather(city: str) -> str:
    """Get the weather"""
    return result_of(city)


def calls(message):
    return [[made["name"], made["args"]] for made in message.tool_calls]


@feature
def plain():
    return chat().invoke(HELLO).text


@feature
def stream():
    pieces = [chunk.text for chunk in chat().stream(COUNT) if chunk.text]
    return {"text": "".join(pieces), "pieces": len(pieces)}


if API != "chat":  # ChatOpenAI has no place for the reasoning of chat completions

    @feature
    def reasoning():
        asked = {"thinking": {"type": "adaptive"}} if API == "messages" else {"reasoning": {"summary": "auto"}}
        blocks = chat(**asked).invoke(HELLO).content_blocks
        return "".join(block["reasoning"] for block in blocks if block["type"] == "reasoning")


@feature
def usage():
    counted = chat().invoke(HELLO).usage_metadata
    return [counted["input_tokens"], counted["output_tokens"]]


@feature
def call():
    return calls(chat().bind_tools([get_weather]).invoke(WEATHER))


@feature
def streamed_call():
    whole = None
    for chunk in chat().bind_tools([get_weather]).stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    return calls(whole)


@feature
def parallel():
    return calls(chat().bind_tools([get_weather]).invoke(BOTH))


@feature
def result():
    model = chat().bind_tools([get_weather])
    answer = model.invoke(WEATHER)
    results = [ToolMessage(get_weather.invoke(made["args"]), tool_call_id=made["id"]) for made in answer.tool_calls]
    return model.invoke([HumanMessage(WEATHER), answer, *results]).text


@feature
def structured():
    return chat().with_structured_output(Person).invoke(PERSON_REQUEST).model_dump()


@feature
def length():
    cut = chat(max_tokens=16 if API == "responses" else 5).invoke(COUNT).response_metadata
    return cut.get("finish_reason") or cut.get("stop_reason") or cut["incomplete_details"]["reason"]


@feature
def bad_field():
    import anthropic
    import openai

    kind = anthropic.BadRequestError if API == "messages" else openai.BadRequestError
    return raises(kind, lambda: chat(top_p=9).invoke(HELLO))


@feature
def overflow():
    from langchain_core.exceptions import ContextOverflowError

    return raises(ContextOverflowError, lambda: chat().invoke(TOO_LONG))


main()
