"""dspy: its model, signatures by each of its adapters, and ReAct with tools, on chat completions."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
import litellm
from common import BOTH, HELLO, KEY, MODEL, PERSON_REQUEST, TOO_LONG, URL, WEATHER, feature, main, raises, result_of
from hands import FILE, REQUEST, edit_file, read_file, run_command

# dspy takes what a model can do from litellm's list.
litellm.register_model({MODEL: {"litellm_provider": "openai", "supports_function_calling": True}})
lm = dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False, num_retries=0, engine="litellm")
dspy.configure(lm=lm)


class Person(dspy.Signature):
    request: str = dspy.InputField()
    name: str = dspy.OutputField()
    age: int = dspy.OutputField()


class Calls(dspy.Signature):
    request: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def get_weather(city: str) -> str:
    """Get the weather"""
    return result_of(city)


def calls(request):
    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        made = dspy.Predict(Calls)(request=request, tools=[dspy.Tool(get_weather)]).calls
    return [[call.name, call.args] for call in made.tool_calls]


@feature
def plain():
    answer = lm(HELLO)[0]
    return answer["text"] if isinstance(answer, dict) else answer


@feature
def usage():
    lm(HELLO)
    counted = lm.history[-1]["usage"]
    return [counted["prompt_tokens"], counted["completion_tokens"]]


@feature
def structured():
    with dspy.context(adapter=dspy.JSONAdapter()):
        person = dspy.Predict(Person)(request=PERSON_REQUEST)
    return {"name": person.name, "age": person.age}


@feature
def call():
    return calls(WEATHER)


@feature
def parallel():
    return calls(BOTH)


@feature
def bad_field():
    return raises(dspy.LMInvalidRequestError, lambda: lm(HELLO, temperature=9))


@feature
def overflow():
    return raises(dspy.ContextWindowExceededError, lambda: lm(TOO_LONG))


@feature
def report():
    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        return dspy.ReActV2("request -> report", [read_file, edit_file, run_command])(request=REQUEST).report


@feature
def edited():
    return FILE.read_text()


main()
