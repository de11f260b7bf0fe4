"""Recognizes the logs of TVM's former tuners, which TVM itself can no longer apply.

Both hold what was chosen, but not of what: AutoTVM's records name the knobs of a template, those of
auto_scheduler number the stages and loops of a tensor expression. TVM 0.27 has neither the templates
nor schedules of tensor expressions, so the choices cannot be replayed on today's workloads.
"""

from __future__ import annotations

from tvmtune.types import JSON


def tool(record: JSON) -> str | None:
    """The tool that wrote this record, or None for any other JSON object."""
    if isinstance(record.get("config"), dict) and {"input", "result"} <= record.keys():
        return "AutoTVM"
    key = record.get("i")
    if not isinstance(key, list) or not key or not {"r", "v"} <= record.keys():
        return None
    # Versions of AutoTVM are numbers, the first part of its key is the target. That of auto_scheduler
    # is the task, whose first part is the workload.
    return "auto_scheduler" if isinstance(key[0], list) else "AutoTVM"


def refusal(name: str) -> str:
    """Says what to do instead; continues a sentence that begins with the log's path."""
    return (
        f"is a log of {name}, whose schedules this TVM cannot apply: tune again. docs/migration.md "
        f"says why, and lists the counterpart of each option of {name}."
    )
