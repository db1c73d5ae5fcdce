"""The system space: runtimes as the seed describes them, and standard tools that stay in the project."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import jsonschema_rs
import pytest

from plait.adapters import function
from plait.adapters.http import client as request
from plait.core.errors import RequestError
from plait.core.records import replace
from plait.core.values import Json
from plait.tools.bind import bind
from plait.tools.bind_common import BindRequest
from plait.tools.chain import Chain, Chains
from plait.tools.config import validate_params
from plait.tools.environment import FIXED, DotEnv, resolve_environment
from plait.tools.headers import ItemCache
from plait.tools.interpreters import SearchPaths
from plait.tools.invocation import (
    CallLimits,
    FunctionCall,
    Invocation,
    PrimitiveResult,
    ProcessCall,
    RequestCall,
)
from plait.tools.spaces import Space, Spaces

SYSTEM = str(Path(function.__file__).parent.parent / "system")
RYE = str(Path(__file__).parent.parent / "data" / "rye")
HOST = {"PATH": os.environ["PATH"], "GIT_DIR": "/nowhere", "SECRET_TOKEN": "do-not-pass"}

TOOLS = [
    "core/shell", "core/file/read", "core/file/write", "core/file/edit", "core/file/list", "core/file/search",
    "core/http/fetch", "core/git/status", "core/git/diff", "core/json/query", "core/agents/claude", "core/notify",
]  # fmt: skip
RUNTIMES = {
    "core/runtimes/python/script": "core/primitives/subprocess",
    "core/runtimes/state-graph/runtime": "core/primitives/flow",
    "core/runtimes/ensemble/runtime": "core/primitives/flow",
    "core/runtimes/python/function": "core/primitives/function",
    "core/runtimes/node/node": "core/primitives/subprocess",
    "core/runtimes/bash/bash": "core/primitives/subprocess",
    "core/runtimes/mcp/stdio": "core/primitives/mcp",
    "core/runtimes/mcp/http": "core/primitives/mcp",
    "core/git/safely": "core/primitives/subprocess",
    "core/agents/command": "core/primitives/subprocess",
}


def chain_of(tool_id: str, space: str = "") -> Chain:
    spaces = (*([Space("project", space)] if space else []), Space("system", SYSTEM))
    return Chains(Spaces(spaces), ItemCache()).get(tool_id)


def bound(tool_id: str, params: Mapping[str, Json], project: Path, space: str = "") -> Invocation:
    """What a call comes to; the tool's file is taken from where it lies."""
    chain = chain_of(tool_id, space)
    context = {"tool_path": chain.tool.path, "project_path": str(project)}
    environment = resolve_environment(
        chain,
        host=HOST,
        dotenv=DotEnv(),
        around=SearchPaths((str(project),), HOST, "/nonexistent"),
        context=context,
    )
    params = validate_params(params, chain.tool)
    return bind(BindRequest(chain, params, context, environment, str(project), str(project)))


def use(tool_id: str, project: Path, **params: Json) -> PrimitiveResult:
    """Call a standard tool that is a function."""
    call = bound(tool_id, params, project)
    assert isinstance(call, FunctionCall)
    return function.call_function(call)


def printed(call: Invocation) -> str:
    assert isinstance(call, ProcessCall)
    done = subprocess.run(
        call.argv, cwd=call.cwd, env=call.env, input=call.stdin, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


# ── what every item says of itself ───────────────────────────────────────


def test_the_system_space_holds_these_items_and_no_others() -> None:
    ids = Spaces((Space("system", SYSTEM),)).ids()
    assert {item for item in ids if item.startswith("core/")} == {*TOOLS, *RUNTIMES}


@pytest.mark.parametrize("tool_id", TOOLS)
def test_a_tool_describes_itself_and_each_parameter(tool_id: str) -> None:
    header = chain_of(tool_id).tool.header
    assert len(header.description) > 30
    assert header.version == "1.0.0"
    assert header.category == tool_id.rpartition("/")[0]
    schema = header.config_schema
    assert schema is not None
    assert jsonschema_rs.meta.is_valid(dict(schema))
    assert schema["additionalProperties"] is False
    for name, parameter in schema["properties"].items():
        assert parameter["description"], name
        if "default" in parameter:
            assert jsonschema_rs.validator_for(parameter).is_valid(parameter["default"]), name


@pytest.mark.parametrize(
    "file", sorted(Path(SYSTEM).rglob("tools/**/*.py")), ids=lambda file: file.stem
)
def test_a_tool_file_starts_nothing_when_it_is_loaded(file: Path) -> None:
    # Bodies of tools are definitions: calling one must cost no more than its own work.
    tree = ast.parse(file.read_text("utf-8"))
    if ast.unparse(tree.body[-1]).startswith("if __name__ == '__main__':"):
        tree.body.pop()  # a script, which is not loaded but run
    for node in tree.body:
        assert isinstance(
            node,
            ast.Expr
            | ast.Import
            | ast.ImportFrom
            | ast.Assign
            | ast.AnnAssign
            | ast.FunctionDef
            | ast.ClassDef,
        )
        assert not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


@pytest.mark.parametrize(("runtime", "primitive"), RUNTIMES.items())
def test_a_runtime_ends_in_its_primitive(runtime: str, primitive: str) -> None:
    chain = chain_of(runtime)
    assert chain.primitive == primitive
    assert (chain.tool.header.tool_type, chain.tool.header.category) == (
        "runtime",
        runtime.rpartition("/")[0],
    )


def test_the_python_runtime_is_the_one_of_the_seed() -> None:
    header = chain_of("core/runtimes/python/script").tool.header
    assert dict(header.config) == {
        "command": "${RYE_PYTHON}",
        "args": ["{tool_path}", "--project-path", "{project_path}"],
        "input_data": "{params_json}",
        "timeout": 300,
    }
    assert header.env_config is not None
    assert header.env_config.interpreter is not None
    interpreter = header.env_config.interpreter
    assert (interpreter.type, interpreter.var, interpreter.fallback) == (
        "local_binary",
        "RYE_PYTHON",
        "python3",
    )
    assert (interpreter.binary, interpreter.candidates) == ("python", ("python3",))
    assert interpreter.search_paths == (".venv/bin", ".venv/Scripts")
    assert header.anchor is not None
    assert (header.anchor.mode, header.anchor.root, header.anchor.lib) == (
        "auto",
        "tool_dir",
        "lib/python",
    )
    assert header.anchor.markers_any == ("__init__.py", "pyproject.toml")
    assert header.anchor.env_paths == {
        "PYTHONPATH": {"prepend": ("{anchor_path}", "{runtime_lib}")}
    }
    assert header.verify_deps is not None
    assert {".py", ".so", ".pyc"} <= set(header.verify_deps.extensions)


# ── tools written for the seed's runtimes run unchanged ──────────────────


HOSTILE = 'OUT="${OUT_DIR:-/var/out}/${NAME}"\n{timeout} {tool_dir} "quoted" \\ é\n'


def test_a_script_tool_of_the_seed_writes_what_it_was_given(tmp_path: Path) -> None:
    written = bound("rye/file-system/write", {"path": "a/b.txt", "content": HOSTILE}, tmp_path, RYE)
    assert json.loads(printed(written)) == {"success": True, "path": "a/b.txt"}
    assert (tmp_path / "a" / "b.txt").read_text("utf-8") == HOSTILE
    read = bound("rye/file-system/read", {"path": "a/b.txt"}, tmp_path, RYE)
    assert json.loads(printed(read)) == {"success": True, "content": HOSTILE}
    assert json.loads(printed(bound("rye/file-system/ls", {"path": "."}, tmp_path, RYE)))[
        "entries"
    ] == ["a"]


def test_a_shell_tool_of_the_seed_gets_parameters_named_like_execution_keys(tmp_path: Path) -> None:
    result = json.loads(
        printed(bound("rye/bash/bash", {"command": "pwd", "timeout": 9}, tmp_path, RYE))
    )
    assert result == {"success": True, "stdout": f"{tmp_path}\n", "exit_code": 0}


def test_the_seeds_names_of_standard_tools_find_ours() -> None:
    names = [
        "rye/bash/bash",
        "rye/file-system/read",
        "rye/file-system/ls",
        "rye/file-system/grep",
        "tool:rye/file-system/write",
    ]
    assert [chain_of(name).tool.id for name in names] == [
        "core/shell", "core/file/read", "core/file/list", "core/file/search", "core/file/write",
    ]  # fmt: skip


def tool_file(space: Path, name: str, text: str) -> str:
    path = space / "tools" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return str(space)


def test_a_bash_file_is_the_script_and_its_parameters_are_data(tmp_path: Path) -> None:
    script = 'read -r params; printf "%s|%s" "$1" "$params"\n'
    space = tool_file(
        tmp_path / "space", "say.sh", f"# executor_id: core/runtimes/bash/bash\n{script}"
    )
    note = {"note": "$(touch pwned) `id`"}
    call = bound("say", note, tmp_path, space)
    assert isinstance(call, ProcessCall)
    assert call.argv == (
        "/bin/bash",
        "--noprofile",
        "--norc",
        f"{space}/tools/say.sh",
        str(tmp_path),
    )
    project, _, params = printed(call).partition("|")
    assert (project, json.loads(params)) == (str(tmp_path), note)
    assert not (tmp_path / "pwned").exists()


def test_a_node_file_reads_stdin_and_knows_the_project(tmp_path: Path) -> None:
    script = (
        'const __executor_id__ = "rye/core/runtimes/node/node";\n'
        'const params = JSON.parse(require("fs").readFileSync(0, "utf8"));\n'
        "console.log(JSON.stringify({sum: params.a + params.b, argv: process.argv.slice(2)}));\n"
    )
    space = tool_file(tmp_path / "space", "sum.js", script)
    result = json.loads(printed(bound("sum", {"a": 1, "b": 2}, tmp_path, space)))
    assert result == {"sum": 3, "argv": ["--project-path", str(tmp_path)]}


# ── files ────────────────────────────────────────────────────────────────


def test_a_file_is_written_read_and_edited(tmp_path: Path) -> None:
    assert use("core/file/write", tmp_path, path="a/b.txt", content=HOSTILE).data == {
        "path": "a/b.txt", "created": True, "bytes": len(HOSTILE.encode()),
    }  # fmt: skip
    assert (tmp_path / "a" / "b.txt").read_bytes() == HOSTILE.encode()
    assert use("core/file/read", tmp_path, path="a/b.txt").data["content"] == HOSTILE
    assert (
        use("core/file/edit", tmp_path, path="a/b.txt", old="{timeout}", new="${x}").data[
            "replaced"
        ]
        == 1
    )
    assert (
        use("core/file/read", tmp_path, path="a/b.txt", offset=2)
        .data["content"]
        .startswith("${x} {tool_dir}")
    )


READS: list[tuple[str, dict[str, Json], Json]] = [
    # content         parameters                      content, first line, lines, total, complete
    ("",              {},                             ["", 1, 0, 0, True]),
    ("a\nb\nc\n",     {},                             ["a\nb\nc\n", 1, 3, 3, True]),
    ("a\nb\nc",       {"offset": 2},                  ["b\nc", 2, 2, 3, False]),
    ("a\nb\nc",       {"offset": 2, "limit": 1},      ["b\n", 2, 1, 3, False]),
    ("a\r\nb\x0cc",   {},                             ["a\r\nb\x0cc", 1, 2, 2, True]),
    ("a\n",           {"offset": 9},                  ["", 9, 0, 1, False]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "params", "expected"), READS)
def test_lines_are_counted_from_one_and_kept_as_they_are(
    tmp_path: Path, content: str, params: dict[str, Json], expected: Json
) -> None:
    (tmp_path / "f").write_bytes(content.encode())
    data = use("core/file/read", tmp_path, path="f", **params).data
    assert [
        data[name] for name in ("content", "first_line", "lines", "total_lines", "complete")
    ] == expected


def test_a_write_keeps_the_mode_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    assert use("core/file/write", tmp_path, path="run.sh", content="new").data["created"] is False
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o750)
    assert os.listdir(tmp_path) == ["run.sh"]


def test_readers_see_the_old_or_the_new_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("a" * 100_000)
    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            text = target.read_text()
            seen.add(f"{text[:1]}{len(text)}")

    reader = threading.Thread(target=look)
    reader.start()
    for letter in "bababababa":
        assert use("core/file/write", tmp_path, path="f", content=letter * 100_000).success
    stop.set()
    reader.join(20)
    assert seen <= {"a100000", "b100000"}


EDITS: list[tuple[dict[str, Json], str, str | None]] = [
    # parameters                               file afterwards    error
    ({"old": "one", "new": "1"},               "1 two two",       None),
    ({"old": "two", "new": "2", "all": True},  "one 2 2",         None),
    ({"old": "two", "new": "2"},               "one two two",     "'f' holds the old text 2 times\nfix: give more of the text around it, or all: true"),
    ({"old": "six", "new": "6"},               "one two two",     "'f' does not hold the old text\nfix: read the file again and copy it exactly"),
    ({"old": "one", "new": r"\1 \g<0>"},       r"\1 \g<0> two two", None),
]  # fmt: skip


@pytest.mark.parametrize(("params", "after", "error"), EDITS)
def test_an_edit_replaces_exactly_what_it_names(
    tmp_path: Path, params: dict[str, Json], after: str, error: str | None
) -> None:
    (tmp_path / "f").write_text("one two two")
    assert use("core/file/edit", tmp_path, path="f", **params).error == error
    assert (tmp_path / "f").read_text() == after


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A project with links out of it, next to a secret."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    project = tmp_path / "project"
    (project / "src" / "deep").mkdir(parents=True)
    (project / ".git" / "hooks").mkdir(parents=True)
    (project / ".git" / "config").write_text("needle")
    (project / "src" / "a.py").write_text("needle = 1\nhay\n")
    (project / "src" / "deep" / "b.py").write_text("x\nneedle needle\n")
    (project / "src" / "c.txt").write_text("needle\n")
    (project / "src" / "binary").write_bytes(b"needle\0")
    (project / "out").symlink_to(outside)
    (project / "link").symlink_to(outside / "secret")
    (project / "dangling").symlink_to(outside / "new")
    os.mkfifo(project / "pipe")
    yield project
    assert (outside / "secret").read_text() == "secret"
    assert sorted(os.listdir(outside)) == ["secret"]


ESCAPES = [
    "../outside/secret",
    "src/../../outside/secret",
    "/etc/passwd",
    "out/secret",
    "link",
    "dangling",
    "src/\0",
    "..",
    "/",
]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("tool", ["read", "write", "edit", "search", "list"])
def test_no_path_and_no_link_leads_out_of_the_project(tree: Path, tool: str, path: str) -> None:
    params: dict[str, dict[str, Json]] = {
        "read": {}, "write": {"content": "pwned"}, "edit": {"old": "secret", "new": "pwned"},
        "search": {"pattern": "."}, "list": {},
    }  # fmt: skip
    result = use(f"core/file/{tool}", tree, path=path, **params[tool])
    assert not result.success
    assert result.data is None
    assert re.search("leaves|is a link, or lies behind one", result.error or "")


GUARDED = [
    ".git/config", ".git/hooks/post-checkout", ".ai/tools/x.py", "src/.git/config", ".GIT/config", ".git",
    ".venv/bin/python", "sub/venv/pyvenv.cfg", "node_modules/.bin/tsx", ".github/workflows/ci.yml",
    ".env", ".env.local", "sub/.ENV", ".envrc", "plait.lock", "lib/evil.pth", "sitecustomize.py",
    ".gitattributes", ".mcp.json", ".vscode/tasks.json", ".claude/settings.json",
]  # fmt: skip


@pytest.mark.parametrize("path", GUARDED)
def test_files_that_can_start_programs_are_not_written(tree: Path, path: str) -> None:
    result = use("core/file/write", tree, path=path, content="pwned")
    assert (result.error or "").endswith(
        "can start programs, or decides what may run: change it by hand"
    )
    assert not (tree / ".ai").exists()
    assert (tree / ".git" / "config").read_text() == "needle"


ODD = ["pipe", "src", "src/nothing", "src/a.py/x", "."]


@pytest.mark.parametrize("path", ODD)
def test_what_is_not_a_file_is_an_error_and_never_waited_for(tree: Path, path: str) -> None:
    assert not use("core/file/read", tree, path=path).success
    if path != "src/nothing":
        assert not use("core/file/write", tree, path=path, content="x").success


def test_an_absolute_path_inside_the_project_is_one_of_it(tree: Path) -> None:
    assert (
        use("core/file/read", tree, path=str(tree / "src" / "c.txt")).data["content"] == "needle\n"
    )
    assert not use("core/file/read", tree, path=f"{tree}-else/x").success


def test_a_folder_is_listed_with_what_each_entry_is(tree: Path) -> None:
    entries = use("core/file/list", tree).data["entries"]
    assert [(entry["path"], entry["kind"]) for entry in entries] == [
        (".git", "folder"), ("dangling", "link"), ("link", "link"), ("out", "link"), ("pipe", "special"), ("src", "folder"),
    ]  # fmt: skip


PATTERNS = [
    # pattern           folder    paths
    ("*.py",            ".",      ["src/a.py", "src/deep/b.py"]),
    ("src/*.py",        ".",      ["src/a.py"]),
    ("**/*.py",         ".",      ["src/a.py", "src/deep/b.py"]),
    ("deep/*",          "src",    ["src/deep/b.py"]),
    ("[ab].py",         ".",      ["src/a.py", "src/deep/b.py"]),
    ("[!a].py",         ".",      ["src/deep/b.py"]),
    ("?.txt",           "src",    ["src/c.txt"]),
    ("config",          ".",      []),
    ("config",          ".git",   [".git/config"]),
    ("(a+)+$",          ".",      []),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "folder", "paths"), PATTERNS)
def test_files_are_found_by_a_pattern(
    tree: Path, pattern: str, folder: str, paths: list[str]
) -> None:
    data = use("core/file/list", tree, pattern=pattern, path=folder).data
    assert ([entry["path"] for entry in data["entries"]], data["complete"]) == (paths, True)


def test_a_list_is_cut_and_says_so(tree: Path) -> None:
    data = use("core/file/list", tree, pattern="*", max=2).data
    assert (len(data["entries"]), data["complete"]) == (2, False)


def test_a_search_shows_lines_of_text_files(tree: Path) -> None:
    data = use("core/file/search", tree, pattern=r"needle\b").data
    assert [(match["path"], match["line"]) for match in data["matches"]] == [
        ("src/a.py", 1), ("src/c.txt", 1), ("src/deep/b.py", 2),
    ]  # fmt: skip
    only = use("core/file/search", tree, pattern="needle", glob="*.py", max=1).data
    assert (only["matches"], only["complete"]) == (
        [{"path": "src/a.py", "line": 1, "text": "needle = 1"}],
        False,
    )
    one = use("core/file/search", tree, pattern="hay", path="src/a.py").data
    assert [match["line"] for match in one["matches"]] == [2]


def test_a_search_takes_linear_time_and_refuses_what_is_no_pattern(tree: Path) -> None:
    (tree / "evil").write_text("a" * 50_000)
    assert use("core/file/search", tree, pattern="(a+)+$b").data["matches"] == []
    assert use("core/file/search", tree, pattern="(").error == (
        "the pattern is not a regular expression that RE2 knows\n"
        "fix: look at its brackets; RE2 has no back-references and no look-around"
    )


def test_a_folder_swapped_for_a_link_meanwhile_leads_nowhere_else(tree: Path) -> None:
    """A folder changes places with a link to the outside, over and over; no call ever arrives there."""
    folder, link, spare = tree / "swap", tree / "bait", tree / "spare"
    folder.mkdir()
    link.symlink_to(tree.parent / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(folder, spare)
            os.rename(link, folder)
            os.rename(folder, link)
            os.rename(spare, folder)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        results = [use("core/file/read", tree, path="swap/secret").success for _ in range(150)]
        results += [
            use("core/file/edit", tree, path="swap/secret", old="secret", new="x").success
            for _ in range(150)
        ]
    finally:
        stop.set()
        swapping.join(20)
    assert not any(results)


# ── shell, JSON, git, HTTP ───────────────────────────────────────────────


def test_a_value_in_shell_text_is_data(tmp_path: Path) -> None:
    result = use(
        "core/shell", tmp_path, command='printf "%s" ${x}; pwd', values={"x": "$(touch pwned); 'a"}
    )
    assert result.data == {
        "stdout": f"$(touch pwned); 'a{tmp_path}\n",
        "stderr": "",
        "exit_code": 0,
    }
    assert os.listdir(tmp_path) == []


def test_a_shell_command_sees_the_fixed_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tool runs in this process, so its environment is the real one.
    monkeypatch.setenv("SECRET_TOKEN", "do-not-pass")
    names = {
        line.partition("=")[0]
        for line in use("core/shell", tmp_path, command="env").data["stdout"].splitlines()
    }
    assert "PATH" in names
    assert names <= {*FIXED, "PWD", "OLDPWD", "SHLVL", "_"}


def test_a_command_that_fails_is_a_failed_result_with_its_output(tmp_path: Path) -> None:
    result = use("core/shell", tmp_path, command="echo out; echo err >&2; exit 3", shell="bash")
    assert (result.success, result.error) == (False, "the command ended with exit code 3")
    assert (result.data["stdout"], result.data["stderr"], result.data["exit_code"]) == (
        "out\n",
        "err\n",
        3,
    )


def test_a_shell_command_whose_time_is_up_is_reported(tmp_path: Path) -> None:
    result = use("core/shell", tmp_path, command="echo begun; sleep 600", timeout=0.4)
    assert not result.success
    assert "0.4" in (result.error or "")
    assert (result.data["stdout"], result.data["exit_code"]) == ("begun\n", 124)


QUERIES: list[tuple[str, Json, Json]] = [
    # query                          data                                    values
    ("$.a[1]",                       {"a": [1, 2]},                          [2]),
    ("$..id",                        {"id": 1, "b": [{"id": 2}]},            [1, 2]),
    ("$[?@.p < 10].n",               [{"p": 5, "n": "x"}, {"p": 50}],        ["x"]),
    ("$[?match(@, 'a.c')]",          ["abc", "xabc"],                        ["abc"]),
    ("$[?search(@, 'b')]",           ["abc", "c"],                           ["abc"]),
    ("$[?search(@, '(')]",           ["abc"],                                []),
    ("$[?match(@, '(a+)+')]",        ["a" * 5000 + "b"],                     []),
    ("$",                            None,                                   [None]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "data", "values"), QUERIES)
def test_json_is_queried_by_the_standard(
    tmp_path: Path, query: str, data: Json, values: Json
) -> None:
    assert use("core/json/query", tmp_path, query=query, data=data).data["values"] == values


def test_a_json_file_is_queried_and_mistakes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text('{"a": {"b": [1, 2, 3]}}')
    (tmp_path / "broken.json").write_text("{")
    assert use("core/json/query", tmp_path, query="$.a.b[*]", path="d.json", max=2).data == {
        "values": [1, 2], "paths": ["$['a']['b'][0]", "$['a']['b'][1]"], "complete": False,
    }  # fmt: skip
    assert use("core/json/query", tmp_path, query="$[", data=1).error == (
        "the query is not a JSONPath of RFC 9535\nfix: for example $.items[0].name or $..id"
    )
    assert (
        use("core/json/query", tmp_path, query="$", path="broken.json").error
        == "'broken.json' is not JSON\nfix: name a JSON file"
    )
    assert not use("core/json/query", tmp_path, query="$").success
    assert not use("core/json/query", tmp_path, query="$", path="../d.json").success


def run_git(repo: Path, *words: str, check: bool = True) -> None:
    subprocess.run(
        ["git", "-C", str(repo), "-c", "user.name=n", "-c", "user.email=e@example.org", *words],
        check=check,
        capture_output=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(repo.parent)},
    )


def new_repository(repo: Path) -> Path:
    repo.mkdir()
    run_git(repo, "init", "-q", "-b", "trunk")
    (repo / "--output=pwned").write_text("a\n")
    (repo / "f.txt").write_text("one\n")
    run_git(repo, "add", ".")
    run_git(repo, "commit", "-q", "-m", "first")
    (repo / "f.txt").write_text("two\n")
    (repo / "--output=pwned").write_text("b\n")
    return repo


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two changes, and nothing bad in it yet."""
    return new_repository(tmp_path / "repo")


STATE = ["## trunk", " M --output=pwned", " M f.txt"]
CHANGED = ["--- a/f.txt", "+++ b/f.txt", "-one", "+two"]


def shown_by_git(repo: Path, **env: str) -> tuple[list[str], list[str]]:
    """The state of the files, and the changed lines of one of them."""
    status, diff = (
        printed(with_env(bound(f"core/git/{tool}", params, repo), env)).splitlines()
        for tool, params in (("status", {}), ("diff", {"paths": ["f.txt"]}))
    )
    return status, [line for line in diff if line[:1] in "+-"]


def with_env(call: Invocation, env: Mapping[str, str]) -> Invocation:
    assert isinstance(call, ProcessCall)
    return replace(call, env={**call.env, **env})


def canaries(repo: Path) -> list[str]:
    return sorted(path.name for path in repo.rglob("canary*"))


def expect_to_fall_for_it(repo: Path, *words: str) -> None:
    """Plain git starts what the repository names: otherwise it would prove nothing that ours does not."""
    run_git(repo, *words, check=False)
    assert canaries(repo) == ["canary"]
    next(repo.rglob("canary")).unlink()


TOUCH = "touch canary; cat"
NAMED = [
    # what the repository says                                  what falls for it
    ({"core.fsmonitor": "touch canary; :"},                        "status"),
    ({"diff.external": "touch canary; :"},                         "diff"),
    ({"diff.evil.command": "touch canary; :"},                     "diff"),
    ({"diff.evil.textconv": f"{TOUCH} <"},                      "diff"),
    ({"filter.evil.clean": TOUCH},                              "status"),
    ({"filter.evil.clean": TOUCH},                              "diff"),
    ({"filter.evil.clean": TOUCH, "filter.evil.required": "1"}, "diff"),
    ({"filter.evil.process": TOUCH},                            "diff"),
    ({"filter.EVIL.clean": TOUCH},                              ""),
    ({"core.pager": TOUCH, "pager.diff": "true"},               ""),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "falls_for_it"), NAMED)
def test_git_tools_start_nothing_that_the_repository_names(
    repository: Path, settings: dict[str, str], falls_for_it: str
) -> None:
    (repository / ".git" / "info" / "attributes").write_text("*.txt diff=evil filter=evil\n")
    hook = repository / ".git" / "hooks" / "post-index-change"
    for key, value in settings.items():
        run_git(repository, "config", key, value)
    if falls_for_it:
        expect_to_fall_for_it(repository, falls_for_it)
    hook.write_text("#!/bin/sh\ntouch canary-hook\n")
    hook.chmod(0o755)
    assert shown_by_git(repository) == (STATE, CHANGED)
    assert canaries(repository) == []


@pytest.mark.parametrize(
    "name", ["a=b", "a.b", 'quo"te', "$(touch${IFS}canary)", "back\\slash", "*", "é"]
)
def test_a_filter_does_not_run_whatever_it_is_called(repository: Path, name: str) -> None:
    (repository / ".git" / "info" / "attributes").write_text(f"*.txt filter={name}\n")
    run_git(repository, "config", f"filter.{name}.clean", TOUCH)
    expect_to_fall_for_it(repository, "diff")
    assert shown_by_git(repository) == (STATE, CHANGED)
    assert canaries(repository) == []


def test_a_filter_of_an_included_file_does_not_run(repository: Path) -> None:
    (repository / ".git" / "info" / "attributes").write_text("*.txt filter=evil\n")
    (repository / ".git" / "more").write_text(f'[filter "evil"]\n\tclean = "{TOUCH}"\n')
    run_git(repository, "config", "includeIf.onbranch:trunk.path", "more")
    expect_to_fall_for_it(repository, "diff")
    assert shown_by_git(repository) == (STATE, CHANGED)
    assert canaries(repository) == []


def test_a_filter_of_the_user_s_own_configuration_stays(repository: Path, tmp_path: Path) -> None:
    (repository / ".git" / "info" / "attributes").write_text("*.txt filter=mine\n")
    (tmp_path / ".gitconfig").write_text('[filter "mine"]\n\tclean = tr a-z A-Z\n')
    assert shown_by_git(repository, HOME=str(tmp_path))[1] == [*CHANGED[:-1], "+TWO"]


def test_a_submodule_starts_nothing_either(repository: Path, tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner")
    run_git(repository, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "sub")
    run_git(repository, "commit", "-q", "-m", "with a submodule")
    sub = repository / "sub"
    (sub / "f.txt").write_text("three\n")
    run_git(sub, "commit", "-q", "-a", "-m", "second")
    (sub / "f.txt").write_text("four\n")
    (repository / ".git" / "modules" / "sub" / "info" / "attributes").write_text(
        "*.txt filter=evil\n"
    )
    run_git(sub, "config", "filter.evil.clean", TOUCH)
    run_git(repository, "config", "diff.submodule", "diff")
    expect_to_fall_for_it(repository, "diff")
    assert " M sub" in printed(bound("core/git/status", {}, repository)).splitlines()
    assert "+Subproject commit " in printed(bound("core/git/diff", {}, repository))
    assert canaries(repository) == []


def test_missing_objects_are_not_fetched(repository: Path, tmp_path: Path) -> None:
    run_git(repository, "config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    source = f"file://{repository}"
    run_git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", source, str(partial))
    run_git(partial, "reset", "-q")
    (partial / "f.txt").write_text("two\n")
    run_git(partial, "config", "remote.origin.uploadpack", f"touch {partial}/canary; false")
    expect_to_fall_for_it(partial, "diff", "f.txt")
    call = bound("core/git/diff", {"paths": ["f.txt"]}, partial)
    assert isinstance(call, ProcessCall)
    done = subprocess.run(call.argv, cwd=call.cwd, env=call.env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, canaries(partial)) == (128, b"", [])


def test_a_git_that_cannot_be_kept_from_filters_is_refused(
    repository: Path, tmp_path: Path
) -> None:
    (repository / ".git" / "info" / "attributes").write_text("*.txt filter=evil\n")
    run_git(repository, "config", "filter.evil.clean", TOUCH)
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(f'#!/bin/sh\nunset GIT_CONFIG_COUNT\nexec {shutil.which("git")} "$@"\n')
    old.chmod(0o755)
    call = bound("core/git/diff", {}, repository)
    assert isinstance(call, ProcessCall)
    env = {**call.env, "PATH": f"{old.parent}:{call.env['PATH']}"}
    done = subprocess.run(call.argv, cwd=call.cwd, env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (
        1,
        "",
        "this git cannot be kept from running the filters of a repository: it takes version 2.31 or newer\n",
    )
    assert canaries(repository) == []


def test_a_path_for_git_is_never_an_option_or_a_pattern(repository: Path) -> None:
    diff = printed(bound("core/git/diff", {"paths": ["--output=pwned"]}, repository))
    assert "+b" in diff
    assert printed(bound("core/git/diff", {"paths": [":(glob)**"]}, repository)) == ""


def test_git_does_not_see_variables_of_the_host(repository: Path) -> None:
    call = bound("core/git/status", {}, repository)
    assert isinstance(call, ProcessCall)
    assert sorted(call.env) == [
        "GIT_ALLOW_PROTOCOL",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NO_LAZY_FETCH",
        "GIT_OPTIONAL_LOCKS",
        "GIT_TERMINAL_PROMPT",
        "PATH",
    ]


def test_a_fetched_address_is_data_and_local_ones_are_refused(tmp_path: Path) -> None:
    call = bound("core/http/fetch", {"address": "https://example.org/a?b=c"}, tmp_path)
    assert isinstance(call, RequestCall)
    assert (call.method, call.url_from_data, call.max_redirects) == ("GET", True, 5)
    assert call.url == "https://example.org/a?b=c"
    local = bound("core/http/fetch", {"address": "http://127.0.0.1:9/"}, tmp_path)
    assert isinstance(local, RequestCall)
    with pytest.raises(RequestError) as caught:
        request.send_request(local)
    assert caught.value.code == "address-refused"


def test_a_tool_is_called_by_its_bytes(tmp_path: Path) -> None:
    code = Path(SYSTEM, "tools", "core", "file", "list.py").read_bytes()
    call = FunctionCall(
        "list.py", code, sha256(code).hexdigest(), "execute", {}, str(tmp_path), CallLimits(20.0)
    )
    assert function.call_function(call).data == {"entries": [], "complete": True}
