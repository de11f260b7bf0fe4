"""Colors and fonts of charts, and what Vega makes of a chart: pictures and the page's script.

Charts name colors as CSS variables (``var(--ink)``), so that a page switches between light, dark and
print without drawing them again; pictures get the light ones.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from tvmtune.report import needs

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', sans-serif"

LIGHT = {
    "paper": "#ffffff",
    "panel": "#f6f8fa",
    "ink": "#1c2128",
    "muted": "#59636e",
    "line": "#d8dee4",
    "c1": "#2563c9",
    "c2": "#c2570c",
    "c3": "#13805a",
    "c4": "#8a3fc0",
    "c5": "#9a6b00",
    "c6": "#0b7f93",
    "c7": "#b3246b",
    "c8": "#64707d",
    "good": "#13805a",
    "bad": "#c2282d",
}
DARK = {
    "paper": "#0f1319",
    "panel": "#171c24",
    "ink": "#e4e8ed",
    "muted": "#98a2ae",
    "line": "#2d343e",
    "c1": "#6ba4ff",
    "c2": "#ff9d5c",
    "c3": "#4fd3a2",
    "c4": "#c893f5",
    "c5": "#e3b341",
    "c6": "#4cc9de",
    "c7": "#ff86bd",
    "c8": "#98a2ae",
    "good": "#4fd3a2",
    "bad": "#ff7b80",
}
SERIES = [f"var(--c{n})" for n in range(1, 9)]
"""Colors of categories."""


def css() -> str:
    """The colors as CSS, by what the reader's system prefers; light on paper."""

    def block(colors: dict[str, str]) -> str:
        return ":root{" + "".join(f"--{name}:{value};" for name, value in colors.items()) + "}"

    return (
        block(LIGHT) + f"@media screen and (prefers-color-scheme:dark){{{block(DARK)}"
        ":root{color-scheme:dark}}"
    )


def config() -> dict[str, Any]:
    """Vega-Lite's configuration for all charts."""
    text = {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 500,
    }
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "gridColor": "var(--line)",
            "domainColor": "var(--line)",
            "tickColor": "var(--line)",
            "titlePadding": 8,
        },
        "legend": {**text, "orient": "top", "title": None, "symbolStrokeWidth": 2},
        "range": {"category": SERIES},
        "rule": {"color": "var(--muted)"},
        "text": {"color": "var(--muted)"},
    }


def png(spec: dict[str, Any], *, width: int = 760, scale: float = 2.0) -> bytes:
    """A picture of a chart, in light colors."""
    sized = _colored({**spec, "config": config() | {"background": LIGHT["paper"]}})
    if sized.get("width") == "container":
        sized["width"] = width
    sized["padding"] = 16
    result: bytes = needs.vl_convert().vegalite_to_png(sized, scale=scale)
    return result


@functools.cache
def script() -> str:
    """Vega, Vega-Lite and vega-embed in one script, which defines ``vegaEmbed``."""
    text: str = needs.vl_convert().javascript_bundle()
    return text


def _colored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _colored(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_colored(each) for each in value]
    if isinstance(value, str) and (found := re.fullmatch(r"var\(--(\w+)\)", value)):
        return LIGHT[found[1]]
    return value
