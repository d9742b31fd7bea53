"""deepagents: an agent with its own tools for files and a shell; run with a prompt, it is the agent itself."""

from __future__ import annotations

import os
import sys

from coding_agents import SCRATCH, agent
from common import KEY, MODEL, ROOT, URL


def model():
    if os.environ["DOVETAIL_API"] == "messages":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model=MODEL, base_url=ROOT, api_key=KEY, max_tokens=4096, max_retries=0)
    from langchain_openai import ChatOpenAI

    responses = os.environ["DOVETAIL_API"] == "responses"
    return ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, use_responses_api=responses, max_retries=0)


def work(prompt: str) -> None:
    from deepagents import create_deep_agent
    from deepagents.backends import LocalShellBackend

    deep = create_deep_agent(
        model=model(), backend=LocalShellBackend(root_dir=SCRATCH, virtual_mode=False, inherit_env=True)
    )
    asked = {"messages": [{"role": "user", "content": prompt}]}
    print(deep.invoke(asked, {"recursion_limit": 100})["messages"][-1].text)


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    agent(lambda prompt: [sys.executable, __file__, prompt])
