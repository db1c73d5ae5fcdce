"""Picture the pages of `plait web`: `python docs/pictures/make_web.py`.

    web.png        a run over 48 files, of which two fail, in light colours
    web-dark.png   an item of it with its output, in dark colours

It needs what the browser tests need (tests/browser/install.py): Chromium, node and two npm packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from make import FILES  # noqa: E402

from browser.drive import Browser, Web, open_browser, plait_web  # noqa: E402
from browser.install import install, missing  # noqa: E402

WIDE, TALL = 1120, 820
MOST_BYTES = 200_000
FLOW = """\
name: check sources
setup:
  - name: versions
    shell: echo "lint 4.2, 48 files"
map:
  input: src/*.py
  max_parallel: 4
  steps:
    - name: lint
      shell: ./lint ${item:path}
    - name: types
      shell: echo every type fits
reduce:
  - name: say how it went
    shell: echo "${map.successful} of ${map.total} files are clean"
"""
LINT = r"""#!/bin/sh
printf '\033[1mlint\033[0m %s\n' "$1"
sleep 0.$((${#1} % 7 + 1))
for rule in names imports indents returns unused; do printf '  \033[32m✓\033[0m %s\n' $rule; done
case $1 in
  */legacy.py) printf '\033[31m%s:14: unexpected indent\033[0m\n' "$1" >&2; exit 1 ;;
  */hooks.py) printf '\033[31m%s:3: unused import: os\033[0m\n' "$1" >&2; exit 1 ;;
esac
"""


def make_project(project: Path) -> None:
    (project / ".ai").mkdir(parents=True)
    (project / "src").mkdir()
    for name in FILES:
        (project / "src" / f"{name}.py").touch()
    (project / "flow.yaml").write_text(FLOW)
    lint = project / "lint"
    lint.write_text(LINT)
    lint.chmod(0o755)


def picture(browser: Browser, url: str, scheme: str, name: str) -> None:
    browser.do("look", width=WIDE, height=TALL, scheme=scheme)
    assert browser.open(url) == 200
    browser.wait_for_text("live", "#connection")
    file = HERE / name
    browser.do("picture", file=str(file), whole=False)
    size = file.stat().st_size
    assert size <= MOST_BYTES, f"{name} has {size} bytes"
    print(f"{file.relative_to(ROOT)}: {size // 1000} KB")


def make_pictures(browser: Browser, web: Web) -> None:
    assert browser.open(web.link) == 200
    run = browser.evaluate("() => document.querySelector('a[href*=\"/run/\"]').href")
    picture(browser, f"{run}?view=items", "light", "web.png")
    browser.do("click", selector="input[name=state][value=failed]")
    browser.wait_for_text("unused import", "#item-rows")
    item = browser.evaluate("() => document.querySelector('#item-rows a').href")
    picture(browser, item, "dark", "web-dark.png")


def main() -> int:
    install()
    if lacks := missing():
        print(f"missing: {'; '.join(lacks)}", file=sys.stderr)
        return 1
    # A short path: it is in the pictures.
    with TemporaryDirectory(prefix="plait-", ignore_cleanup_errors=True) as folder:
        home, project = Path(folder, "home"), Path(folder, "checks")
        home.mkdir()
        make_project(project)
        places = {"HOME": str(home), "USER_SPACE": str(home), "XDG_STATE_HOME": f"{home}/state"}
        environment = {**os.environ, **places}
        command = [sys.executable, "-m", "plait", "run", "flow.yaml", "--quiet"]
        subprocess.run(command, cwd=project, env=environment, check=False)
        with (
            open_browser(Path(folder, "profile")) as browser,
            plait_web(project, environment) as web,
        ):
            make_pictures(browser, web)
    return 0


if __name__ == "__main__":
    sys.exit(main())
