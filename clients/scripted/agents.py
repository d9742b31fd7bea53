"""What coding agents call their tools: how each reads a file, replaces a line in it, and runs a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Call = tuple[str, dict[str, Any]]


class Hands(NamedTuple):
    """One agent's tools.

    `report`: for an agent that ends by a call. `look`: for one that shows pictures to the model.
    """

    read: Callable[[str], Call]
    edit: Callable[[str, str, str], Call]
    run: Callable[[str], Call]
    report: Callable[[str], Call] | None = None
    look: Callable[[str], Call] | None = None


def _sed(path: str, old: str, new: str) -> str:
    return f"sed -i 's/{old}/{new}/' {path}"


def _patch(path: str, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


def _strings(path: str, old: str, new: str) -> dict[str, Any]:
    return {"file_path": path, "old_string": old, "new_string": new}


_RISK = {"security_risk": "LOW", "summary": "A step of the task"}
_CODEX = Hands(
    lambda path: ("exec_command", {"cmd": f"cat {path}"}),
    lambda path, old, new: ("exec_command", {"cmd": _sed(path, old, new)}),
    lambda command: ("exec_command", {"cmd": command}),
    look=lambda path: ("view_image", {"path": path}),
)
#: For frameworks that have no tools of their own: `clients/scripts/hands.py`.
_OWN = Hands(
    lambda path: ("read_file", {"path": path}),
    lambda path, old, new: ("edit_file", {"path": path, "old": old, "new": new}),
    lambda command: ("run_command", {"command": command}),
    look=lambda path: ("view_picture", {"path": path}),
)

#: By their names in the task's sentence.
HANDS = {
    "codex": _CODEX,
    "apply_patch": _CODEX._replace(edit=lambda path, old, new: ("apply_patch", {"input": _patch(path, old, new)})),
    "claude-code": Hands(
        lambda path: ("Read", {"file_path": path}),
        lambda path, old, new: ("Edit", _strings(path, old, new)),
        lambda command: ("Bash", {"command": command, "description": "Run it"}),
        look=lambda path: ("Read", {"file_path": path}),
    ),
    "kimi-code": Hands(
        lambda path: ("Read", {"path": path}),
        lambda path, old, new: ("Edit", {"path": path, "old_string": old, "new_string": new}),
        lambda command: ("Bash", {"command": command}),
        look=lambda path: ("ReadMediaFile", {"path": path}),
    ),
    "kimi-cli": Hands(
        lambda path: ("ReadFile", {"path": path}),
        lambda path, old, new: ("StrReplaceFile", {"path": path, "edit": {"old": old, "new": new}}),
        lambda command: ("Shell", {"command": command}),
    ),
    "opencode": Hands(
        lambda path: ("read", {"filePath": path}),
        lambda path, old, new: ("edit", {"filePath": path, "oldString": old, "newString": new}),
        lambda command: ("bash", {"command": command}),
    ),
    "pi": Hands(
        lambda path: ("read", {"path": path}),
        lambda path, old, new: ("edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}),
        lambda command: ("bash", {"command": command}),
    ),
    "qwen-code": Hands(
        lambda path: ("read_file", {"file_path": path}),
        lambda path, old, new: ("edit", _strings(path, old, new)),
        lambda command: ("run_shell_command", {"command": command, "is_background": False}),
    ),
    "cline": Hands(
        lambda path: ("read_files", {"files": [{"path": path}]}),
        lambda path, old, new: ("editor", {"path": path, "old_text": old, "new_text": new}),
        lambda command: ("run_commands", {"commands": [command]}),
    ),
    "continue": Hands(
        lambda path: ("Read", {"filepath": path}),
        lambda path, old, new: ("Edit", _strings(path, old, new)),
        lambda command: ("Bash", {"command": command}),
    ),
    "mini-swe-agent": Hands(
        lambda path: ("bash", {"command": f"cat {path}"}),
        lambda path, old, new: ("bash", {"command": _sed(path, old, new)}),
        lambda command: ("bash", {"command": command}),
        lambda text: ("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{text}'"}),
    ),
    "openhands-sdk": Hands(
        lambda path: ("file_editor", {"command": "view", "path": path, **_RISK}),
        lambda path, old, new: (
            "file_editor",
            {"command": "str_replace", "path": path, "old_str": old, "new_str": new, **_RISK},
        ),
        lambda command: ("terminal", {"command": command, **_RISK}),
    ),
    "deepagents": Hands(
        lambda path: ("read_file", {"file_path": path}),
        lambda path, old, new: ("edit_file", _strings(path, old, new)),
        lambda command: ("execute", {"command": command}),
    ),
    "own": _OWN,
    "dspy": _OWN._replace(report=lambda text: ("submit", {"report": text})),
    #: semantic-kernel puts the plugin's name before each.
    "semantic-kernel": Hands(
        lambda path: ("hands-read_file", {"path": path}),
        lambda path, old, new: ("hands-edit_file", {"path": path, "old": old, "new": new}),
        lambda command: ("hands-run_command", {"command": command}),
    ),
}


def task_calls(name: str) -> list[list[str]]:
    """The tools that the edit task takes, turn by turn."""
    hands = HANDS[name]
    read, edit, run = hands.read("")[0], hands.edit("", "", "")[0], hands.run("")[0]
    return [[read, run], [edit], [run], [] if hands.report is None else [hands.report("")[0]]]
