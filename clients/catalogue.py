"""The clients: their packages, their programs, and the API that each program uses."""

from __future__ import annotations

from typing import NamedTuple

DEMO = "demo"
FORMATS = ("kimi_k25", "deepseek_v32", "qwen3_coder")
TARGETS = (*FORMATS, DEMO)


class Environment(NamedTuple):
    """Packages of one client. `kind` is the registry, `torch` whether it needs one (then the build without CUDA)."""

    name: str
    kind: str  # pypi or npm
    packages: tuple[str, ...]
    torch: bool = False


class Client(NamedTuple):
    """One row of the table: a program in an environment, on one API.

    `script`: its file in clients/scripts; `variant` is told to it.
    `timeout_s`: how long all of it may take against one target.
    `targets`: what it is run against.
    `calls`: the tools that it uses, one in a turn, for a client that works at the task by itself.
    `lacks`: the features that the client, or this API, does not offer.
    """

    name: str
    environment: str
    api: str  # chat, responses, messages or completions
    script: str
    variant: str = ""
    timeout_s: float = 240
    targets: tuple[str, ...] = (FORMATS[0], DEMO)
    calls: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


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
    )
}

#: What completions of raw prompts are not made for.
_RAW = ("reasoning", "call", "streamed_call", "parallel", "result", "structured")
_SCORES = ("scored", "generated")
#: instructor makes objects, and takes answers that are none for failures.
_OBJECTS = ("plain", "reasoning", "length")

CLIENTS = (
    Client("openai (Python)", "openai", "chat", "openai_chat.py", targets=TARGETS),
    Client("openai (Python)", "openai", "responses", "openai_responses.py", targets=TARGETS),
    Client("openai (Python)", "openai", "completions", "openai_completions.py", targets=TARGETS, lacks=_RAW),
    Client("openai (node)", "openai-node", "chat", "openai_chat.mjs", targets=TARGETS),
    Client("openai (node)", "openai-node", "responses", "openai_responses.mjs", targets=TARGETS),
    Client("anthropic (Python)", "anthropic", "messages", "anthropic_messages.py", targets=TARGETS),
    Client("anthropic (node)", "anthropic-node", "messages", "anthropic_messages.mjs", targets=TARGETS),
    Client("openai-agents", "openai-agents", "responses", "openai_agents.py", targets=TARGETS, lacks=("length",)),
    Client("openai-agents", "openai-agents", "chat", "openai_agents.py", targets=TARGETS, lacks=("length",)),
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
    Client("codex", "codex", "responses", "codex_exec.py", targets=FORMATS, calls=("exec_command",) * 3),
    Client(
        "codex, apply_patch",
        "codex",
        "responses",
        "codex_exec.py",
        "apply_patch",
        targets=FORMATS,
        calls=("exec_command", "apply_patch", "exec_command"),
    ),
    Client(
        "claude-code",
        "claude-code",
        "messages",
        "claude_print.py",
        targets=FORMATS,
        calls=("Read", "Edit", "Bash"),
    ),
    Client("lm-eval", "lm-eval", "completions", "lm_eval_tasks.py", timeout_s=400, lacks=("benchmarked", "counted")),
    Client("guidellm", "guidellm", "chat", "guidellm_benchmark.py", lacks=_SCORES),
    Client("guidellm", "guidellm", "responses", "guidellm_benchmark.py", lacks=_SCORES),
    Client("guidellm", "guidellm", "completions", "guidellm_benchmark.py", lacks=_SCORES),
    Client("aiperf", "aiperf", "chat", "aiperf_profile.py", timeout_s=400, lacks=_SCORES),
    Client("aiperf", "aiperf", "responses", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
    Client("aiperf", "aiperf", "messages", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
    Client("aiperf", "aiperf", "completions", "aiperf_profile.py", timeout_s=400, lacks=_SCORES, targets=FORMATS[:1]),
)
