"""How a call in another process ended."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmtune.machine.faults import Fault


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call: a value, or the stage that failed and a message."""

    value: Any = None
    stage: str | None = None
    message: str = ""
    fault: Fault = ""
    """The fault of the environment that the call failed for, if it need not be the call's own."""

    @property
    def ok(self) -> bool:
        return self.stage is None


def resolve(name: str) -> Callable[..., Any]:
    """The function named ``"package.module:function"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def gather(
    handles: Sequence[Any],
    wait: Callable[[Any], Outcome],
    on_result: Callable[[int, Outcome], None] | None,
    drop: Callable[[], None],
) -> list[Outcome]:
    """The outcomes of ``handles``, in order; ``on_result`` receives each. If anything raises,
    ``drop`` is called first."""
    outcomes: list[Outcome] = []
    try:
        for index, handle in enumerate(handles):
            outcomes.append(wait(handle))
            if on_result is not None:
                on_result(index, outcomes[-1])
    except BaseException:
        drop()
        raise
    return outcomes


def brief(error: BaseException, limit: int = 500) -> str:
    """An error's message on one line."""
    text = str(error).strip() or type(error).__name__
    lines = [line for line in text.splitlines() if line.strip()]
    # TVM puts the check that failed on the last line and its C++ stack before it.
    chosen = lines[-1] if len(lines) > 3 else " ".join(lines)
    return chosen.strip()[:limit]
