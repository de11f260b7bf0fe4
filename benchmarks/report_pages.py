"""How long a report of a large log takes to make and to open, and how large it is.

    python benchmarks/report_pages.py LOG [TRIALS]

LOG is a real log, which ``large_log.py`` makes larger. Opening counts from the navigation until all
charts are drawn, in headless Chromium without a cache, in a new context each time.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import large_log

TIMES = 7


def main(source: Path, trials: int) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made:
        log, page = Path(made) / "large.json", Path(made) / "large.html"
        large_log.grow(source, log, trials)
        print(f"log: {trials:,} trials, {log.stat().st_size / 1e6:.1f} MB")
        for options in (["--no-code"], []):
            began = time.perf_counter()
            command = ["tvmtune", "report", str(log), "-o", str(page), *options]
            subprocess.run(command, check=True, capture_output=True)
            seconds = time.perf_counter() - began
            print(
                f"made {' '.join(options)} in {seconds:.1f} s: {page.stat().st_size / 1e6:.2f} MB"
            )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            opened = []
            for _ in range(TIMES):
                context = browser.new_context()
                tab = context.new_page()
                began = time.perf_counter()
                tab.goto(page.as_uri())
                tab.wait_for_selector("html[data-ready]", state="attached")
                opened.append(time.perf_counter() - began)
                context.close()
            browser.close()
        listed = " ".join(f"{seconds:.2f}" for seconds in opened)
        print(f"opened in {statistics.median(opened):.2f} s (median of {listed})")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((sys.argv[2:] or ["50000"])[0]))
