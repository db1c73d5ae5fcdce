"""The folder of a tool comes along with it: verified like the tool, and under its own name in errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import plait
from plait.cli import main
from plait.core.errors import LimitError
from plait.tools import anchors
from plait.tools.call import call_tool
from plait.tools.chain import Chains
from plait.tools.headers import ItemCache
from plait.tools.prepare import Toolbox, digest_of_tool
from plait.tools.trust.lockfile import Lockfile
from tools.projects import STRANGER, Project, new_project, python_tool


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return new_project(tmp_path, monkeypatch)


NODE = shutil.which("node")
with_node = pytest.mark.skipif(NODE is None, reason="there is no node")

SCRIPT = python_tool(
    "import json, os\nimport helper\nfrom parts import more\nhere = os.path.dirname(__file__)\n"
    "print(json.dumps([helper.WORD, more.WORD, open(os.path.join(here, 'data.txt')).read()]))\n"
)
FUNCTION = python_tool(
    "import os\nimport helper\nfrom parts import more\ndef execute(params, project_path):\n"
    "    here = os.path.dirname(__file__)\n"
    "    return [helper.WORD, more.WORD, open(os.path.join(here, 'data.txt')).read()]\n",
    runtime="python/function",
)
BASH = (
    '# executor_id: core/runtimes/bash/bash\n# version: "1.0.0"\nhere=${BASH_SOURCE%/*}\n. "$here/helper.sh"\n. "$here/parts/more.sh"\n'
    'printf \'["%s", "%s", "%s"]\' "$word" "$more" "$(cat "$here/data.txt")"\n'
)
MODULE = (
    'const __executor_id__ = "core/runtimes/node/node";\nimport { word } from "./helper.mjs"\nimport { more } from "./parts/more.mjs"\n'
    'import { readFileSync } from "node:fs"\n'
    'console.log(JSON.stringify([word, more, readFileSync(new URL("data.txt", import.meta.url), "utf8")]))\n'
)
COMMAND = json.dumps(
    {
        "version": "1.0.0",
        "executor_id": "core/primitives/subprocess",
        "config": {"command": "/bin/bash", "args": ["{tool_dir}/run.sh"]},
    }
)
BESIDE = {
    "helper.py": "from parts.more import WORD as W\nWORD = 'helper' if W else ''\n",
    "parts/more.py": "WORD = 'more'\n",
    "helper.sh": "word=helper\n",
    "parts/more.sh": "more=more\n",
    "helper.mjs": "export const word = 'helper'\n",
    "parts/more.mjs": "export const more = 'more'\n",
    "run.sh": BASH,
    "data.txt": "data",
}
RUNTIMES = [
    pytest.param("report.py", SCRIPT, id="python"),
    pytest.param("report.py", FUNCTION, id="function"),
    pytest.param("report.sh", BASH, id="bash"),
    pytest.param("report.mjs", MODULE, id="node", marks=with_node),
    pytest.param("report.yaml", COMMAND, id="tool_dir"),
]


@pytest.mark.parametrize(("name", "text"), RUNTIMES)
@pytest.mark.parametrize("folder", ["", "team/"])
def test_what_lies_beside_a_tool_comes_along(
    here: Project, folder: str, name: str, text: str
) -> None:
    for place, contents in {**BESIDE, name: text}.items():
        here.write(f".ai/tools/{folder}{place}", contents)
    here.trust()
    assert here.data(f"{folder}report") == ["helper", "more", "data"]


RAISING = "def fail():\n    raise ValueError('no paper')\n"
FAILING: list[Any] = [
    # file          tool                                                                            helper          place of the error
    pytest.param("report.py",  python_tool("import helper\nhelper.fail()\n"),                       "helper.py",  RAISING, "helper.py\", line 2", id="python"),
    pytest.param("report.py",  python_tool("import helper\ndef execute(p, _):\n    helper.fail()\n", runtime="python/function"), "helper.py", RAISING, "helper.py:2 in fail", id="function"),
    pytest.param("report.py",  python_tool("import helper\ndef execute(p, _):\n    pass\n", runtime="python/function"), "helper.py", "def\n", "helper.py:1", id="syntax"),
    pytest.param("report.sh",  '# executor_id: core/runtimes/bash/bash\n# version: "1.0.0"\n. "${0%/*}/helper.sh"\n', "helper.sh", "\nno-such-program\nexit 3\n", "helper.sh: line 2", id="bash"),
    pytest.param("report.mjs", 'const __executor_id__ = "core/runtimes/node/node";\nimport "./helper.mjs"\n', "helper.mjs", "\nthrow new Error('no paper')\n", "helper.mjs:2", id="node", marks=with_node),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tool", "helper", "text", "place"), FAILING)
def test_an_error_names_the_files_of_the_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tool: str,
    helper: str,
    text: str,
    place: str,
) -> None:
    here = new_project(tmp_path / "a b", monkeypatch)  # in a URL, a blank is written in another way
    here.write(f".ai/tools/my/{name}", tool)
    here.write(f".ai/tools/my/{helper}", text)
    here.trust()
    result = here.call("my/report")
    assert result["status"] == "error"
    assert f"{here.space}/tools/my/{place}" in unquote(result["error"])
    assert str(here.user) not in unquote(json.dumps(result))


def test_two_tools_have_two_helpers_of_one_name_and_no_call_sees_what_another_left(
    here: Project,
) -> None:
    body = "import helper\ndef execute(params, project_path):\n    helper.seen.append(1)\n    return [helper.WORD, len(helper.seen)]\n"
    for place in ("one", "two"):
        here.script(f"{place}/tool", body, runtime="python/function")
        here.write(f".ai/tools/{place}/helper.py", f"WORD = '{place}'\nseen = []\n")
    here.trust()
    before = set(sys.modules)
    for _ in range(2):
        assert [here.data(f"{place}/tool") for place in ("one", "two")] == [["one", 1], ["two", 1]]
    assert "helper" not in sys.modules
    assert not {name for name in set(sys.modules) - before if name.startswith("plait_tool_")}


def test_functions_with_helpers_run_side_by_side(here: Project) -> None:
    body = "import helper\nimport importlib\ndef execute(params, project_path):\n    return helper.double(params['n'])\n"
    for place in ("one", "two"):
        here.script(f"{place}/tool", body, runtime="python/function")
        here.write(
            f".ai/tools/{place}/helper.py",
            "import part\ndef double(n): return [part.NAME, 2 * n]\n",
        )
        here.write(f".ai/tools/{place}/part.py", f"NAME = '{place}'\n")
    here.trust()
    places = ["one", "two"] * 40
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda row: here.data(f"{row[1]}/tool", n=row[0]), enumerate(places)))
    assert given == [[place, 2 * n] for n, place in enumerate(places)]


IMPORTS: list[tuple[str, dict[str, str], Any]] = [
    # import and result                                     beside the function                                    gives
    ("import pkg.sub\nx = pkg.sub.X",                       {"pkg/__init__.py": "", "pkg/sub.py": "X = 1"},         1),
    ("import pkg.sub as s\nx = s.X",                        {"pkg/__init__.py": "", "pkg/sub.py": "X = 1"},         1),
    ("from pkg import sub\nx = sub.X",                      {"pkg/sub.py": "X = 1"},                                1),
    ("from pkg.sub import X as x",                          {"pkg/sub.py": "from . import deep\nX = deep.X", "pkg/deep.py": "X = 2"}, 2),
    ("from .helper import x",                               {"helper.py": "x = 3"},                                 3),
    ("from helper import *",                                {"helper.py": "x = 4"},                                 4),
    ("import json\nx = json.loads('5')",                    {"json/query.py": "x = 0"},                             5),
    ("import json\nx = json.X",                             {"json.py": "X = 6"},                                   6),
    ("import helper\nx = helper.Point(7).x",                {"helper.py": "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: 'int'\n"}, 7),
    ("def f():\n    import helper\n    return helper.X\nx = f()", {"helper.py": "X = 8"},                           8),
    ("try: import nothing_at_all\nexcept ModuleNotFoundError as e: x = e.name", {"helper.py": ""},                   "nothing_at_all"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "beside", "expected"), IMPORTS)
def test_a_function_imports_as_a_script_does(
    here: Project, body: str, beside: dict[str, str], expected: Any
) -> None:
    for place, text in beside.items():
        here.write(f".ai/tools/my/{place}", text)
    here.script(
        "my/tool",
        f"{body}\ndef execute(params, project_path):\n    return x\n",
        runtime="python/function",
    )
    assert here.trust().data("my/tool") == expected


# ── what nobody speaks for ───────────────────────────────────────────────

SMALL = "import json, os\ntry:\n    import helper\n    word = helper.WORD\nexcept ImportError:\n    word = None\n"
SMALL_SCRIPT = python_tool(SMALL + "print(json.dumps(word))\n")
SMALL_FUNCTION = python_tool(
    SMALL + "def execute(params, project_path):\n    return word\n", runtime="python/function"
)


@pytest.mark.parametrize("text", [SMALL_SCRIPT, SMALL_FUNCTION], ids=["script", "function"])
def test_in_an_untrusted_project_only_signed_files_come_along(here: Project, text: str) -> None:
    here.trust_key()
    here.sign(here.write(".ai/tools/my/tool.py", text))
    helper = here.write(".ai/tools/my/helper.py", "WORD = 'unsigned'\n")
    assert here.data("my/tool") is None
    here.sign(helper, STRANGER)
    assert here.data("my/tool") is None
    helper.write_text("WORD = 'signed'\n")
    here.sign(helper)
    assert here.data("my/tool") == "signed"
    helper.write_bytes(helper.read_bytes().replace(b"'signed'", b"'evil!!'"))
    assert here.refusal("my/tool").code == "changed"


def test_a_tool_that_fails_says_what_did_not_come_along(
    here: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    here.trust_key()
    here.sign(here.script("my/tool", "import helper\n"))
    helper = here.write(".ai/tools/my/helper.py", "")
    (here.space / "tools/my/link.py").symlink_to(helper)
    assert main(["call", "my/tool", "--project", str(here.root)]) == 1
    reported = capsys.readouterr().err
    assert (
        f"  {helper}: it is not signed\n  {here.space}/tools/my/link.py: it is a link, or no file\n"
        in reported
    )
    assert "No module named 'helper'" in reported


def test_a_lock_holds_for_what_lies_beside_a_tool(here: Project) -> None:
    here.write(".ai/tools/my/tool.py", SMALL_SCRIPT)
    here.write(".ai/tools/my/helper.py", "WORD = 'one'\n")
    here.trust()
    tools = here.toolbox
    held = replace(tools, trust=tools.trust.with_lockfile(Lockfile.of(str(here.root))))
    assert call_tool(held, "my/tool", {}).data == "one"
    here.write(".ai/tools/my/helper.py", "WORD = 'two'\n")
    with pytest.raises(plait.PlaitError) as caught:
        call_tool(held, "my/tool", {})
    assert caught.value.code == "differs-from-lock"


def test_plait_sign_signs_what_comes_along(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here.root)
    for place, contents in {**BESIDE, "report.py": SCRIPT}.items():
        here.write(f".ai/tools/team/{place}", contents)
    assert main(["keys", "new", "--no-passphrase"]) == 0
    assert main(["sign", "--all"]) == 0
    assert (here.space / "tools/team/data.txt.sig").exists()
    assert here.data("team/report") == ["helper", "more", "data"]
    (here.space / "tools/team/data.txt").write_text("evil")
    assert here.refusal("team/report").code == "changed"


def test_verify_says_that_a_tool_may_not_run_because_of_a_file_beside_it(
    here: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here.root)
    here.write(".ai/tools/team/report.py", SMALL_SCRIPT)
    here.write(".ai/tools/team/data.txt", "data")
    assert main(["keys", "new", "--no-passphrase"]) == 0
    assert main(["sign", "--all"]) == 0
    assert main(["verify"]) == 0
    here.write(".ai/tools/team/unsigned.txt", "stays behind")
    assert main(["verify"]) == 0
    (here.space / "tools/team/data.txt").write_text("evil")
    capsys.readouterr()
    assert main(["verify"]) == 3
    reported = "✗ team/report  project: data.txt beside it: its bytes are not those that were signed\n  fix: "
    assert reported in capsys.readouterr().out
    assert main(["verify", "team/report", "--json"]) == 3
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["item_id"], record["allowed"], record["code"]) == (
        "team/report",
        False,
        "changed",
    )


# ── later calls ──────────────────────────────────────────────────────────


def ahead() -> float:
    return time.time() + 60


def of(project: Project) -> Toolbox:
    tools = project.toolbox
    return replace(tools, chains=Chains(tools.spaces, ItemCache(), clock=ahead), clock=ahead)


def overwrite(helper: Path) -> None:
    before = helper.stat()
    helper.write_text("WORD = 'two'\n")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange(helper: Path) -> None:
    new = helper.with_name(".new")
    new.write_text("WORD = 'two'\n")
    new.rename(helper)


def shadow(helper: Path) -> None:
    (helper.parent / "helper").mkdir()
    (helper.parent / "helper" / "__init__.py").write_text("WORD = 'two'\n")


CHANGES: list[tuple[Callable[[Path], None], str | None]] = [
    (overwrite, "two"),
    (exchange, "two"),
    (shadow, "two"),
    (Path.unlink, None),
]


@pytest.mark.parametrize("text", [SMALL_SCRIPT, SMALL_FUNCTION], ids=["script", "function"])
@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=[row[0].__name__ for row in CHANGES])
def test_a_warm_call_notices_a_change_beside_the_tool(
    here: Project, text: str, change: Callable[[Path], None], expected: str | None
) -> None:
    here.write(".ai/tools/my/tool.py", text)
    helper = here.write(".ai/tools/my/helper.py", "WORD = 'one'\n")
    here.write(".ai/tools/my/deep/er.txt", "")
    tools = of(here.trust())
    assert [call_tool(tools, "my/tool", {}).data for _ in range(3)] == ["one"] * 3
    assert tools.ready.get("my/tool", dry=False, now=ahead()) is not None
    change(helper)
    assert call_tool(tools, "my/tool", {}).data == expected


def test_a_changed_helper_is_a_changed_tool(here: Project) -> None:
    here.write(".ai/tools/my/tool.py", SMALL_SCRIPT)
    here.write(".ai/tools/my/helper.py", "WORD = 'one'\n")
    before = digest_of_tool(here.trust().toolbox, "my/tool")
    here.write(".ai/tools/my/helper.py", "WORD = 'two'\n")
    assert digest_of_tool(here.toolbox, "my/tool") != before


# ── what does not come along ─────────────────────────────────────────────


def test_hidden_and_installed_files_do_not_come_along(here: Project) -> None:
    here.script(
        "my/tool",
        "import json, os\nprint(json.dumps(sorted(os.listdir(os.path.dirname(__file__)))))\n",
    )
    for place in (
        ".hidden",
        "__pycache__/x.pyc",
        "node_modules/x.js",
        ".git/x",
        "kept.txt",
        "kept.txt.sig",
    ):
        here.write(f".ai/tools/my/{place}", "plait:signed" if place.endswith(".sig") else "")
    (here.space / "tools/my/kept.txt.sig").unlink()
    assert here.trust().data("my/tool") == ["kept.txt", "tool.py"]


def test_a_folder_that_is_too_large_is_refused_with_what_to_do(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "MOST_FILES", 3)
    here.trust()
    for number in range(4):
        here.write(f".ai/tools/my/deep/{number}.txt", "")
    here.script("my/tool")
    refused = here.refusal("my/tool")
    assert isinstance(refused, LimitError)
    assert (refused.code, refused.exit_code) == ("tool-folder-too-large", 2)
    assert "verify_deps: {scope: tool_file}" in str(refused)
    assert main(["check", str(here.space / "tools/my/tool.py")]) == 2
    here.script("my/tool", header='VERIFY_DEPS = {"scope": "tool_file"}')
    assert here.data("my/tool", a=1) == {"a": 1}


def test_what_lies_beside_a_tool_is_no_tool_that_cannot_be_used(
    here: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    here.write(".ai/tools/my/tool.py", SMALL_SCRIPT)
    here.write(".ai/tools/my/helper.py", "WORD = 'one'\n")
    here.write(".ai/tools/my/places.yaml", "Berlin: 1\nParis: 2\n")
    here.trust()
    assert main(["tools", "--project", str(here.root)]) == 0
    listed = capsys.readouterr().out
    assert "my/tool" in listed
    assert "my/helper" not in listed
    assert "my/places" not in listed
    here.write(".ai/tools/my/typo.py", "__executr_id__ = 'core/runtimes/python/script'\n")
    assert main(["tools", "--project", str(here.root)]) == 2
    assert here.refusal("my/helper").code == "no-header"
