"""Pages in a real browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def in_browser(page: Path, tmp_path: Path, *options: str) -> str:
    """The document as Chromium has it after it ran whatever it would run."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        if os.environ.get("CI") or os.environ.get("HPCJET_REQUIRE_LAB") == "1":
            pytest.fail("no chromium: install Debian's package of that name")
        pytest.skip("no chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run(
        [browser, *flags, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        timeout=300,
        check=True,
        text=True,
    )
    return done.stdout
