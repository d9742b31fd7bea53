"""The clients: their packages, their programs, and the API that each program uses."""

from __future__ import annotations

from typing import Any, NamedTuple

DEMO = "demo"
FORMATS = ("kimi_k25", "deepseek_v32", "qwen3_coder")
TARGETS = (*FORMATS, DEMO)


class Environment(NamedTuple):
    """Packages of one client. `kind` is the registry, `torch` whether it needs one (then the build without CUDA),
    `python` the version that it needs if ours is too old."""

    name: str
    kind: str  # pypi or npm
    packages: tuple[str, ...]
    torch: bool = False
    python: str = ""


class Client(NamedTuple):
    """One row of the table: a program in an environment, on one API.

    `script`: its file in clients/scripts; `variant` is told to it.
    `timeout_s`: how long all of it may take against one target.
    `targets`: what it is run against.
    `tools`: their name in `scripted.agents`, for a client that works at the edit task.
    `lacks`: the features that the client, or this API, does not offer. `note`: why, where it is not plain.
    """

    name: str
    environment: str
    api: str  # chat, responses, messages or completions
    script: str
    variant: str = ""
    timeout_s: float = 240
    targets: tuple[str, ...] = (FORMATS[0], DEMO)
    tools: str = ""
    lacks: tuple[str, ...] = ()
    note: str = ""


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("openai", "pypi", ("openai==3.54.0",)),
        Environment("anthropic", "pypi", ("anthropic==2.12.0",)),
        Environment("openai-agents", "pypi", ("openai-agents==0.24.0",)),
        Environment("pydantic-ai", "pypi", ("pydantic-ai-slim[anthropic,openai]==2.68.0",)),
        Environment(
            "langchain",
            "pypi",
            ("langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7", "langgraph==1.2.22"),
        ),
        Environment("instructor", "pypi", ("instructor==1.17.0", "anthropic==2.12.0")),
        Environment("litellm", "pypi", ("litellm==1.106.2", "mcp")),  # imports mcp as soon as a request has tools
        Environment(
            "llama-index",
            "pypi",
            ("llama-index-core==0.14.25", "llama-index-llms-openai==0.8.3", "llama-index-llms-openai-like==0.8.1"),
        ),
        Environment("smolagents", "pypi", ("smolagents[openai]==1.26.0",)),
        Environment("llm", "pypi", ("llm==0.36",)),
        Environment("lm-eval", "pypi", ("lm-eval[api]==0.4.13", "transformers==5.23.0")),
        Environment("guidellm", "pypi", ("guidellm==0.8.1",), torch=True),
        Environment("aiperf", "pypi", ("aiperf==0.13.0",)),
        Environment("openai-node", "npm", ("openai@7.57.0", "zod@4.6.7")),
        Environment("anthropic-node", "npm", ("@anthropic-ai/sdk@1.12.0", "zod@4.6.7")),
        Environment(
            "vercel",
            "npm",
            (
                "ai@7.0.173",
                "@ai-sdk/openai@4.0.118",
                "@ai-sdk/openai-compatible@3.0.92",
                "@ai-sdk/anthropic@4.0.105",
                "zod@4.6.7",
            ),
        ),
        Environment("codex", "npm", ("@openai/codex@0.169.0",)),
        Environment("claude-code", "npm", ("@anthropic-ai/claude-code@2.1.330",)),
        # The last that is more than a note to use Kimi Code.
        Environment("kimi-cli", "pypi", ("kimi-cli==1.49.0",), python="3.13"),
        Environment("kimi-code", "npm", ("@moonshot-ai/kimi-code@2.1.0",)),
        Environment("opencode", "npm", ("opencode-ai@1.18.33",)),
        Environment("pi", "npm", ("@earendil-works/pi-coding-agent@1.6.0",)),
        Environment("qwen-code", "npm", ("@qwen-code/qwen-code@0.24.4",)),
        Environment("cline", "npm", ("cline@3.0.65",)),
        Environment("continue", "npm", ("@continuedev/cli@1.5.47",)),
        Environment("aider", "pypi", ("aider-chat==0.86.2",)),
        Environment("mini-swe-agent", "pypi", ("mini-swe-agent==2.4.6",)),
        Environment("openhands-sdk", "pypi", ("openhands-sdk==1.58.2", "openhands-tools==1.58.2"), python="3.13"),
        Environment(
            "deepagents", "pypi", ("deepagents==0.7.32", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7")
        ),
        Environment("google-adk", "pypi", ("google-adk==2.13.0", "litellm==1.106.2", "mcp")),
        Environment("semantic-kernel", "pypi", ("semantic-kernel==1.45.0",)),
        Environment("dspy", "pypi", ("dspy==3.4.1",)),
        Environment("openai-agents-node", "npm", ("@openai/agents@0.20.0", "zod@4.6.7", "openai@7.57.0")),
    )
}

#: What completions of raw prompts are not made for.
_RAW = ("reasoning", "call", "streamed_call", "parallel", "result", "structured")
_SCORES = ("scored", "generated")
#: instructor makes objects, and takes answers that are none for failures.
_OBJECTS = ("plain", "reasoning", "length")

#: Agents after whose turn the next prompt cannot be exact, and why.
_NOT_STORED: dict[str, Any] = {
    "lacks": ("exact",),
    "note": "it sends `store: false`, so its answers are not remembered",
}
_WITHOUT_TEXT: dict[str, Any] = {"lacks": ("exact",), "note": "it leaves out the text beside calls"}
_IN_OWN_WORDS: dict[str, Any] = {"lacks": ("exact",), "note": "it writes the conversation anew, as texts of its own"}
#: What an agent without tools has not.
_CALLS = ("turns", "exact", "both_results", "failed_call", "outgrown")


def _agent(name: str, api: str, script: str, environment: str = "", tools: str = "", **fields: Any) -> Client:
    """A coding agent, in the environment and with the tools of its name."""
    environment = environment or name
    fields = {"timeout_s": 400, "targets": FORMATS, "tools": tools or environment, **fields}
    return Client(name, environment, api, script, **fields)


def _framework(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a library: its program is no process to stop, and its conversation ends with the task."""
    return {**fields, "lacks": (*fields.get("lacks", ()), "cancelled", "outgrown")}


CLIENTS = (
    Client("openai (Python)", "openai", "chat", "openai_chat.py", targets=TARGETS),
    Client("openai (Python)", "openai", "responses", "openai_responses.py", targets=TARGETS),
    Client("openai (Python)", "openai", "completions", "openai_completions.py", targets=TARGETS, lacks=_RAW),
    Client("openai (node)", "openai-node", "chat", "openai_chat.mjs", targets=TARGETS),
    Client("openai (node)", "openai-node", "responses", "openai_responses.mjs", targets=TARGETS),
    Client("anthropic (Python)", "anthropic", "messages", "anthropic_messages.py", targets=TARGETS),
    Client("anthropic (node)", "anthropic-node", "messages", "anthropic_messages.mjs", targets=TARGETS),
    _agent("openai-agents", "responses", "openai_agents.py", tools="own", **_framework({"lacks": ("length",)})),
    _agent("openai-agents", "chat", "openai_agents.py", tools="own", **_framework({"lacks": ("length",)})),
    Client("pydantic-ai", "pydantic-ai", "chat", "pydantic_ai_agent.py", targets=TARGETS),
    Client("pydantic-ai", "pydantic-ai", "responses", "pydantic_ai_agent.py", targets=TARGETS),
    Client("pydantic-ai", "pydantic-ai", "messages", "pydantic_ai_agent.py", targets=TARGETS),
    Client("langchain", "langchain", "chat", "langchain_models.py", targets=TARGETS, lacks=("reasoning",)),
    Client("langchain", "langchain", "responses", "langchain_models.py", targets=TARGETS),
    Client("langchain", "langchain", "messages", "langchain_models.py", targets=TARGETS),
    Client("langgraph", "langchain", "chat", "langgraph_agent.py", lacks=("reasoning",)),
    Client("instructor", "instructor", "chat", "instructor_models.py", lacks=_OBJECTS),
    Client("instructor", "instructor", "responses", "instructor_models.py", lacks=_OBJECTS),
    Client("instructor", "instructor", "messages", "instructor_models.py", lacks=_OBJECTS),
    Client("litellm", "litellm", "chat", "litellm_calls.py", targets=TARGETS),
    Client("litellm", "litellm", "responses", "litellm_calls.py", targets=TARGETS),
    Client("litellm", "litellm", "messages", "litellm_calls.py", targets=TARGETS),
    Client("llama-index", "llama-index", "chat", "llama_index_models.py"),
    Client("llama-index", "llama-index", "responses", "llama_index_models.py"),
    Client("llama-index", "llama-index", "completions", "llama_index_models.py", lacks=_RAW),
    Client("smolagents", "smolagents", "chat", "smolagents_agents.py", targets=FORMATS, lacks=("reasoning",)),
    Client("Vercel AI SDK", "vercel", "responses", "vercel_ai.mjs"),
    Client("Vercel AI SDK", "vercel", "chat", "vercel_ai.mjs"),
    Client("Vercel AI SDK", "vercel", "messages", "vercel_ai.mjs"),
    Client("llm", "llm", "chat", "llm_command.py"),
    Client("llm", "llm", "completions", "llm_command.py", lacks=_RAW),
    _agent("codex", "responses", "codex_exec.py"),
    _agent("codex, apply_patch", "responses", "codex_exec.py", "codex", "apply_patch", variant="apply_patch"),
    _agent("claude-code", "messages", "claude_print.py"),
    _agent("kimi-cli", "chat", "kimi_cli_print.py"),
    _agent("Kimi Code", "chat", "kimi_code_print.py", "kimi-code"),
    _agent("Kimi Code", "responses", "kimi_code_print.py", "kimi-code", **_NOT_STORED),
    _agent("Kimi Code", "messages", "kimi_code_print.py", "kimi-code"),
    _agent("opencode", "chat", "opencode_run.py"),
    _agent("pi", "chat", "pi_print.py", **_NOT_STORED),
    _agent("qwen-code", "chat", "qwen_code_print.py"),
    _agent("cline", "chat", "cline_task.py"),
    _agent("Continue", "chat", "continue_print.py", "continue"),
    Client(
        "aider",
        "aider",
        "chat",
        "aider_message.py",
        timeout_s=400,
        targets=FORMATS,
        lacks=_CALLS,
        note="it has no tools, and edits by blocks in the answer's text",
    ),
    _agent("mini-swe-agent", "chat", "mini_swe_agent.py"),
    _agent("openhands-sdk", "chat", "openhands_conversation.py"),
    _agent("deepagents", "chat", "deepagents_agent.py"),
    _agent("deepagents", "responses", "deepagents_agent.py"),
    _agent("deepagents", "messages", "deepagents_agent.py"),
    _agent("google-adk", "chat", "google_adk_agent.py", tools="own", **_framework({})),
    _agent("semantic-kernel", "chat", "semantic_kernel_agent.py", **_framework(_WITHOUT_TEXT)),
    _agent("openai-agents (node)", "responses", "openai_agents.mjs", "openai-agents-node", "own", **_framework({})),
    _agent("openai-agents (node)", "chat", "openai_agents.mjs", "openai-agents-node", "own", **_framework({})),
    _agent("dspy", "chat", "dspy_programs.py", **_framework(_IN_OWN_WORDS)),
    Client("lm-eval", "lm-eval", "completions", "lm_eval_tasks.py", timeout_s=400, lacks=("benchmarked", "counted")),
    Client("guidellm", "guidellm", "chat", "guidellm_benchmark.py", lacks=_SCORES),
    Client("guidellm", "guidellm", "responses", "guidellm_benchmark.py", lacks=_SCORES),
    Client("guidellm", "guidellm", "completions", "guidellm_benchmark.py", lacks=_SCORES),
    Client("aiperf", "aiperf", "chat", "aiperf_profile.py", timeout_s=400, lacks=_SCORES),
    Client("aiperf", "aiperf", "responses", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
    Client("aiperf", "aiperf", "messages", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
    Client("aiperf", "aiperf", "completions", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
)
