"""openhands-sdk: a conversation with its terminal and its editor; run with a prompt, it is the agent itself."""

from __future__ import annotations

import sys

from coding_agents import SCRATCH, agent
from common import KEY, MODEL, URL


def converse(prompt: str) -> None:
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool
    from pydantic import SecretStr

    llm = LLM(model=f"openai/{MODEL}", base_url=URL, api_key=SecretStr(KEY), usage_id="agent", num_retries=0)
    tools = [Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)]
    conversation = Conversation(agent=Agent(llm=llm, tools=tools), workspace=str(SCRATCH))
    conversation.send_message(prompt)
    conversation.run()


if len(sys.argv) > 1:
    converse(sys.argv[1])
else:
    agent(lambda prompt: [sys.executable, __file__, prompt], LITELLM_LOCAL_MODEL_COST_MAP="True")
