"""``tvmtune plugins``: list the installed backends and the hooks that each implements."""

from __future__ import annotations

import click

from tvmtune.cli.json_output import emit, json_flag
from tvmtune.command_help import Command


@click.command(
    "plugins",
    cls=Command,
    examples=[("List the values of --target", "tvmtune plugins")],
    docs="docs/plugins.md",
)
@json_flag("table")
def command(as_json: bool) -> None:
    """List the installed backends and their hooks.

    For one that cannot be loaded, prints the error.
    """
    from tvmtune import host

    infos = host.installed()
    if as_json:
        emit({"plugins": [info.to_json() for info in infos]})
        return
    if not infos:
        click.echo("no backend is installed: run pip install -e . in a checkout of tvmtune")
        return

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Backends")
    for column in ("name", "distribution", "module"):
        table.add_column(column, no_wrap=True)
    table.add_column("hooks", overflow="fold")
    for info in infos:
        hooks = Text(info.error, style="red") if info.error else Text(_hooks(info.hooks))
        # Names come from third-party packages: do not interpret them as markup.
        table.add_row(
            Text(", ".join(info.names) or "-"),
            Text(f"{info.distribution} {info.version}"),
            Text(info.module),
            hooks,
        )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)


def _hooks(implemented: tuple[str, ...]) -> str:
    from tvmtune import host

    if len(implemented) == len(host.HOOKS):
        return f"all {len(implemented)}"
    missing = [hook for hook in host.HOOKS if hook not in implemented]
    return f"all but {', '.join(missing)}"
