"""langgraph: an agent of a graph, on chat completions."""

from common import BOTH, COUNT, HELLO, KEY, MODEL, URL, WEATHER, feature, main, result_of
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

made = []


def get_weather(city: str) -> str:
    """Get the weather"""
    made.append(["get_weather", {"city": city}])
    return result_of(city)


model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, temperature=0)
agent = create_react_agent(model, [get_weather])


def ask(text):
    made.clear()
    return {"messages": [{"role": "user", "content": text}]}


@feature
def plain():
    return agent.invoke(ask(HELLO))["messages"][-1].text


@feature
def stream():
    chunks = (chunk for chunk, _ in agent.stream(ask(COUNT), stream_mode="messages"))
    pieces = [chunk.text for chunk in chunks if isinstance(chunk, AIMessageChunk) and chunk.text]
    return {"text": "".join(pieces), "pieces": len(pieces)}


@feature
def usage():
    counted = agent.invoke(ask(HELLO))["messages"][-1].usage_metadata
    return [counted["input_tokens"], counted["output_tokens"]]


@feature
def call():
    agent.invoke(ask(WEATHER))
    return made


@feature
def streamed_call():
    for _ in agent.stream(ask(WEATHER), stream_mode="messages"):
        pass
    return made


@feature
def parallel():
    agent.invoke(ask(BOTH))
    return sorted(made, key=str)


@feature
def result():
    return agent.invoke(ask(WEATHER))["messages"][-1].text


main()
