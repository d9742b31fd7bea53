"""openai-agents: an agent with a tool, on Responses (the default), or on chat completions where told so."""

import os

import agents
import openai
import pydantic
from common import (
    COUNT,
    HELLO,
    KEY,
    MODEL,
    PERSON_REQUEST,
    TOO_LONG,
    URL,
    WEATHER,
    feature,
    main,
    raises_async,
    result_of,
)
from hands import FILE, REQUEST, edit_file, read_file, run_command

client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
agents.set_default_openai_client(client, use_for_tracing=False)
agents.set_tracing_disabled(True)
if os.environ.get("DOVETAIL_API") == "chat":
    agents.set_default_openai_api("chat_completions")
made = []


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the weather"""
    made.append(["get_weather", {"city": city}])
    return result_of(city)


def agent(**fields):
    fields = {"model_settings": agents.ModelSettings(temperature=0), **fields}
    return agents.Agent(name="one", model=MODEL, **fields)


@feature
async def plain():
    return (await agents.Runner.run(agent(), HELLO)).final_output


@feature
async def stream():
    run = agents.Runner.run_streamed(agent(), COUNT)
    pieces = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert run.final_output == "".join(pieces)
    return {"text": run.final_output, "pieces": len(pieces)}


@feature
async def usage():
    counted = (await agents.Runner.run(agent(), HELLO)).context_wrapper.usage
    return [counted.input_tokens, counted.output_tokens]


@feature
async def call():
    made.clear()
    stop = agent(tools=[get_weather], tool_use_behavior="stop_on_first_tool")
    await agents.Runner.run(stop, WEATHER)
    return made


@feature
async def streamed_call():
    made.clear()
    run = agents.Runner.run_streamed(agent(tools=[get_weather], tool_use_behavior="stop_on_first_tool"), WEATHER)
    async for _ in run.stream_events():
        pass
    return made


@feature
async def result():
    return (await agents.Runner.run(agent(tools=[get_weather]), WEATHER)).final_output


@feature
async def structured():
    return (await agents.Runner.run(agent(output_type=Person), PERSON_REQUEST)).final_output.model_dump()


@feature
async def bad_field():
    settings = agents.ModelSettings(temperature=9)
    return await raises_async(openai.BadRequestError, agents.Runner.run(agent(model_settings=settings), HELLO))


@feature
async def overflow():
    return await raises_async(openai.BadRequestError, agents.Runner.run(agent(), TOO_LONG))


@feature
async def report():
    tools = [agents.function_tool(each) for each in (read_file, edit_file, run_command)]
    return (await agents.Runner.run(agent(tools=tools), REQUEST)).final_output


@feature
async def edited():
    return FILE.read_text()


main()
