"""semantic-kernel: an agent with plugins, on chat completions."""

import openai
from common import (
    COUNT,
    HELLO,
    KEY,
    MODEL,
    PERSON_REQUEST,
    TOO_LONG,
    URL,
    feature,
    main,
    raises_async,
)
from hands import FILE, REQUEST, edit_file, read_file, run_command
from pydantic import BaseModel, Field
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments, KernelPlugin, kernel_function

client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def agent(*plugins, **settings):
    service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    arguments = KernelArguments(settings=OpenAIChatPromptExecutionSettings(**settings)) if settings else None
    return ChatCompletionAgent(service=service, name="one", plugins=list(plugins), arguments=arguments)


def hands():
    functions = [kernel_function(function, name=function.__name__) for function in (read_file, edit_file, run_command)]
    return KernelPlugin(name="hands", functions={function.__name__: function for function in functions})


async def ask(text, *plugins, **settings):
    return str((await agent(*plugins, **settings).get_response(messages=text)).message.content)


@feature
async def plain():
    return await ask(HELLO)


@feature
async def stream():
    pieces = [str(piece.content) async for piece in agent().invoke_stream(messages=COUNT)]
    pieces = [piece for piece in pieces if piece]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
async def usage():
    counted = (await agent().get_response(messages=HELLO)).message.metadata["usage"]
    return [counted.prompt_tokens, counted.completion_tokens]


@feature
async def structured():
    return Person.model_validate_json(await ask(PERSON_REQUEST, response_format=Person)).model_dump()


@feature
async def overflow():
    return await raises_async(ServiceResponseException, ask(TOO_LONG))


@feature
async def report():
    return await ask(REQUEST, hands())


@feature
async def edited():
    return FILE.read_text()


main()
