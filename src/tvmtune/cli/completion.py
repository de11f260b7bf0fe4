"""Shell completion of option values; ``tvmtune --help`` shows how to enable it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(words: Callable[[], Iterable[str]], *, files: bool = False) -> Completer:
    """Offer the words that start with what was typed; with ``files``, file names as well."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        matches = [CompletionItem(word) for word in words() if word.startswith(incomplete)]
        return matches + ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


def after_commas(words: Callable[[], Sequence[str]]) -> Completer:
    """Complete the last word of a list such as ``onnxruntime,openvino``."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [
            CompletionItem(f"{before}{comma}{word}")
            for word in words()
            if word.startswith(last) and word not in taken
        ]

    return complete


def networks() -> list[str]:
    from tvmtune.networks import names

    return names()


def targets() -> list[str]:
    from tvmtune.host import names

    return names()


def tuners() -> list[str]:
    from tvmtune.tuning.tuners import TUNERS

    return list(TUNERS)


def simulated() -> list[str]:
    from tvmtune.tuning.simulation.simulate import names

    return names()


def schedulers() -> list[str]:
    from tvmtune.tuning.scheduler import SCHEDULERS

    return list(SCHEDULERS)


def peers() -> list[str]:
    from tvmtune.bench.peers import PEERS

    return list(PEERS)
