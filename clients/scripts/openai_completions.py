"""The openai package: completions of a raw prompt."""

import openai
from common import COUNT, HELLO, KEY, MODEL, TOO_LONG, URL, feature, main, raises

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def ask(prompt, **fields):
    fields = {"temperature": 0, "max_tokens": 200, **fields}
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


@feature
def plain():
    return ask(HELLO).choices[0].text


@feature
def stream():
    pieces = [chunk.choices[0].text for chunk in ask(COUNT, stream=True) if chunk.choices and chunk.choices[0].text]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def usage():
    counted = ask(HELLO).usage
    return [counted.prompt_tokens, counted.completion_tokens]


@feature
def length():
    return ask(COUNT, max_tokens=5).choices[0].finish_reason


@feature
def bad_field():
    return raises(openai.BadRequestError, lambda: ask(HELLO, temperature=9))


@feature
def overflow():
    return raises(openai.BadRequestError, lambda: ask(TOO_LONG))


main()
