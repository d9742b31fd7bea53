"""instructor: objects of a schema, on the API that the harness names."""

import os

import anthropic
import instructor
import openai
import pydantic
from common import KEY, MODEL, PERSON_REQUEST, ROOT, TOO_LONG, URL, feature, main, raises
from instructor.core import InstructorRetryException

API = os.environ["DOVETAIL_API"]
if API == "messages":
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0))
else:
    mode = instructor.Mode.TOOLS if API == "chat" else instructor.Mode.RESPONSES_TOOLS
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0), mode=mode)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


def request(**fields):
    fields = {"max_tokens": 1000, **fields} if API == "messages" else {"temperature": 0, **fields}
    return {
        "model": MODEL,
        "response_model": Person,
        "messages": [{"role": "user", "content": PERSON_REQUEST}],
        "max_retries": 0,
        **fields,
    }


@feature
def structured():
    return client.create(**request()).model_dump()


@feature
def usage():
    _, completion = client.create_with_completion(**request())
    counted = completion.usage
    if API == "chat":
        return [counted.prompt_tokens, counted.completion_tokens]
    return [counted.input_tokens, counted.output_tokens]


@feature
def stream():
    *_, last = client.create_partial(**request())
    return last.model_dump()


@feature
def bad_field():
    return raises(InstructorRetryException, lambda: client.create(**request(top_p=9)))


@feature
def overflow():
    long = [{"role": "user", "content": TOO_LONG}]
    return raises(InstructorRetryException, lambda: client.create(**request(messages=long)))


main()
