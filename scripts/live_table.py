"""Runs ``tvmtune tune`` and writes a picture of its live table, as a terminal shows it.

    python scripts/live_table.py docs/images/live-table.svg --at 120 -- resnet-18 --trials 200

The picture is taken after ``--at`` trials of the run. It names no font to download.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

import tvmtune.cli
from tvmtune.cli import progress

WIDTH = 112


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--at", type=int, required=True, help="trials after which it is taken")
    parser.add_argument("words", nargs="+", help="arguments of tvmtune tune")
    options = parser.parse_args()

    class Recorded(progress.LiveTable):
        taken = False

        def proposing(self, state, impl):
            super().proposing(state, impl)
            if not self.taken and self.session.total >= options.at:
                self.taken = True
                options.picture.write_text(picture(self._render(), options.words))

    def console() -> Console:
        return Console(stderr=True, force_terminal=True, width=WIDTH, height=40, highlight=False)

    progress.observer = lambda verbose: Recorded()
    progress.console = lambda stderr=False: console()
    tvmtune.cli.main(["tune", *options.words])


def picture(table, words: list[str]) -> str:
    """The SVG of what a terminal shows."""
    screen = Console(
        record=True, file=io.StringIO(), force_terminal=True, width=WIDTH, color_system="truecolor"
    )
    screen.print(table)
    title = f"tvmtune tune {' '.join(words)}"
    svg = screen.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id="live-table")
    # Pages are read offline, too.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace(
        "Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono"
    )


if __name__ == "__main__":
    main()
