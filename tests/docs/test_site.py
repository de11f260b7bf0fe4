"""The site builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT

pytest.importorskip("mkdocs")

ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\bsrc=["']?(?:https?:)?//|"""
    r"""<link(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//|"""
    r"""@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # Not --quiet: it hides warnings from --strict, too.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_built(site):
    built = {path.stem for path in site.glob("*.html")}
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages | {"index", "changelog", "contributing", "benchmarks"} <= built


@pytest.mark.slow
def test_pages_can_be_read_offline(site):
    found = {
        path.name: match[0]
        for path in (*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg"))
        if (match := ELSEWHERE.search(path.read_text()))
    }
    assert found == {}


@pytest.mark.slow
def test_the_reference_of_commands_has_every_command_and_option(site):
    from docs.pages import all_options
    from tvmtune.cli import COMMANDS

    text = (site / "cli.html").read_text()
    assert "Sentinel" not in text
    assert [name for name in COMMANDS if f">{name}<" not in text.replace("tvmtune ", "")] == []
    assert [o for o in sorted(all_options()) if f"<code>{o}</code>" not in text] == []


@pytest.mark.slow
def test_the_reference_of_python_has_every_public_name(site):
    import tvmtune

    text = (site / "api.html").read_text()
    names = [name for name in tvmtune.__all__ if not name.startswith("_")]
    assert [n for n in names if not re.search(rf">\s*tvmtune\.{n}\s*<", text)] == []
    assert text.count("doc-signature") >= len(names)
    assert ":class:" not in text


@pytest.mark.slow
def test_marks_of_examples_do_not_show(site):
    text = (site / "tutorial.html").read_text()
    assert "```" not in text
    assert "bash test" not in text
