"""google-adk: an agent with tools, over its LiteLLM model, on chat completions."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from common import BOTH, COUNT, HELLO, KEY, MODEL, TOO_LONG, URL, WEATHER, feature, main, raises_async, result_of
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from hands import FILE, REQUEST, edit_file, read_file, run_command

made = []


def get_weather(city: str) -> dict:
    """Get the weather"""
    made.append(["get_weather", {"city": city}])
    return json.loads(result_of(city))


async def events(text, tools=(), streaming=StreamingMode.NONE, **fields):
    made.clear()
    model = LiteLlm(model=f"openai/{MODEL}", api_base=URL, api_key=KEY, max_retries=0)
    agent = LlmAgent(name="one", model=model, tools=list(tools), **fields)
    runner = InMemoryRunner(agent=agent, app_name="clients")
    session = await runner.session_service.create_session(app_name="clients", user_id="me")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    config = RunConfig(streaming_mode=streaming)
    running = runner.run_async(user_id="me", session_id=session.id, new_message=message, run_config=config)
    return [event async for event in running]


def text_of(event, thought=False):
    parts = event.content.parts if event.content else []
    return "".join(part.text or "" for part in parts if bool(part.thought) == thought)


@feature
async def plain():
    return text_of((await events(HELLO))[-1])


@feature
async def stream():
    found = await events(COUNT, streaming=StreamingMode.SSE)
    pieces = [text_of(event) for event in found if event.partial and text_of(event)]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
async def reasoning():
    return text_of((await events(HELLO))[-1], thought=True)


@feature
async def usage():
    counted = (await events(HELLO))[-1].usage_metadata
    return [counted.prompt_token_count, counted.candidates_token_count]


@feature
async def call():
    await events(WEATHER, [get_weather])
    return made


@feature
async def streamed_call():
    await events(WEATHER, [get_weather], StreamingMode.SSE)
    return made


@feature
async def parallel():
    await events(BOTH, [get_weather])
    return made


@feature
async def result():
    return text_of((await events(WEATHER, [get_weather]))[-1])


@feature
async def overflow():
    return await raises_async(litellm.ContextWindowExceededError, events(TOO_LONG))


@feature
async def report():
    return text_of((await events(REQUEST, [read_file, edit_file, run_command]))[-1])


@feature
async def edited():
    return FILE.read_text()


main()
