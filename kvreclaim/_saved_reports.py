"""Reports in the text of a file, as they were written: JSON, or a line of it for each."""

from __future__ import annotations

from typing import Any, Final

from kvreclaim.reports import read_json, require_text

SCHEMA_VERSION: Final = 1


def items_in(text: str) -> list[Any]:
    """Return what each line holds, where the first one holds something whole; else the text."""
    require_text(text)
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].rstrip().endswith("}"):
        return [read_json(line) for line in lines]
    return [read_json(text)]


def reports_in(item: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # whatever JSON held
    """Return the reports in a document of several; or the item, which should be one."""
    found = item.get("reports", [item]) if isinstance(item, dict) else None
    if not isinstance(found, list) or not all(isinstance(fields, dict) for fields in found):
        raise ValueError(
            "text must be a JSON object of reports; got other JSON; write it with to_json, or with "
            "kvreclaim report --format json."
        )
    version = item.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version must be {SCHEMA_VERSION}; got {version!r}; read it with the kvreclaim "
            "that wrote it."
        )
    return found


def groups_in(item: Any) -> dict[str, list[str]]:  # noqa: ANN401  # whatever JSON held
    """Return which reports of a document are summarized together."""
    try:
        return {
            str(each["source"]): [str(name) for name in each["reports"]]
            for each in item.get("summaries", ())
        }
    except (KeyError, TypeError):
        raise ValueError(
            "summaries must each have a source and reports; got others; write them with to_json, "
            "or with kvreclaim report --format json."
        ) from None
