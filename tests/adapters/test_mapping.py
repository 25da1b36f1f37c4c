"""The table that maps the *nip* library's operations to functions of ours."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

TABLE = (Path(__file__).parents[2] / "docs" / "mapping.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`(nip_fn[\w.]+)`", row[1])})

# The documented methods of `OpenAiWholeAgent` and `OpenAiSharedModelGroup`.
AGENT = {
    "__call__", "__getstate__", "_build_chat_messages_prompt", "_generate_dummy_response",
    "_generate_next_message_and_decision", "_make_generation_api_call", "build_fine_tune_dataset",
    "forward", "get_state_dict", "set_state",
}  # fmt: skip
GROUP = {
    "_get_lm_server_fine_tune_job", "_get_openai_fine_tune_job", "_make_fine_tune_api_call",
    "_make_fine_tune_api_call_lm_server", "_make_fine_tune_api_call_openai",
    "agent_ids_and_names", "create_dpo_fine_tune_job", "create_supervised_fine_tune_job", "eval",
    "fine_tune_job_failed", "get_fine_tune_job_error_repr", "get_fine_tune_job_status", "get_state",
    "get_state_dict", "set_state", "switch_to_next_model", "train", "wait_for_ready",
}  # fmt: skip


def _operations(heading: str) -> dict[str, str]:
    """What the table under that heading has in its left column, and in its middle."""
    section = TABLE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines()[2:]]
    return {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_every_operation_of_an_agent_and_of_a_group_has_a_counterpart() -> None:
    for heading, names in (("whole agent", AGENT), ("shared model group", GROUP)):
        operations = _operations(heading)
        assert operations.keys() == names
        assert all("`nip_fn" in counterparts for counterparts in operations.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_counterpart_is_there_and_says_what_it_does(name: str) -> None:
    module, _, rest = name.rpartition(".")
    found = reduce(getattr, rest.split("."), import_module(module))
    assert callable(found)
    assert found.__doc__
