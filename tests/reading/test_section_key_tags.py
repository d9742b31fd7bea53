"""Calls whose keys and values have tags, in a section around all calls: what is read in spite of faults."""

from __future__ import annotations

import pytest

from tests.reading import families

PARAMETER = "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
CALL = f"<tool_call>get_weather<tool_sep>\n{PARAMETER}</tool_call>\n"
SECTION = f"<tool_calls>\n{CALL}</tool_calls>"
OSLO = '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("output", "content", "arguments", "defects"),
    [
        (SECTION, "", [OSLO], []),
        (f"Here.{SECTION}\n{SECTION}\n", "Here.", [OSLO, OSLO], []),
        (f"{SECTION} Done.", " Done.", [OSLO], []),
        (f"<tool_calls>{CALL}{CALL}<|end|>", "", [OSLO, OSLO], ["missing_section_end"]),
        (f"<tool_calls>{CALL}", "", [OSLO], ["missing_section_end"]),
        (f"<tool_calls>{CALL}{SECTION}", "", [OSLO, OSLO], ["missing_section_end"]),
        (CALL, "", [OSLO], ["missing_section"]),
        (f"{CALL}{CALL}", "", [OSLO, OSLO], ["missing_section"]),
        (f"get_weather<tool_sep>\n{PARAMETER}</tool_call>", "", [OSLO], ["missing_section"]),
        (SECTION.replace("<tool_sep>", ""), "", [OSLO], []),
        (SECTION.replace("</tool_call>", ""), "", [OSLO], ["missing_call_end"]),
        ("<tool_calls></tool_calls>", "", [], ["empty_section"]),
        (f"<tool_calls>So: {CALL}</tool_calls>", "<tool_calls>So: \n</tool_calls>", [OSLO], ["missing_section"]),
        (
            SECTION.replace(PARAMETER, "x " * 700 + PARAMETER),
            SECTION.replace(PARAMETER, "x " * 700 + PARAMETER),
            [],
            [],
        ),
        (f"<tool_calls>{CALL}and {CALL}</tool_calls>", "and ", [OSLO, OSLO], ["text_in_section"]),
        (SECTION.replace("<tool_sep>\n" + PARAMETER, '{"city": "Oslo"}'), "", [OSLO], ["json_arguments"]),
        (SECTION.replace("<arg_key>", "<tool_call>"), "", [OSLO], ["missing_key_start"]),
        (SECTION.replace("<arg_key>", "<tool_calls>"), "", [OSLO], ["missing_key_start"]),
        (SECTION.replace("get_weather", "get weather"), "", [OSLO], ["misspelled_name"]),
        (SECTION.replace("</arg_key>", "</arg_value>"), "", [OSLO], ["missing_key_end"]),
    ],
)
def test_near_misses(output: str, content: str, arguments: list[str], defects: list[str]) -> None:
    message = families.format_of("section_key_tags").parse(output, families.TOOLS, thinking=False)
    assert (message.content, [call.arguments for call in message.calls]) == (content, arguments)
    assert [defect.kind for defect in message.defects] == defects
