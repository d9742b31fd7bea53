"""pydantic-ai: an agent with a tool, on the API that the harness names."""

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
    raises_async,
    result_of,
)
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

API = os.environ["DOVETAIL_API"]
if API == "messages":
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=ROOT, api_key=KEY))
else:
    kind = OpenAIChatModel if API == "chat" else OpenAIResponsesModel
    model = kind(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
made = []


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


def agent(tool=False, **fields):
    made.clear()
    agent = Agent(model, model_settings={"temperature": 0}, retries=0, **fields)
    if tool:
        agent.tool_plain(get_weather)
    return agent


async def get_weather(city: str) -> str:
    """Get the weather"""
    made.append(["get_weather", {"city": city}])
    return result_of(city)


@feature
async def plain():
    return (await agent().run(HELLO)).output


@feature
async def stream():
    async with agent().run_stream(COUNT) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
async def reasoning():
    settings = {"anthropic_thinking": {"type": "adaptive"}} if API == "messages" else {}
    settings |= {"openai_reasoning_summary": "auto"} if API == "responses" else {}
    messages = (await agent().run(HELLO, model_settings=settings)).all_messages()
    return "".join(part.content for part in messages[-1].parts if isinstance(part, ThinkingPart))


@feature
async def usage():
    counted = (await agent().run(HELLO)).usage
    counted = counted() if callable(counted) else counted
    return [counted.input_tokens, counted.output_tokens]


@feature
async def call():
    await agent(tool=True).run(WEATHER)
    return made


@feature
async def streamed_call():
    async with agent(tool=True).run_stream(WEATHER) as run:
        await run.get_output()
    return made


@feature
async def parallel():
    await agent(tool=True).run(BOTH)
    return sorted(made, key=str)


@feature
async def result():
    return (await agent(tool=True).run(WEATHER)).output


@feature
async def structured():
    return (await agent(output_type=Person).run(PERSON_REQUEST)).output.model_dump()


@feature
async def length():
    messages = (await agent().run(COUNT, model_settings={"max_tokens": 16})).all_messages()
    return messages[-1].finish_reason


@feature
async def bad_field():
    return await raises_async(ModelHTTPError, agent().run(HELLO, model_settings={"temperature": 9}))


@feature
async def overflow():
    return await raises_async(ModelHTTPError, agent().run(TOO_LONG))


main()
