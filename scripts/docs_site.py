"""Hooks of mkdocs: pages that are made from files outside of docs/, and from the code.

The pages of docs/ are also read as they are, in a checkout or on a forge. So they link to files by
their place in the repository, and mark examples for tests after the language of a fence; here, links
become those of the site, and marks vanish.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/cpu.md": "benchmarks-cpu.md",
    "benchmarks/language-models.md": "benchmarks-language-models.md",
    "benchmarks/low-precision.md": "benchmarks-low-precision.md",
}
"""Files of the repository that become pages, and their names among those of docs/."""

LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
MARKED = re.compile(r"^(\s*```\w+) [\w=.-]+$", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):(<code>)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    source = next((s for s, n in PAGES.items() if n == name), f"docs/{name}")
    if name == "api.md":
        markdown += _api()
    markdown = MARKED.sub(r"\1", markdown)
    titles = dict(_titles(config.nav or []))
    return LINK.sub(lambda link: _link(link, posixpath.dirname(source), titles), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    # mkdocs-click prints click's mark of an option without a default.
    return ROLE.sub(r"\1", html).replace("<code>Sentinel.UNSET</code>", "")


def _titles(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Name and title of each page of the navigation."""
    for entry in nav:
        for title, value in entry.items():
            if isinstance(value, str):
                yield value, title
            else:
                yield from _titles(value)


def _link(link: re.Match[str], folder: str, titles: Mapping[str, str]) -> str:
    """The link, from a file in this folder of the repository, as the site has it."""
    text, address = link[1], link[2]
    path, _, anchor = address.partition("#")
    if "://" in address or not path:
        return link[0]
    place = posixpath.normpath(posixpath.join(folder, path))
    anchor = f"#{anchor}" if anchor else ""
    if place in PAGES or place.startswith("docs/"):
        name = PAGES.get(place, place.removeprefix("docs/"))
        if text.endswith(".md]") and name in titles:
            text = f"[{titles[name]}]"
        return f"{text}({name}{anchor})"
    # Files that are no pages, such as examples and LICENSE, are named only.
    return text[1:-1] if (ROOT / place).exists() else link[0]


def _api() -> str:
    """A section for each public name of the package."""
    import tvmtune

    parts = []
    for name in sorted(tvmtune.__all__, key=str.lower):
        value = getattr(tvmtune, name)
        module = getattr(value, "__module__", None)
        if module is None or name.startswith("_"):
            continue
        assert getattr(importlib.import_module(module), value.__qualname__) is value
        options = f"heading: tvmtune.{name}, toc_label: tvmtune.{name}"
        parts.append(f"\n\n::: {module}.{value.__qualname__}\n    options: {{{options}}}\n")
    return "".join(parts)
