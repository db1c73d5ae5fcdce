"""Calls as a whole: what a dry run shows and hides, what an untrusted project cannot do, and many at once."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.adapters.process import guardian_process
from plait.core.errors import InputError, TrustError
from plait.core.values import Secret
from plait.tools.call import call_tool, plan_call
from plait.tools.chain import Chains
from plait.tools.headers import ItemCache
from plait.tools.invocation import Invocation, PrimitiveResult, ProcessCall, RequestCall
from plait.tools.spaces import Space
from plait.tools.trust import manifest
from plait.tools.trust.decisions import Trust
from plait.tools.trust.signatures import sign_bytes, sign_detached
from tools.projects import KEY, SIGNED_AT, Project, new_project, python_tool

MakeProject = Callable[..., Project]
DEADLINE = 60.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProject:
    def make(**env: str) -> Project:
        return new_project(tmp_path, monkeypatch, **env)

    return make


# ── the envelope and the dry run ─────────────────────────────────────────


def test_the_envelope(project: MakeProject) -> None:
    here = project().trust()
    here.script("my/echo", header='__tool_type__ = "python"')
    result = here.call("my/echo", week=46)
    chain = [(each["item_id"], each["space"], each["executor_id"]) for each in result["chain"]]
    assert chain == [
        ("my/echo", "project", "rye/core/runtimes/python/script"),
        ("core/runtimes/python/script", "system", "core/primitives/subprocess"),
        ("core/primitives/subprocess", "system", None),
    ]
    assert (result["status"], result["type"], result["item_id"], result["data"]) == (
        "success",
        "tool",
        "my/echo",
        {"week": 46},
    )
    assert result["metadata"]["duration_ms"] > 0
    assert "RYE_PYTHON" in result["metadata"]["resolved_env_keys"]


def test_the_envelope_keeps_what_a_tool_wrote_to_stderr(project: MakeProject) -> None:
    here = project().trust()
    here.script("noisy", "import sys\nprint('{}')\nprint('careful', file=sys.stderr)\n")
    here.script("quiet", "print('{}')\n")
    here.script("loud", "import sys\nprint('{}')\nsys.stderr.write('x' * 100_000 + 'end')\n")
    assert here.call("noisy")["metadata"]["stderr"] == "careful\n"
    assert "stderr" not in here.call("quiet")["metadata"]
    kept = here.call("loud")["metadata"]["stderr"]
    assert (len(kept), kept[:2], kept[-4:]) == (16385, "…x", "xend")


LEAKS = [
    # how a tool writes what it knows
    "known",
    "json.dumps({'k': known})",
    "base64.b64encode(known.encode()).decode()",
    "urllib.parse.quote(known)",
    "known.encode().hex()",
]


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("status", [0, 3])
def test_secrets_are_masked_in_what_a_tool_wrote_to_stderr(
    project: MakeProject, leak: str, status: int
) -> None:
    here = project().trust()
    secret = 'hunter2 "é/'
    here.write(".env", f"CITY_TOKEN='{secret}'\n")
    body = (
        "import base64, json, os, sys, urllib.parse\n"
        "params = json.load(sys.stdin)\n"
        f"for known in (os.environ['CITY_TOKEN'], params['key']):\n    print({leak}, file=sys.stderr)\n"
        f"sys.exit({status})\n"
    )
    here.script("leaky", body, header='ENV_CONFIG = {"passes": ["CITY_TOKEN"]}')
    result = call_tool(here.toolbox, "leaky", {"key": plait.Secret("open sesame")})
    lines = str(result.metadata["stderr"]).splitlines()
    assert len(lines) == 2
    assert all("***" in line for line in lines)
    shown = json.dumps(result.record(), ensure_ascii=False)
    for known in (secret, "open sesame"):
        assert not any(
            known_as in shown for known_as in (known, known.encode().hex(), known.split()[1])
        )


def test_a_dry_run_carries_nothing_out(project: MakeProject) -> None:
    here = project().trust()
    canary = here.root / "canary"

    def forbidden(invocation: Invocation) -> PrimitiveResult:
        raise AssertionError(f"a dry run has carried out {invocation}")

    def ask(_: Any) -> str:
        canary.touch()
        return "/bin/true"

    here.config(
        "my/tool",
        config={"command": "${RUBY}"},
        env_config={
            "interpreter": {"type": "command", "var": "RUBY", "resolve_cmd": ["touch", str(canary)]}
        },
    )
    shown = plan_call(replace(here.toolbox, perform=forbidden, ask=ask), "my/tool", {})
    assert shown["env"]["RUBY"] == "tool: command, not run"
    assert not canary.exists()


def test_a_dry_run_hides_every_secret_and_a_call_uses_it(project: MakeProject) -> None:
    here = project(API_KEY="hunter2-host").trust()
    here.write(".env", "DB_PASSWORD=hunter2-file\n")
    here.config(
        "my/tool",
        env_config={"passes": ["DB_PASSWORD"], "env": {"MADE": "<${API_KEY}>"}},
        config={
            "command": "cat",
            "env": {"HEADER": "Bearer ${API_KEY}"},
            "input_data": {
                "a": "${API_KEY}",
                "b": "x ${DB_PASSWORD}",
                "c": "{token}",
                "d": "${MADE}",
                "e": "{nested}",
            },
            "nested": "n ${API_KEY}",
        },
    )
    params = {"token": plait.Secret("hunter2-given")}
    shown = plait.call("my/tool", params, project=here.root, dry_run=True)
    assert "hunter2" not in json.dumps(shown)
    assert json.loads(shown["stdin"]) == {
        "a": "***",
        "b": "x ***",
        "c": "***",
        "d": "***",
        "e": "n ***",
    }
    assert plait.call("my/tool", params, project=here.root)["data"] == {
        "a": "hunter2-host",
        "b": "x hunter2-file",
        "c": "hunter2-given",
        "d": "<hunter2-host>",
        "e": "n hunter2-host",
    }


def test_a_dry_run_refuses_what_a_call_would_refuse(project: MakeProject) -> None:
    here = project(API_KEY="hunter2").trust()
    here.config("my/tool", config={"command": "echo", "args": ["{key}"], "key": "k-${API_KEY}"})
    for dry in (True, False):
        assert here.refusal("my/tool", dry=dry).code == "secret-in-argv"


def test_a_dry_run_says_what_is_hidden_by_what(project: MakeProject) -> None:
    here = project().trust()
    here.script("my/tool")
    hidden = here.write_own("tools/my/tool.py", python_tool())
    assert here.dry("my/tool")["shadows"] == [str(hidden)]


def test_all_of_a_wrong_call_is_reported_before_anything_runs(project: MakeProject) -> None:
    here = project().trust()
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "additionalProperties": False,
        "properties": {"a": {}, "b": {}},
    }
    here.config("my/tool", config={"command": "cat"}, config_schema=schema)
    assert len(here.refusal("my/tool", {"zz": 1}).problems) == 3
    with pytest.raises(InputError, match="parameters are a map"):
        plait.call("my/tool", ["a"], project=here.root)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a tool id"):
        plait.call(["my/tool"], project=here.root)  # type: ignore[arg-type]


# ── a project that nobody trusts ─────────────────────────────────────────


def test_your_own_tool_loads_nothing_from_a_project_you_do_not_trust(project: MakeProject) -> None:
    here = project()
    canary = here.root / "canary"
    here.write_own("tools/own/package.json", "{}")
    here.write_own(
        "tools/own/tool.js",
        'const __executor_id__ = "core/runtimes/node/node";\n'
        'try { require("evil") } catch (error) { console.log(JSON.stringify(error.code)) }\n',
    )
    here.write(
        "node_modules/evil/index.js",
        f"require('fs').writeFileSync({json.dumps(str(canary))}, '')\n",
    )
    for name in ("tsx", "node"):
        here.write(f"node_modules/.bin/{name}", f"#!/bin/sh\ntouch {canary}\n").chmod(0o755)
    here.write(
        ".env",
        f"RYE_NODE={here.root}/node_modules/.bin/node\nNODE_OPTIONS=--require={here.root}/evil.js\n",
    )
    assert here.data("own/tool") == "MODULE_NOT_FOUND"
    assert not canary.exists()


def test_packages_beside_a_signed_tool_need_more_than_its_signature(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    canary = here.root / "canary"
    source = 'const __executor_id__ = "core/runtimes/node/node";\ntry { require("evil") } catch (e) { console.log(1) }\n'
    here.sign(here.write(".ai/tools/pkg/tool.js", source))
    here.write(
        ".ai/tools/pkg/node_modules/evil/index.js",
        f"require('fs').writeFileSync({json.dumps(str(canary))}, '')\n",
    )
    marker = here.write(".ai/tools/pkg/package.json", "{}")
    assert here.refusal("pkg/tool").exit_code == 3  # package.json itself is unsigned
    signature = sign_detached(
        marker.read_bytes(),
        kind="tool",
        item_id="pkg/package",
        extension=".json",
        key=KEY,
        now=SIGNED_AT,
    )
    here.write(".ai/tools/pkg/package.json.sig", signature)
    assert here.data("pkg/tool") == 1
    assert not canary.exists()
    here.trust().call("pkg/tool")
    assert canary.exists()


def test_the_project_as_anchor_counts_only_when_it_is_trusted(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    runtime = {
        "executor_id": "core/primitives/subprocess",
        "anchor": {
            "mode": "always",
            "root": "project_path",
            "env_paths": {"PYTHONPATH": {"prepend": ["{anchor_path}"]}},
        },
        "verify_deps": {},
        "config": {"command": sys.executable, "args": ["{tool_path}"]},
    }
    here.sign(here.write(".ai/tools/my/runtime.yaml", json.dumps(runtime)))
    body = "import os\nprint(repr(os.environ.get('PYTHONPATH')))\n"
    here.sign(here.write(".ai/tools/x/tool.py", f'__executor_id__ = "my/runtime"\n{body}'))
    assert here.data("x/tool") == "None\n"
    here.trust()
    assert here.data("x/tool") == f"'{here.root}'\n"


# ── many at once ─────────────────────────────────────────────────────────


def leftovers() -> tuple[int, int]:
    """Descriptors and threads of this process, without channels that wait for the next process.

    How many of those are kept depends on processes of other tests that still run.
    """
    gc.collect()
    idle = sum(len(guardian.idle) for guardian in guardian_process._GUARDIANS.values())
    return len(os.listdir("/proc/self/fd")) - idle, threading.active_count()


def children() -> set[int]:
    """Direct and further descendants of this process."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(
                Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def settled(condition: Callable[[], bool]) -> bool:
    """Does a condition come true within the limit?"""
    deadline = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return condition()


def test_two_hundred_calls_at_once_leave_nothing_behind(project: MakeProject) -> None:
    here = project().trust()
    here.config("my/process", config={"command": "cat", "input_data": "{params_json}"})
    here.script(
        "my/function",
        "def execute(params, project_path):\n    return params\n",
        runtime="python/function",
    )
    tools = ("my/process", "my/function")
    for tool in tools:  # what is kept on purpose (the guardian, a worker) is there before we count
        here.data(tool, n=0)
    processes, (descriptors, threads) = children(), leftovers()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: here.data(tools[n % 2], n=n, text="x" * n), range(200)))
    assert results == [{"n": n, "text": "x" * n} for n in range(200)]
    assert settled(lambda: children() <= processes)
    assert settled(lambda: leftovers()[0] <= descriptors)
    assert settled(lambda: leftovers()[1] <= threads)


def test_failing_calls_leave_nothing_behind_either(project: MakeProject) -> None:
    here = project().trust()
    here.config("my/fail", config={"command": "sh", "args": ["-c", "sleep 300 & exit 3"]})
    here.config("my/slow", config={"command": "sleep", "args": ["300"], "timeout": 0.2})
    here.config("my/missing", config={"command": "/no/such/program"})
    tools = ("my/fail", "my/slow", "my/missing", "no/such")

    def attempt(n: int) -> str:
        try:
            return str(here.call(tools[n % 4])["status"])
        except plait.PlaitError as error:
            return str(error.code)

    # The guardian keeps a shell ready once `sh` was run a few times: it is there before we count.
    first = ["error", "error", "no-program", "unknown-tool"]
    assert [attempt(n) for n in range(20)] == first * 5
    processes, (descriptors, threads) = children(), leftovers()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(40)))
    assert results == first * 10
    assert settled(lambda: children() <= processes)
    assert settled(lambda: leftovers()[0] <= descriptors)
    assert settled(lambda: leftovers()[1] <= threads)


def test_many_threads_see_a_tool_change_as_a_whole(project: MakeProject) -> None:
    here = project().trust()

    def write(n: int) -> None:
        path = here.space / "tools/my" / f".new-{threading.get_ident()}"
        path.parent.mkdir(exist_ok=True)
        header = {
            "executor_id": "core/primitives/subprocess",
            "config": {"command": f"c{n}", "args": [f"a{n}"]},
        }
        path.write_text(json.dumps(header))
        path.rename(here.space / "tools/my/tool.yaml")

    seen: list[ProcessCall] = []

    def keep(invocation: Invocation) -> PrimitiveResult:
        assert isinstance(invocation, ProcessCall)
        seen.append(invocation)
        return PrimitiveResult(True, None)

    toolbox = replace(
        here.toolbox,
        perform=keep,
        chains=Chains(here.toolbox.spaces, ItemCache(), clock=lambda: time.time() + 60),
    )
    write(0)

    def work(n: int) -> None:
        if n % 10 == 0:
            write(n)
        call_tool(toolbox, "my/tool", {})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert len(seen) == 200
    assert all(call.argv[0][1:] == call.argv[1][1:] for call in seen)
    write(999)
    call_tool(toolbox, "my/tool", {})
    assert seen[-1].argv == ("c999", "a999")


# ── what is shown, and what is given to a program ────────────────────────

LEAKING = """
import base64, json, os, sys
key = os.environ["TEAM_KEY"]
print(json.dumps({"key": key, key: [base64.b64encode(key.encode()).decode()], "n": 7, "other": "fine"}))
"""


def leaking(here: Project, body: str = LEAKING) -> None:
    here.write(".env", "TEAM_KEY=hunter2-hunter2\n")
    here.script("leak", body, header='ENV_CONFIG = {"passes": ["TEAM_KEY"]}')


def test_data_is_shown_without_the_secrets_that_the_tool_was_given(project: MakeProject) -> None:
    here = project().trust()
    leaking(here)
    shown = call_tool(here.toolbox, "leak", {}).data
    assert shown == {"key": "***", "***": ["***"], "n": 7, "other": "fine"}
    data = here.data("leak")  # a program gets what it asked for
    assert (data["key"], data["n"]) == ("hunter2-hunter2", 7)


def test_an_error_shows_no_secret_to_anybody(project: MakeProject) -> None:
    here = project().trust()
    leaking(here, "import os, sys\nsys.exit('wrong key: ' + os.environ['TEAM_KEY'])\n")
    for error in (call_tool(here.toolbox, "leak", {}).error, here.call("leak")["error"]):
        assert error is not None
        assert error.strip() == "wrong key: ***"


def test_a_secret_that_an_author_puts_into_a_request_is_masked_in_the_answer(
    project: MakeProject,
) -> None:
    here = project(TRACKER_TOKEN="t0ken-t0ken").trust()
    here.config(
        "my/get",
        executor_id="core/primitives/http_client",
        config={
            "url": "https://tracker.example/",
            "auth": {"type": "bearer", "token": "${TRACKER_TOKEN}"},
        },
    )

    def echo(invocation: Invocation) -> PrimitiveResult:
        call = invocation
        assert isinstance(call, RequestCall)
        return PrimitiveResult(
            True,
            {"headers": [list(pair) for pair in call.headers]},
            metadata={"seen": "t0ken-t0ken"},
        )

    result = call_tool(replace(here.toolbox, perform=echo), "my/get", {})
    assert result.data == {"headers": [["Authorization", "Bearer ***"]]}
    assert result.metadata["seen"] == "***"


def test_a_secret_parameter_is_masked_in_data(project: MakeProject) -> None:
    here = project().trust()
    here.script("echo")
    shown = call_tool(here.toolbox, "echo", {"in": ["x", Secret("open sesame")]}).data
    assert shown == {"in": ["x", "***"]}


def test_data_is_not_masked_for_what_the_tool_was_never_given(project: MakeProject) -> None:
    here = project(COMPASS_MODE="true", KEY_PASSPHRASE="a long sentence").trust()
    here.script("say", "import sys\nprint('it is true')\nsys.exit('a long sentence')\n")
    result = call_tool(here.toolbox, "say", {})
    assert result.data == "it is true\n"
    assert result.error is not None
    assert (
        "a long sentence" not in result.error
    )  # a message is for people: a mask too many does no harm


def test_the_command_that_approves_a_server_shows_no_secret(project: MakeProject) -> None:
    here = project().trust()
    here.config(
        "my/mcp",
        executor_id="core/runtimes/mcp/http",
        config={"server": {"url": "https://m.example/{key}/{zone}"}, "tool_name": "add"},
    )

    def refuse(invocation: Invocation) -> PrimitiveResult:  # noqa: ARG001 - the protocol's name
        raise TrustError("not approved", fix="type: plait trust mcp s add", code="mcp-unapproved")

    tools = replace(here.toolbox, perform=refuse)
    with pytest.raises(TrustError) as caught:
        call_tool(tools, "my/mcp", {"key": Secret("hunter2"), "zone": "UTC", "n": 1})
    assert str(caught.value) == (
        """not approved\nfix: type: plait trust mcp s add --params '{"key":"***","zone":"UTC"}'"""
    )
    assert caught.value.code == "mcp-unapproved"


def test_a_parameter_called_url_is_data_and_decides_no_address(project: MakeProject) -> None:
    here = project().trust()
    here.config(
        "my/post",
        executor_id="core/primitives/http_client",
        config={"method": "POST", "url": "{address}", "body": "{params_json}"},
    )
    given = {"address": "https://tracker.example/", "url": "https://elsewhere.example/"}
    request = here.dry("my/post", **given)["request"]
    assert (request["url"], json.loads(request["body"])) == ("https://tracker.example/", given)
    # So fetching, which is nothing but its address, cannot be given it by that name, and says so.
    assert [
        problem.what
        for problem in here.refusal("core/http/fetch", {"url": "https://x.example/"}).problems
    ] == [
        "'core/http/fetch': 'url' is not a parameter",
        "'core/http/fetch': 'address' is required",
    ]


# ── a process that keeps running ─────────────────────────────────────────


def test_a_tool_sees_the_environment_as_it_is_now(
    project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = project(WORD="one").trust()
    here.config("my/env", env_config={"passes": ["WORD"]}, config={"command": "printenv WORD"})
    before = here.toolbox
    assert here.data("my/env") == "one\n"
    assert here.toolbox is before
    monkeypatch.setenv("WORD", "two")
    assert here.data("my/env") == "two\n"
    monkeypatch.delenv("WORD")
    assert here.call("my/env")["status"] == "error"
    assert here.toolbox.chains is before.chains


def test_the_copies_of_tools_may_be_removed_while_we_live(project: MakeProject) -> None:
    here = project().trust()
    here.script("echo")
    for n in range(4):
        assert here.data("echo", n=n) == {"n": n}
        shutil.rmtree(here.user / "cache")


# ── the config of an untrusted project ───────────────────────────────────

ASKING = {
    "version": "1.0.0",
    "executor_id": "core/primitives/subprocess",
    "config": {"command": "cat", "input_data": "{params_json}"},
    "config_resolve": {"path": "team/site.yaml"},
}
"""A tool that is given the config `team/site.yaml`."""


def own_tool(here: Project) -> None:
    here.write_own("tools/mine.yaml", json.dumps(ASKING))
    here.write_own("config/team/site.yaml", "host: mine\n")


def sign_config(path: Path) -> None:
    data = sign_bytes(
        path.read_bytes(),
        kind="config",
        item_id="config/team/site",
        extension=".yaml",
        key=KEY,
        now=SIGNED_AT,
    )
    path.write_bytes(data)


def test_config_of_an_untrusted_project_does_not_reach_the_user_s_tools(
    project: MakeProject,
) -> None:
    here = project()
    own_tool(here)
    assert here.data("mine") == {"resolved_config": {"host": "mine"}}
    here.write(".ai/config/team/site.yaml", "host: theirs\n")
    fresh = replace(here.toolbox, trust=Trust(str(here.user), str(here.root)))
    with pytest.raises(plait.PlaitError) as caught:
        call_tool(fresh, "mine", {})
    assert str(caught.value) == (
        f"{here.root}: this project brings a file that nobody you trust has signed: "
        "config/team/site.yaml (it is not signed)\n"
        f"fix: look at what it brings, then type: plait trust {here.root}"
    )
    assert caught.value.exit_code == 3
    here.trust()
    assert call_tool(fresh, "mine", {}).data == {"resolved_config": {"host": "theirs"}}


def test_a_person_is_asked_about_the_config_of_a_project(project: MakeProject) -> None:
    here = project()
    own_tool(here)
    here.write(".ai/config/team/site.yaml", "host: theirs\n")
    asked: list[str] = []

    def ask(question: Any) -> bool:
        asked.append(str(question))
        return True

    tools = replace(here.toolbox, trust=Trust(str(here.user), str(here.root), ask=ask))
    assert call_tool(tools, "mine", {}).data == {"resolved_config": {"host": "theirs"}}
    assert asked == [
        f"this project brings 1 file in .ai/config, signed by nobody you trust: {here.root}",
    ]


def test_the_config_that_was_judged_is_the_one_that_is_used(project: MakeProject) -> None:
    here = project()
    own_tool(here)
    here.write(".ai/config/team/site.yaml", "host: theirs\n")

    def exchange(_: Any) -> bool:
        here.write(".ai/config/team/site.yaml", "host: evil\n")
        return True

    tools = replace(here.toolbox, trust=Trust(str(here.user), str(here.root), ask=exchange))
    assert call_tool(tools, "mine", {}).data == {"resolved_config": {"host": "theirs"}}
    assert call_tool(tools, "mine", {}).data == {
        "resolved_config": {"host": "evil"}
    }  # trusted by now


def test_a_config_of_the_installation_counts_as_it_was_installed(project: MakeProject) -> None:
    here = project()
    here.write_own("tools/mine.yaml", json.dumps(ASKING))
    bundle = here.top / "bundle"
    (bundle / "config" / "team").mkdir(parents=True)
    (bundle / "config" / "team" / "site.yaml").write_text("host: bundle\n")
    spaces = replace(here.toolbox.spaces, bundles=lambda: (Space("system", str(bundle), "theirs"),))
    tools = replace(here.toolbox, spaces=spaces)
    with pytest.raises(plait.PlaitError) as caught:
        call_tool(tools, "mine", {})
    assert caught.value.code == "changed-system-file"
    manifest.write(str(bundle))
    assert call_tool(tools, "mine", {}).data == {"resolved_config": {"host": "bundle"}}


@pytest.mark.parametrize("place", [".ai/config/team/site.yaml", "own"])
def test_a_config_that_changes_or_comes_is_noticed_by_a_warm_call(
    project: MakeProject, place: str
) -> None:
    here = project().trust()
    own_tool(here)
    tools = replace(here.toolbox, clock=lambda: time.time() + 60)
    for _ in range(3):
        assert call_tool(tools, "mine", {}).data == {"resolved_config": {"host": "mine"}}
    assert tools.ready.get("mine", dry=False, now=time.time() + 60) is not None
    if place == "own":
        here.write_own("config/team/site.yaml", "host: other\n")
    else:
        here.write(place, "host: other\n")
    assert call_tool(tools, "mine", {}).data == {"resolved_config": {"host": "other"}}


def test_signed_config_counts_where_its_signer_is_trusted(project: MakeProject) -> None:
    here = project()
    own_tool(here)
    here.write(".ai/plait.yaml", "trust: signed\n")
    config = here.write(".ai/config/team/site.yaml", "host: theirs\n")
    here.trust()
    assert "demands signatures" in str(here.refusal("mine"))
    sign_config(config)
    here.trust_key()
    assert here.data("mine") == {"resolved_config": {"host": "theirs"}}
    config.write_bytes(config.read_bytes().replace(b"theirs", b"evil"))
    assert here.refusal("mine").code == "changed"


def test_config_of_the_user_that_others_can_write_is_refused(project: MakeProject) -> None:
    here = project()
    own_tool(here)
    (here.user / "config" / "team" / "site.yaml").chmod(0o666)
    assert here.refusal("mine").code == "unsafe-user-file"


def test_a_config_file_signed_as_a_tool_does_not_count(project: MakeProject) -> None:
    here = project()
    own_tool(here)
    here.trust_key()
    config = here.write(".ai/config/team/site.yaml", "host: theirs\n")
    data = sign_bytes(
        config.read_bytes(),
        kind="tool",
        item_id="config/team/site",
        extension=".yaml",
        key=KEY,
        now=SIGNED_AT,
    )
    config.write_bytes(data)
    assert here.refusal("mine").code == "forged"


# ── secrets that a header declares ───────────────────────────────────────

SHOW = """import base64, json, os, sys
given = json.load(sys.stdin)
said = given["code"] + " " + os.environ.get("HARMLESS", "") + " " + given["city"]
print("for people: " + said, file=sys.stderr)
print(json.dumps({"said": said, "coded": base64.b64encode(("x" + given["code"]).encode()).decode()}))
"""


def test_what_a_header_calls_secret_is_shown_nowhere(project: MakeProject) -> None:
    here = project(HARMLESS="s3cret-of-host").trust()
    here.script(
        "t", SHOW, header='SECRETS = ["code", "HARMLESS"]\nENV_CONFIG = {"passes": ["HARMLESS"]}'
    )
    params = {"code": "op3n-sesame", "city": "Bonn"}
    result = call_tool(here.toolbox, "t", params)
    assert result.data["said"] == "*** *** Bonn"
    reported = json.dumps([result.record(), plan_call(here.toolbox, "t", params)])
    assert "op3n" not in reported
    assert "s3cret-of-host" not in reported
    assert result.data["coded"].count("***") == 1
    assert (
        plait.call("t", params, project=here.root)["data"]["said"]
        == "op3n-sesame s3cret-of-host Bonn"
    )


@pytest.mark.parametrize("levels", [101, 500, 700, 950, 100_000])
@pytest.mark.parametrize("declared", [{}, {"week": {"type": "integer"}}])
def test_data_that_is_nested_too_deeply_is_refused(
    project: MakeProject, levels: int, declared: Any
) -> None:
    here = project().trust()
    here.config("t", config={"command": "true"}, config_schema={"properties": declared})
    deep: Any = []
    for _ in range(levels - 1):
        deep = [deep]
    error = here.refusal("t", {"week": deep})
    assert error.code == "not-json"


@pytest.mark.parametrize("code", ["op3n-sesame", 31337, ["op3n-sesame"]])
def test_a_declared_secret_that_violates_the_schema_is_not_shown(
    project: MakeProject, code: Any
) -> None:
    here = project()  # it is not trusted yet: parameters are checked before
    schema = {"type": "object", "properties": {"code": {"type": "string", "maxLength": 4, "items": {"type": "integer"}}}}  # fmt: skip
    here.config("t", config={"command": "true"}, secrets=["code"], config_schema=schema)
    error = here.refusal("t", {"code": code})
    assert error.code == "schema-violation"
    assert not any(shown in str(error) for shown in ("op3n", "31337", "got"))


def test_a_value_whose_name_or_form_is_that_of_a_secret_is_not_shown(project: MakeProject) -> None:
    here = project().trust()
    short = {"type": "string", "maxLength": 4}
    names = ("password", "url", "city")
    schema = {"type": "object", "properties": {**dict.fromkeys(names, short), "deep": {"properties": {"db_pwd": short}}}}  # fmt: skip
    here.config("t", config={"command": "true"}, config_schema=schema)
    given = {"password": "op3n-sesame", "url": "ftp://me:op3n@host", "city": "Bremen", "deep": {"db_pwd": "op3n-sesame"}}  # fmt: skip
    error = here.refusal("t", given)
    must = "must have at most 4 characters"
    assert sorted(problem.what for problem in error.problems) == [
        f"'t': city: {must}, got \"Bremen\"",
        f"'t': deep.db_pwd: {must}",
        f"'t': password: {must}",
        f"'t': url: {must}",
    ]


def test_a_declared_secret_is_no_argument(project: MakeProject) -> None:
    here = project().trust()
    here.config("t", config={"command": "echo", "args": ["{code}"]}, secrets=["code"])
    error = here.refusal("t", {"code": "op3n-sesame"})
    assert error.code == "secret-in-argv"
    assert "op3n" not in str(error)


def test_output_beyond_the_limit_is_an_error_that_names_its_file(project: MakeProject) -> None:
    here = project().trust()
    config = {"command": "seq", "args": ["{n}"], "max_output": 100}
    here.config("much", config=config)
    result = here.call("much", n=1000)
    assert (result["status"], result["data"]) == ("error", None)
    file = Path(result["metadata"]["overflow"])
    assert file.parent == here.user / "cache" / "output"
    assert result["error"].startswith(f"it printed more than 100 bytes; all of it is in {file}")
    assert file.read_text().endswith("\n1000\n")
    here.config(
        "hushed",
        config={"command": "seq", "args": ["1000"], "max_output": 100, "env": {"K": "{k}"}},
        secrets=["k"],
    )
    hushed = here.call("hushed", k="op3n-sesame")
    assert "what it printed was dropped" in hushed["error"]
    assert len(list(file.parent.iterdir())) == 1


def test_a_project_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder '.*/nowhere'"):
        plait.call("core/file/list", project=tmp_path / "nowhere")


def test_names_that_a_file_may_not_set_are_reported(project: MakeProject) -> None:
    here = project().trust()
    here.write(".env", "PATH=/evil\nLD_PRELOAD=x\nCITY=Bonn\n")
    here.config("t", config={"command": "true"})
    assert here.dry("t")["refused_env"] == ["PATH", "LD_PRELOAD"]
    assert here.call("t")["metadata"]["refused_env"] == ["PATH", "LD_PRELOAD"]


def test_a_dry_run_of_a_newer_version_does_not_forbid_the_older(project: MakeProject) -> None:
    here = project()
    here.trust_key()
    tool = here.script("t", "print(1)\n")
    older = here.sign(tool).read_bytes()
    newer = sign_bytes(
        tool.read_bytes() + b"#\n",
        kind="tool",
        item_id="t",
        extension=".py",
        key=KEY,
        now=SIGNED_AT + 60,
    )
    tool.write_bytes(newer)
    here.dry("t")
    tool.write_bytes(older)
    assert here.data("t") == 1
    tool.write_bytes(newer)
    assert here.data("t") == 1
    tool.write_bytes(older)
    assert here.refusal("t").code == "rolled-back"
