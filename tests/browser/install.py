"""Get what the browser tests need: Chromium from Debian, two packages of npm below `.venv`.

`make test` runs this.  It installs what it can and never fails: tests that miss something are
skipped and say what.  With PLAIT_BROWSER=required, as in continuous integration, they fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv" / "browser"
PACKAGES = {"axe-core": "4.14.0", "playwright-core": "1.65.1"}
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    return os.environ.get("PLAIT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def has_packages() -> bool:
    def version(name: str) -> str | None:
        try:
            text = (CACHE / "node_modules" / name / "package.json").read_text("utf-8")
        except OSError:
            return None
        found = json.loads(text)["version"]
        return str(found)

    return all(version(name) == wanted for name, wanted in PACKAGES.items())


def missing() -> list[str]:
    """What is not here, and how to get it."""
    found = []
    if not find_chromium():
        found.append("Chromium (Debian: apt install chromium)")
    if not shutil.which("node"):
        found.append("node (Debian: apt install nodejs npm)")
    if not has_packages():
        found.append("npm packages (python tests/browser/install.py)")
    return found


def install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not find_chromium() and os.geteuid() == 0 and shutil.which("apt-get"):
            print("plait: installing Chromium for the browser tests", flush=True)
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for words in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
                _try(["apt-get", *words], environment)
        if not has_packages() and shutil.which("npm"):
            print(
                "plait: installing playwright-core and axe-core for the browser tests", flush=True
            )
            wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
            quiet = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error"]
            if os.environ.get("PLAIT_BROWSER") != "required":
                quiet.append("--fetch-retries=0")  # it would wait a minute before it gives up
            (CACHE / "package.json").write_text('{"private": true}\n')
            _try(["npm", "install", *quiet, "--prefix", str(CACHE), *wanted], dict(os.environ))


def _try(words: list[str], environment: dict[str, str]) -> None:
    try:
        subprocess.run(words, check=False, timeout=600, env=environment, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"plait: {words[0]}: {error}", file=sys.stderr)


if __name__ == "__main__":
    install()
    for one in missing():
        print(f"plait: the browser tests will be skipped, missing: {one}")
