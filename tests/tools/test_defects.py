"""Defects that an earlier system had, each shown not to be here.

A test is named after the number of the defect (D1 to D42, as far as they
concern tools) and shows it through the public functions, in a project of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.adapters.mcp.client import ApprovalFile, McpClients
from plait.app.toolbox import toolbox
from plait.core.errors import DocumentError, InputError, TrustError
from plait.tools.call import call_tool
from plait.tools.chain import Chains
from plait.tools.headers import ItemCache
from plait.tools.invocation import Invocation, McpCall, PrimitiveResult
from plait.tools.trust.decisions import Trust
from plait.tools.trust.signatures import sign_detached
from tools.projects import ECHO, KEY, STRANGER, Project, new_project, python_tool

MakeProject = Callable[..., Project]
TINY = str(Path(__file__).parent.parent / "data" / "mcp" / "tiny.py")
DEADLINE = 20.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProject:
    """Makes the project; names and values of the environment are those that a test gives."""

    def make(**env: str) -> Project:
        return new_project(tmp_path, monkeypatch, **env)

    return make


# ── data and templates ───────────────────────────────────────────────────


def test_d1_a_parameter_is_not_expanded_with_the_environment(project: MakeProject) -> None:
    here = project(MY_SECRET_KEY="sk-12345").trust()
    here.script("my/echo")
    assert here.data("my/echo", text="key is ${MY_SECRET_KEY}") == {
        "text": "key is ${MY_SECRET_KEY}"
    }


def test_d2_the_file_tool_writes_what_it_was_given(project: MakeProject) -> None:
    here = project(AWS_SECRET="AKIA-demo")
    content = (
        'OUT="${OUT_DIR:-/var/out}/${NAME}"\necho "${AWS_SECRET}"\n{timeout} {tool_dir} {{x}} $$'
    )
    here.data("rye/file-system/write", path="out.sh", content=content)
    assert (here.root / "out.sh").read_text() == content


def test_d3_braces_in_data_and_in_json_swallow_nothing(project: MakeProject) -> None:
    here = project().trust()
    here.script("my/echo")
    text = "f {project_path} and {timeout} and {tool_path}"
    assert here.data("my/echo", text=text) == {"text": text}
    here.config("my/argv", config={"command": "printf", "args": ["%s", '{"a": "{b}", "c": "{b}"}']})
    assert here.data("my/argv", b="x") == {"a": "x", "c": "x"}


@pytest.mark.parametrize("value", ['he said "hi"', "it's $5", "back\\slash\nline"])
def test_d4_json_on_standard_input_stays_json(project: MakeProject, value: str) -> None:
    here = project(QQ=value).trust()
    here.config(
        "my/cat", config={"command": "cat", "input_data": {"text": "${QQ}", "given": "{given}"}}
    )
    assert here.data("my/cat", given="${QQ}") == {"text": value, "given": "${QQ}"}


def test_d5_the_environment_of_a_tool_is_no_template(project: MakeProject) -> None:
    value = "home=${HOME} t={timeout} m=${NOPE}"
    here = project(WEIRD=value).trust()
    here.script(
        "my/env",
        "import json, os\nprint(json.dumps([os.environ['WEIRD'], os.environ['COPY']]))\n",
        header='ENV_CONFIG = {"passes": ["WEIRD"], "env": {"COPY": "${WEIRD}"}}',
    )
    assert here.data("my/env") == [value, value]


def test_d6_bash_runs_the_file_and_parameters_are_data(project: MakeProject) -> None:
    here = project().trust()
    canary = here.root / "canary"
    here.write(
        ".ai/tools/my/note.sh",
        '#!/bin/bash\n# executor_id: rye/core/runtimes/bash/bash\nprintf "%s|%s" "$PARAM_NOTE" "$PARAM_COMMAND"\n',
    )
    note = f"$(touch {canary}) `touch {canary}`; touch {canary}"
    assert here.data("my/note", note=note, command="echo hello") == f"{note}|echo hello"
    assert not canary.exists()


SECOND_ORDER = [
    # template               profile      values                                               rendered
    ("v=${state.inp}",       "graph",     {"state": {"inp": "{input:q}"}, "inputs": {"q": "Q"}}, "v={input:q}"),
    ("a: {input:a}",         "directive", {"inputs": {"a": "${inputs.s}", "s": "S"}},            "a: ${inputs.s}"),
    ("a: {input:a}",         "directive", {"inputs": {"a": "{input:s}", "s": "S"}},              "a: {input:s}"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "profile", "values", "rendered"), SECOND_ORDER)
def test_d7_a_value_is_not_read_again(
    template: str, profile: str, values: dict[str, Any], rendered: str
) -> None:
    assert plait.render(template, values, profile=profile) == rendered


def test_d7_a_parameter_is_a_leaf_of_the_config(project: MakeProject) -> None:
    here = project(PKEY="k-secret").trust()
    url = {
        "url": "https://x.example/{model}",
        "greeting": "hello {name}",
        "body": {"text": "{greeting}"},
    }
    here.config("my/http", executor_id="core/primitives/http_client", config=url)
    request = here.dry("my/http", model="${PKEY}", name="{greeting}")["request"]
    assert request["url"] == "https://x.example/%24%7BPKEY%7D"
    assert json.loads(request["body"]) == {"text": "hello {greeting}"}


# ── injection and trust ──────────────────────────────────────────────────

HOSTILE = ["; id ;", "$(id)", "a b", "* ? ~ #", "/data/a (1).txt", "it's", "x\nid", "-n", "`id`"]


@pytest.mark.parametrize("value", HOSTILE)
def test_d8_a_value_is_one_argument_unquoted(project: MakeProject, value: str) -> None:
    here = project(U=value).trust()
    count = "import json, sys\nprint(json.dumps(sys.argv[1:]))"
    write = {"command": sys.executable, "args": ["-c", count, "${U}", "{u}", "<${U}>"]}
    here.config("my/args", config=write)
    assert here.data("my/args", u=value) == [value, value, f"<{value}>"]


def test_d8_words_of_a_command_are_the_authors(project: MakeProject) -> None:
    here = project(U="; id ;", PROGRAM="/opt/app (beta)/bin/python").trust()
    here.config("my/quoted", config={"command": "echo '${U}' \"<${U}>\" ${U:-a 'b} c"})
    assert here.dry("my/quoted")["argv"] == ["echo", "; id ;", "<; id ;>", "; id ;", "c"]
    here.config("my/program", config={"command": "${PROGRAM}"})
    assert here.dry("my/program")["argv"] == ["/opt/app (beta)/bin/python"]


def test_d8_a_header_is_not_quoted(project: MakeProject) -> None:
    here = project(H="ab$c").trust()
    http = {"url": "https://x.example/", "headers": {"X-Note": "${H}"}}
    here.config("my/http", executor_id="core/primitives/http_client", config=http)
    assert here.dry("my/http")["request"]["headers"]["X-Note"] == "ab$c"


@pytest.mark.parametrize("words", [["sh", "-c"], ["bash", "-ec"], ["env", "sh", "-c", "--"]])
@pytest.mark.parametrize("script", ["cat {file}", 'cat "{file}"', "cat '{file}'"])
def test_d8_a_parameter_in_a_script_is_no_syntax(
    project: MakeProject, words: list[str], script: str
) -> None:
    here = project().trust()
    here.config("my/sh", config={"command": words[0], "args": [*words[1:], script]})
    result = here.call("my/sh", file="/dev/null; echo INJECTED")
    assert result["status"] == "error"
    assert result["data"] == ""
    assert "/dev/null; echo INJECTED" in result["error"]


def test_d9_nothing_of_a_project_runs_before_it_is_trusted(project: MakeProject) -> None:
    here = project()
    canary = here.root / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n"
    for place in (
        "parsers/python/ast.py",
        "tools/rye/core/parsers/python/ast.py",
        "tools/conftest.py",
    ):
        here.write(f".ai/{place}", code)
    here.write(".ai/tools/rye/core/extractors/tool/tool_extractor.yaml", "parsers: {py: evil}\n")
    here.write(".ai/extractors/tools.yaml", "extensions: {.py: {reader: evil}}\n")
    here.write("note.txt", "hello")
    here.dry("core/file/read", path="note.txt")
    assert "hello" in json.dumps(here.data("core/file/read", path="note.txt"))
    here.script("my/tool", code + ECHO)
    for dry in (True, False):
        error = here.refusal("my/tool", dry=dry)
        assert (type(error), error.exit_code) == (TrustError, 3)
    assert not canary.exists()


@pytest.mark.parametrize(
    "tool_id",
    [
        "../../../outside/x",
        "tool:rye/agent/threads/internal/../../../bash",
        "/etc/passwd",
        "my//x",
        "my/./x",
        "my/x\0",
    ],
)
def test_d10_an_id_cannot_leave_its_space(project: MakeProject, tool_id: str) -> None:
    here = project().trust()
    (here.top / "outside").mkdir()
    (here.top / "outside" / "x.py").write_text(python_tool())
    assert here.refusal(tool_id).code == "bad-id"


def test_d10_a_link_and_a_config_path_cannot_either(project: MakeProject) -> None:
    here = project().trust()
    outside = here.top / "outside"
    outside.mkdir()
    (outside / "x.py").write_text(python_tool())
    (outside / "secret.yaml").write_text("password: hunter2\n")
    (here.space / "tools" / "linked").symlink_to(outside)
    assert here.refusal("linked/x").code == "outside-space"
    for path in ("../../secret.yaml", "/etc/hostname", "a/../../b.yaml"):
        here.config("my/resolve", config={"command": "cat"}, config_resolve={"path": path})
        assert here.refusal("my/resolve").code == "outside-space"


def test_d11_a_caller_cannot_grant_itself_anything(project: MakeProject) -> None:
    here = project()
    here.script("my/echo")
    granted = {
        "capabilities": ["rye.*"],
        "permissions": ["*"],
        "trust": True,
        "allow_unsigned": ["my/echo"],
    }
    assert here.refusal("my/echo", granted).exit_code == 3
    here.trust()
    assert here.data("my/echo", **granted) == granted


def test_d12_a_project_cannot_bring_its_own_trust(project: MakeProject) -> None:
    here = project()
    here.sign(here.script("my/echo"), STRANGER)
    bringing = Trust(str(here.space), project=None)
    bringing.store.add(STRANGER.public, owner="attacker", origin="brought along")
    bringing.store.trust_project(str(here.root), origin="brought along")
    pem = STRANGER.public.hex()
    here.write(
        f".ai/config/keys/trusted/{STRANGER.fingerprint[:16]}.toml", f'fingerprint = "{pem}"\n'
    )
    assert here.refusal("my/echo").exit_code == 3


@pytest.mark.parametrize("trusted", [False, True])
def test_d13_an_env_file_cannot_choose_what_runs(project: MakeProject, trusted: bool) -> None:
    here = project()
    if trusted:
        here.trust()
    canary = here.root / "canary"
    evil = here.write("bin/python3", f"#!/bin/sh\ntouch {canary}\n")
    evil.chmod(0o755)
    shutil.copy(evil, evil.with_name("env-reader"))
    lines = [
        f"RYE_PYTHON={evil}",
        f"PATH={evil.parent}",
        f"LD_PRELOAD={evil}",
        f"PYTHONSTARTUP={evil}",
        "CITY=Bonn",
    ]
    here.write(".env", "\n".join(lines))
    tool = here.script(
        "my/env",
        "import json, os, sys\nprint(json.dumps([sys.executable, os.environ.get('CITY'), os.environ['PATH']]))\n",
        header='ENV_CONFIG = {"passes": ["CITY", "LD_PRELOAD", "PYTHONSTARTUP"]}',
    )
    here.trust_key()
    here.sign(tool)
    program, city, path = here.data("my/env")
    assert os.path.realpath(program) == os.path.realpath(sys.executable)
    assert city == ("Bonn" if trusted else None)
    assert path == os.environ["PATH"]
    assert not canary.exists()


TAKEOVER = {
    "command": "evil",
    "args": ["evil"],
    "env": {"PATH": "/evil"},
    "cwd": "/evil",
    "input_data": "evil",
    "timeout": 0.001,
    "max_output": 1,
    "server": {"command": "evil"},
    "tool_name": "evil",
    "server_config_path": "/evil.yaml",
    "fixed_params": {},
    "params_key": "evil",
    "params_env": "LD_",
    "function": "evil",
    "url": "https://evil.example/",
    "project_path": "/evil",
    "tool_path": "/evil.py",
    "anchor_path": "/evil",
    "runtime_lib": "/evil",
    "params_json": "evil",
    "system_space": "/evil",
    "resolved_config": {"evil": True},
}


def test_d14_parameters_take_nothing_over_and_all_arrive(project: MakeProject) -> None:
    here = project().trust()
    here.script(
        "my/echo", "import json, os, sys\nprint(json.dumps([json.load(sys.stdin), os.getcwd()]))\n"
    )
    given = json.loads(json.dumps(TAKEOVER))
    assert plait.call("my/echo", given, project=here.root)["data"] == [TAKEOVER, str(here.root)]
    assert given == TAKEOVER
    calm, attacked = here.dry("my/echo"), here.dry("my/echo", **TAKEOVER)
    for key in ("argv", "cwd", "env", "limits"):
        assert attacked[key] == calm[key]


def test_d14_no_name_of_the_call_itself_can_be_given(project: MakeProject) -> None:
    here = project().trust()
    # No anchor is active here, so that nothing else sets these names.
    here.config(
        "my/lib",
        config={
            "command": "ruby",
            "args": ["{runtime_lib}/main.rb", "{anchor_path}"],
            "cwd": "{anchor_path}",
        },
    )
    shown = here.dry("my/lib", runtime_lib="/evil", anchor_path="/evil")
    assert shown["argv"] == ["ruby", "{runtime_lib}/main.rb"]
    assert shown["cwd"] == str(here.root)


def test_d14_fixed_parameters_stay_fixed_on_every_road(project: MakeProject) -> None:
    here = project().trust()
    config = {
        "command": "cat",
        "args": ["{mode}"],
        "input_data": "{params_json}",
        "params_env": "P_",
        "fixed_params": {"mode": "read"},
    }
    here.config("my/fixed", config=config)
    prepared = toolbox(here.root)
    assert here.dry("my/fixed", mode="write", fixed_params={})["argv"] == ["cat", "read"]
    assert json.loads(here.dry("my/fixed", mode="write", x=1)["stdin"]) == {"mode": "read", "x": 1}
    here.config("my/variable", config={**config, "command": "sh", "args": ["-c", "echo $P_MODE"]})
    assert call_tool(prepared, "my/variable", {"mode": "write"}).data == "read\n"


def test_d14_a_caller_cannot_bring_the_resolved_config(project: MakeProject) -> None:
    here = project().trust()
    resolve = {"path": "nothing/here.yaml"}
    here.config(
        "my/cat", config={"command": "cat", "input_data": "{params_json}"}, config_resolve=resolve
    )
    assert here.data("my/cat", resolved_config={"evil": True}) == {"resolved_config": {}}


def test_d14_a_caller_cannot_redirect_an_mcp_tool(project: MakeProject) -> None:
    here = project().trust()
    server = {"command": "real-server", "args": ["--safe"]}
    here.config(
        "my/mcp",
        executor_id="core/runtimes/mcp/stdio",
        config={"server": server, "tool_name": "add"},
    )
    shown = here.dry("my/mcp", **TAKEOVER)
    assert (shown["server"], shown["tool"], shown["params"]) == (
        ["real-server", "--safe"],
        "add",
        TAKEOVER,
    )


# ── the environment ──────────────────────────────────────────────────────


def test_d15_the_environment_of_a_tool_overrides_that_of_its_runtime(project: MakeProject) -> None:
    here = project(LANG="C.UTF-8").trust()
    here.script(
        "my/env",
        "import json, os\nprint(json.dumps([os.environ['PYTHONUNBUFFERED'], os.environ['LANG']]))\n",
        header='ENV_CONFIG = {"env": {"PYTHONUNBUFFERED": "0", "LANG": "tool-lang"}}',
    )
    assert here.data("my/env") == ["0", "tool-lang"]


def test_d16_the_environment_is_known_without_env_config(project: MakeProject) -> None:
    here = project().trust()
    here.config("my/home", config={"command": "printf", "args": ["home=%s", "${HOME}"]})
    assert here.data("my/home") == f"home={here.top / 'home'}"


@pytest.mark.parametrize("trusted", [False, True])
def test_d17_a_venv_of_the_project_does_not_break_our_own_tools(
    project: MakeProject, trusted: bool
) -> None:
    here = project()
    if trusted:
        here.trust()
    canary = here.root / "canary"
    for name in ("python", "python3"):
        here.write(f".venv/bin/{name}", f"#!/bin/sh\ntouch {canary}\nexit 1\n").chmod(0o755)
    here.write("note.txt", "hello")
    assert "hello" in json.dumps(here.data("core/file/read", path="note.txt"))
    here.data("core/file/list")
    assert not canary.exists()


# ── chain, anchors, signatures ───────────────────────────────────────────


def test_d21_inputs_outputs_and_versions_are_checked(project: MakeProject) -> None:
    here = project().trust()
    here.config(
        "my/runtime",
        inputs=["image"],
        child_constraints={"my/tool": {"min_version": "9.0.0"}},
        config={"command": "cat"},
    )
    here.config("my/tool", executor_id="my/runtime", outputs=["text"])
    error = here.refusal("my/tool", dry=True)
    assert sorted(str(problem.code) for problem in error.problems) == [
        "io-mismatch",
        "version-mismatch",
    ]
    here.config("my/tool", executor_id="my/runtime", outputs=["text", "image"], version="9.0.1")
    assert here.dry("my/tool")["status"] == "validation_passed"


DEEP = """
tool_type: runtime
executor_id: core/runtimes/python/script
anchor:
  markers_any: [pyproject.toml]
  search_up: true
  env_paths: {PYTHONPATH: {prepend: ["{anchor_path}"]}}
"""


def test_d24_an_anchor_is_found_above_the_tool_where_that_is_declared(project: MakeProject) -> None:
    here = project().trust()
    here.write(".ai/tools/pkg/pyproject.toml", "")
    here.write(".ai/tools/pkg/helper.py", "NAME = 'helped'\n")
    here.write(".ai/tools/pkg/runtime.yaml", DEEP)
    body = "import json, helper\nprint(json.dumps(helper.NAME))\n"
    here.write(".ai/tools/pkg/deep/tool.py", f'__executor_id__ = "pkg/runtime"\n{body}')
    assert here.data("pkg/deep/tool") == "helped"


EDITS = [
    # what               a change after signing
    ("the shebang",      lambda text: text.replace("#!/bin/bash", "#!/bin/sh")),
    ("the time",         lambda text: text.replace("2026-03-30T", "2026-03-29T")),
    ("a comment",        lambda text: text + "# harmless\n"),
    ("the header",       lambda text: text.replace("version: 1.0.0", "version: 1.0.1")),
    ("the line ends",    lambda text: text.replace("\n", "\r\n")),
    ("the body",         lambda text: text.replace("echo ok", "echo no")),
    ("the digest",       lambda text: text.replace(hashlib.sha256(b"").hexdigest()[:2], "zz", 1) + " "),
]  # fmt: skip


@pytest.mark.parametrize(("what", "edit"), EDITS)
def test_d27_a_signature_covers_every_byte(
    project: MakeProject, what: str, edit: Callable[[str], str]
) -> None:
    here = project()
    here.trust_key()
    text = "#!/bin/bash\n# executor_id: core/runtimes/bash/bash\n# version: 1.0.0\necho ok\n"
    path = here.sign(here.write(".ai/tools/my/signed.sh", text))
    assert here.data("my/signed") == "ok\n"
    path.write_text(edit(path.read_text()))
    assert here.refusal("my/signed").exit_code in (2, 3), what


def test_d27_a_signature_is_for_one_id(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    here.sign(here.script("my/echo"))
    (here.space / "tools/their").mkdir()
    shutil.copy(here.space / "tools/my/echo.py", here.space / "tools/their/other.py")
    assert here.data("my/echo", a=1) == {"a": 1}
    assert here.refusal("their/other").exit_code == 3


@pytest.mark.parametrize(
    "place", ["helper.py", "config/helper.py", "deep/helper.pyc", "helper.so", "data.json"]
)
def test_d27_what_an_anchor_can_load_is_verified(project: MakeProject, place: str) -> None:
    here = project()
    here.trust_key()
    here.sign(here.write(".ai/tools/pkg/__init__.py", python_tool("")), item_id="pkg/__init__")
    here.sign(here.script("pkg/tool", "print('{}')\n"))
    assert here.data("pkg/tool") == {}
    here.write(f".ai/tools/pkg/{place}", "x = 1\n")
    error = here.refusal("pkg/tool")
    assert error.exit_code == 3
    assert place.partition(".")[0] in str(error)


def test_d27_a_data_file_can_be_signed(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    here.sign(here.write(".ai/tools/pkg/__init__.py", python_tool("")), item_id="pkg/__init__")
    body = (
        "import json, pathlib\nprint((pathlib.Path(__file__).parent / 'data.json').read_text())\n"
    )
    here.sign(here.script("pkg/tool", body))
    data = here.write(".ai/tools/pkg/data.json", '{"from": "data"}')
    signature = sign_detached(
        data.read_bytes(),
        kind="tool",
        item_id="pkg/data",
        extension=".json",
        key=KEY,
        now=1_774_842_431,
    )
    here.write(".ai/tools/pkg/data.json.sig", signature)
    assert here.data("pkg/tool") == {"from": "data"}


def test_d27_an_unverified_sibling_is_not_loaded(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    here.sign(here.script("my/tool", "import helper\n"))
    here.write(".ai/tools/my/helper.py", f"open({str(here.root / 'canary')!r}, 'w').close()\n")
    result = here.call("my/tool")
    assert result["status"] == "error"
    assert "No module named 'helper'" in result["error"]
    assert not (here.root / "canary").exists()


def test_d27_a_link_beside_the_tool_is_refused(project: MakeProject) -> None:
    here = project().trust()
    here.write(".ai/tools/pkg/__init__.py", python_tool(""))
    here.script("pkg/tool")
    here.write(".ai/tools/pkg-evil/helper.py", "")
    (here.space / "tools/pkg/sub").symlink_to(here.space / "tools/pkg-evil")
    assert here.refusal("pkg/tool").code == "linked-dependency"


def test_d27_the_library_of_a_runtime_is_verified_too(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    runtime = {
        "version": "1.0.0",
        "executor_id": "core/primitives/subprocess",
        "anchor": {
            "mode": "always",
            "lib": "lib",
            "env_paths": {"PYTHONPATH": {"prepend": ["{runtime_lib}"]}},
        },
        "verify_deps": {"scope": "tool_file"},
        "config": {"command": sys.executable, "args": ["{tool_path}"]},
    }
    here.sign(here.write(".ai/tools/my/runtime.yaml", json.dumps(runtime)))
    tool = here.write(
        ".ai/tools/x/tool.py",
        '__executor_id__ = "my/runtime"\nimport library\nprint(library.SAID)\n',
    )
    here.sign(tool)
    library = here.sign(here.write(".ai/tools/my/lib/library.py", python_tool("SAID = 'true'\n")))
    assert here.data("x/tool") is True
    evil = here.write(".ai/tools/my/lib/json.py", "SAID = 'evil'\n")
    assert here.refusal("x/tool").exit_code == 3
    evil.unlink()
    library.write_text(library.read_text().replace("true", "false"))
    assert here.refusal("x/tool").exit_code == 3


# ── results, caches, choices ─────────────────────────────────────────────

PRINTED = [
    # stdout                        exit  status     data                               error
    ("[1, 2]",                      0,    "success", [1, 2],                            None),
    ("3",                           0,    "success", 3,                                 None),
    ('"text"',                      0,    "success", "text",                            None),
    ("{}",                          0,    "success", {},                                None),
    ("[]",                          0,    "success", [],                                None),
    ("0",                           0,    "success", 0,                                 None),
    ("null",                        0,    "success", None,                              None),
    ("plain words",                 0,    "success", "plain words\n",                   None),
    ("log line\n{\"a\": 1}",        0,    "success", "log line\n{\"a\": 1}\n",          None),
    ('{"success": false, "error": "no paper"}', 0, "error", {"success": False, "error": "no paper"}, "no paper"),
    ('{"a": 1}',                    3,    "error",   {"a": 1},                          "exit code 3"),
]  # fmt: skip


@pytest.mark.parametrize(("stdout", "code", "status", "data", "error"), PRINTED)
def test_d31_every_kind_of_output_is_a_result(
    project: MakeProject, stdout: str, code: int, status: str, data: Any, error: str | None
) -> None:
    here = project().trust()
    here.config(
        "my/say",
        config={"command": "sh", "args": ["-c", 'echo "$1"; exit $2', "say", "{text}", "{code}"]},
    )
    result = here.call("my/say", text=stdout, code=code)
    assert (result["status"], result["data"], result.get("error")) == (status, data, error)
    assert result["metadata"]["exit_code"] == code


def test_d32_a_tool_that_comes_to_hide_another_is_seen_at_once(project: MakeProject) -> None:
    here = project().trust()
    # A clock that is ahead: files that were just written count as settled, and are cached.
    chains = Chains(here.toolbox.spaces, ItemCache(), clock=lambda: time.time() + 60)
    toolbox = replace(here.toolbox, chains=chains)
    here.write_own("tools/my/who.py", python_tool("print('\"user\"')\n"))
    for expected_hits in (0, 1):
        assert call_tool(toolbox, "my/who", {}).data == "user"
        assert chains.counts.hits == expected_hits
    here.script("my/who", "print('\"project\"')\n")
    assert call_tool(toolbox, "my/who", {}).data == "project"
    (here.space / "tools/my/who.py").unlink()
    assert call_tool(toolbox, "my/who", {}).data == "user"


def test_d33_two_files_with_one_id_are_an_error(project: MakeProject) -> None:
    here = project().trust()
    here.script("my/d")
    here.config("my/d", config={"command": "cat"})
    error = here.refusal("my/d")
    assert error.code == "ambiguous-id"
    assert "tools/my/d.py, tools/my/d.yaml" in error.what


# ── HTTP ─────────────────────────────────────────────────────────────────


class Recorder(BaseHTTPRequestHandler):
    seen: list[tuple[str, bytes]]
    failures: int

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.path, body))
        self.send_response(503 if len(self.seen) <= self.failures else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Recorder]]]:
    class Here(Recorder):
        seen: list[tuple[str, bytes]] = []  # noqa: RUF012  # one list for each test: the class is made for it
        failures = 0

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", Here
    listening.shutdown()
    listening.server_close()
    thread.join(DEADLINE)


def test_d36_a_request_is_what_the_author_wrote(
    project: MakeProject, server: tuple[str, type[Recorder]]
) -> None:
    address, recorder = server
    recorder.failures = 2
    here = project(REGION="eu west").trust()
    config = {
        "method": "POST",
        "url": address + "/${REGION}/{model}/{model.__class__}",
        "body": {
            "model": "{model}",
            "tools": "{tools}",
            "deep": {"stream": "{stream}", "n": ["{n}", 1]},
        },
        "retry": {"max_attempts": 3, "initial_delay": 0, "any_method": True},
    }
    here.config("my/http", executor_id="core/primitives/http_client", config=config)
    result = here.call("my/http", model="a/../b?c")
    paths = [path for path, _ in recorder.seen]
    bodies = [json.loads(body) for _, body in recorder.seen]
    assert result["status"] == "success", result
    assert len(paths) == 3
    assert paths[0].startswith("/eu%20west/a%2F..%2Fb%3Fc/")
    assert "class '" not in paths[0]
    assert bodies == [{"model": "a/../b?c", "deep": {"n": [1]}}] * 3


# ── processes ────────────────────────────────────────────────────────────


def test_d37_a_timeout_ends_the_whole_tree(project: MakeProject) -> None:
    here = project().trust()
    pids = here.root / "pids"
    script = f"echo $$ > {pids}; sleep 300 & echo $! >> {pids}; (setsid sleep 300 & echo $! >> {pids}); sleep 300"
    here.config("my/slow", config={"command": "sh", "args": ["-c", script], "timeout": 0.5})
    result = here.call("my/slow")
    assert (result["status"], result["metadata"]["timed_out"]) == ("error", True)
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 3
    deadline = time.monotonic() + DEADLINE
    while any(_alive(pid) for pid in started) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not any(_alive(pid) for pid in started)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_d37_large_output_before_large_input_is_no_deadlock(project: MakeProject) -> None:
    here = project().trust()
    body = "import sys\nprint('x' * 300_000, flush=True)\nprint(len(sys.stdin.read()))\n"
    here.script("my/both", body, header='CONFIG = {"timeout": 60}')
    printed = here.data("my/both", text="y" * 300_000)
    assert (
        printed
        == "x" * 300_000 + f"\n{300_000 + len(json.dumps({'text': ''}, separators=(',', ':')))}\n"
    )


def test_d37_arguments_need_not_be_text_and_limits_are_checked(project: MakeProject) -> None:
    here = project().trust()
    here.config("my/args", config={"command": "echo", "args": [5, 1.5, True, None, "{n}", ["a"]]})
    assert here.data("my/args", n=7) == '5 1.5 true  7 ["a"]\n'
    wrong: list[Any] = ["abc", 0, -1, True, [], "nan", "inf"]
    for timeout in wrong:
        here.config("my/args", config={"command": "echo", "timeout": timeout})
        assert here.refusal("my/args", dry=True).code == "bad-config", timeout


def test_d38_a_function_runs_in_this_process_and_may_print(project: MakeProject) -> None:
    here = project().trust()
    body = "import os\ndef execute(params, project_path):\n    print('noise')\n    return {'pid': os.getpid()}\n"
    here.script("my/function", body, runtime="python/function")
    assert here.data("my/function") == {"pid": os.getpid()}


def test_d39_a_scratch_file_beside_a_tool_does_not_block_it(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    here.sign(here.script("my/tool", "print('1')\n"))
    here.write(".ai/tools/my/scratch.yaml", "unsigned: true\n")
    here.write(".ai/tools/my/notes.py", "this is no python\n")
    assert here.data("my/tool") == 1


def test_d40_an_mcp_tool_is_called_like_any_other(project: MakeProject) -> None:
    here = project().trust()
    server = {"command": sys.executable, "args": [TINY]}
    here.config(
        "my/add",
        executor_id="rye/core/runtimes/mcp/stdio",
        config={"server": server, "tool_name": "add"},
    )
    assert here.dry("my/add", a=2, b=3)["server"] == [sys.executable, TINY]
    with McpClients(
        ApprovalFile(str(here.user / "pins.json")), approve=lambda offered: offered.tool == "add"
    ) as clients:

        def perform(invocation: Invocation) -> PrimitiveResult:
            assert isinstance(invocation, McpCall)
            return clients.call(invocation)

        result = call_tool(replace(here.toolbox, perform=perform), "my/add", {"a": 2, "b": 3})
    assert (result.success, result.data) == (True, {"result": 5})


# ── headers and config ───────────────────────────────────────────────────

UNREADABLE = [
    # file      contents                                                                   said
    ("x.py",    '__executor_id__ = "a"\ndef broken(:\n',                                   "x.py:2:"),
    ("x.py",    '__executor_id__ = "core/" + "x"\n',                                       "computed"),
    ("x.py",    "print(1)\n",                                                              "executor_id"),
    ("x.yaml",  "executor_id: [\n",                                                        "x.yaml:"),
    ("x.sh",    "echo hello\n",                                                            "executor_id"),
    ("x.js",    '// const __executor_id__ = "core/runtimes/node/node";\nlet a = 1;\n',     "executor_id"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "contents", "message"), UNREADABLE)
def test_d41_a_header_that_cannot_be_read_is_an_error_at_its_place(
    project: MakeProject, name: str, contents: str, message: str
) -> None:
    here = project().trust()
    here.write(f".ai/tools/my/{name}", contents)
    error = here.refusal("my/x", dry=True)
    assert isinstance(error, DocumentError)
    assert message in str(error)
    assert name in str(error)


def test_d41_annotations_and_shell_headers_are_read(project: MakeProject) -> None:
    here = project().trust()
    here.write(".ai/tools/my/a.py", '__executor_id__: str = "core/runtimes/python/script"\n' + ECHO)
    assert here.data("my/a", n=1) == {"n": 1}


def test_d41_a_schema_in_javascript_keeps_urls_and_quotes(project: MakeProject) -> None:
    here = project().trust()
    source = (
        'const __executor_id__ = "core/runtimes/node/node";\n'
        "const CONFIG_SCHEMA = {type: 'object', required: ['week'],\n"
        "  $id: 'https://x.example/a//b', properties: {week: {type: 'integer', description: \"the 'week'\"}}};\n"
    )
    here.write(".ai/tools/my/js.js", source)
    assert here.refusal("my/js", dry=True).code == "schema-violation"
    assert here.dry("my/js", week=3)["status"] == "validation_passed"


CIRCLES = [
    # config                                    the circle
    ({"a": "{a}x"},                             "a → a"),
    ({"a": "x{b}", "b": "y{a}"},                "a → b → a"),
    ({"a": {"deep": ["{b}"]}, "b": "{c}", "c": "{a}"}, "a → b → c → a"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "circle"), CIRCLES)
def test_d42_a_config_that_refers_to_itself_is_an_error(
    project: MakeProject, config: dict[str, Any], circle: str
) -> None:
    here = project().trust()
    here.config("my/circle", config={"command": "echo", "args": ["{a}"], **config})
    error = here.refusal("my/circle", dry=True)
    assert (error.code, error.what) == ("config-cycle", f"the config refers to itself: {circle}")


def test_d42_defaults_may_hold_braces_and_other_placeholders(project: MakeProject) -> None:
    here = project(B="b").trust()
    here.config(
        "my/defaults",
        config={"command": "echo", "args": ["n=${N:-{x}}", "${A:-${B}}", "${A:-${C:-c}}"]},
    )
    assert here.dry("my/defaults")["argv"] == ["echo", "n={x}", "b", "c"]


def test_every_refusal_above_is_about_the_users_files(project: MakeProject) -> None:
    here = project().trust()
    for tool_id in ("no/such", "", "a b", "x" * 300):
        assert isinstance(here.refusal(tool_id), InputError)
