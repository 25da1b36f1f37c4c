"""Users' own system prompts: read at the start of a run, so that its recording holds their text."""

from pathlib import Path
from typing import Any

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.outcomes import refuse


def with_templates(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the text of every template that an agent names by its path.

    A text that is there already, as in a recorded run, is kept.  Refuses a file that cannot be
    read.
    """
    agents = table.get("agents", {})
    if not isinstance(agents, dict):
        return table
    return {**table, "agents": {name: _filled(name, fields) for name, fields in agents.items()}}


def _filled(agent: str, fields: Any) -> Any:
    """The fields of an agent with its template's text."""
    if not isinstance(fields, dict):
        return fields
    path = fields.get("system_prompt_template_path")
    # An agent of an earlier run brings the text that was recorded, whatever became of the file.
    if not isinstance(path, str) or fields.get("system_prompt_template") is not None:
        return fields
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        address = f"agents.{agent}.system_prompt_template_path"
        refuse(Problem(f"{path}: {cause}", address, "name a text file that exists"))
    return {**fields, "system_prompt_template": text}
