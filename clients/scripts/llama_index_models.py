"""llama-index: its OpenAI-like model, on chat completions or (its default) on completions, and its Responses model."""

import os

import openai
import pydantic
from common import (
    BOTH,
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
    raises,
    result_of,
)
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike

API = os.environ["DOVETAIL_API"]
made = []


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int


def get_weather(city: str) -> str:
    """Get the weather"""
    made.append(["get_weather", {"city": city}])
    return result_of(city)


TOOL = FunctionTool.from_defaults(get_weather)


def model(**fields):
    fields = {"temperature": 0, **fields}
    common = {"model": MODEL, "api_base": URL, "api_key": KEY, "max_retries": 0, "context_window": 4096}
    if API == "responses":
        return OpenAIResponses(**common, **fields)
    if API == "chat":
        # It declares its tools as not strict unless it is told to, and then no schema is enforced.
        fields |= {"is_chat_model": True, "is_function_calling_model": True, "strict": True}
    return OpenAILike(**common, **fields)


def calls(response):
    made = model().get_tool_calls_from_response(response, error_on_no_tool_call=False)
    return [[call.tool_name, call.tool_kwargs] for call in made]


@feature
def plain():
    return model(max_tokens=200).complete(HELLO).text


@feature
def stream():
    pieces = [piece.delta for piece in model(max_tokens=200).stream_complete(COUNT) if piece.delta]
    return {"text": "".join(pieces), "pieces": len(pieces)}


if API != "completions":

    @feature
    def usage():
        counted = model().chat([ChatMessage(HELLO)]).raw.usage
        return (
            [counted.prompt_tokens, counted.completion_tokens]
            if API == "chat"
            else [
                counted.input_tokens,
                counted.output_tokens,
            ]
        )

    @feature
    def call():
        return calls(model().chat_with_tools([TOOL], user_msg=WEATHER))

    @feature
    def streamed_call():
        *_, last = model().stream_chat_with_tools([TOOL], user_msg=WEATHER)
        return calls(last)

    @feature
    def parallel():
        return calls(model().chat_with_tools([TOOL], user_msg=BOTH, allow_parallel_tool_calls=True))

    @feature
    async def result():
        from llama_index.core.agent.workflow import FunctionAgent

        agent = FunctionAgent(tools=[TOOL], llm=model(), streaming=True)
        return str(await agent.run(WEATHER))

    @feature
    def structured():
        from llama_index.core.prompts import PromptTemplate

        return model().structured_predict(Person, PromptTemplate(PERSON_REQUEST)).model_dump()


@feature
def bad_field():
    return raises(openai.BadRequestError, lambda: model(additional_kwargs={"top_p": 9}).complete(HELLO))


@feature
def overflow():
    return raises(openai.BadRequestError, lambda: model().complete(TOO_LONG))


main()
