"""What a shell offers behind an option; ``tvmtune --help`` says how to switch it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(words: Callable[[], Iterable[str]], *, files: bool = False) -> Completer:
    """Offer the words that begin with what was typed; with ``files`` also those of the shell."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = [CompletionItem(word) for word in words() if word.startswith(incomplete)]
        return found + ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


def after_commas(words: Callable[[], Sequence[str]]) -> Completer:
    """The same for a list such as ``onnxruntime,openvino``."""

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
    from tvmtune.tuning.simulate import names

    return names()


def schedulers() -> list[str]:
    from tvmtune.tuning.scheduler import SCHEDULERS

    return list(SCHEDULERS)


def peers() -> list[str]:
    from tvmtune.deploy.peers import PEERS

    return list(PEERS)
