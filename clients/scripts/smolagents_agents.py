"""smolagents: its OpenAI model, an agent that calls tools, and one that writes code."""

import openai
from common import (
    COUNT,
    HELLO,
    KEY,
    MODEL,
    PERSON_REQUEST,
    SCHEMA,
    TOO_LONG,
    URL,
    WEATHER,
    feature,
    main,
    raises,
    result_of,
)
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

made = []


@tool
def get_weather(city: str) -> str:
    """Get the weather

    Args:
        city: the city
    """
    made.append(["get_weather", {"city": city}])
    return result_of(city)


def model(**fields):
    client = {"max_retries": 0}
    return OpenAIServerModel(MODEL, api_base=URL, api_key=KEY, client_kwargs=client, **{"temperature": 0, **fields})


def user(text):
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def agent(**fields):
    made.clear()
    return ToolCallingAgent(tools=[get_weather], model=model(), verbosity_level=0, max_steps=4, **fields)


@feature
def plain():
    return model().generate(user(HELLO)).content


@feature
def stream():
    pieces = [piece.content for piece in model().generate_stream(user(COUNT)) if piece.content]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def usage():
    counted = model().generate(user(HELLO)).token_usage
    return [counted.input_tokens, counted.output_tokens]


@feature
def call():
    agent().run(WEATHER)
    return made


@feature
def streamed_call():
    agent(stream_outputs=True).run(WEATHER)
    return made


@feature
def result():
    return agent().run(WEATHER)


@feature
def structured():
    import json

    schema = {"type": "json_schema", "json_schema": {"name": "Person", "schema": SCHEMA}}
    return json.loads(model().generate(user(PERSON_REQUEST), response_format=schema).content)


@feature
def bad_field():
    return raises(openai.BadRequestError, lambda: model(temperature=9).generate(user(HELLO)))


@feature
def overflow():
    return raises(openai.BadRequestError, lambda: model().generate(user(TOO_LONG)))


main()
