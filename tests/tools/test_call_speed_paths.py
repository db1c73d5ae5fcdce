"""A warm call looks, and does not read: whatever has changed since, it notices, and does as a first call would."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.app import api as app
from plait.app.toolbox import project_root
from plait.core.secret_names import looks_secret
from plait.tools.call import call_tool, plan_call
from plait.tools.chain import (
    FILE,
    IDENTITY,
    TARGET,
    Chains,
    is_old_enough,
    is_unchanged,
    path_state,
    watched_path,
)
from plait.tools.headers import ItemCache
from plait.tools.invocation import FunctionCall, ProcessCall
from plait.tools.prepare import Toolbox, prepare
from plait.tools.spaces import Space, Spaces
from plait.tools.trust.decisions import TrustStore
from plait.tools.trust.signatures import sign_bytes
from tools.projects import KEY, SIGNED_AT, Project, new_project, python_tool

QUICK = "def execute(params, project_path):\n    return {'said': 'one', **params}\n"
SCHEMA = (
    'CONFIG_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "default": 7}}}'
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return new_project(tmp_path, monkeypatch)


def ahead() -> float:
    """A clock that is ahead: files that were just written count as settled, and are cached."""
    return time.time() + 60


def of(project: Project) -> Toolbox:
    tools = project.toolbox
    return replace(tools, chains=Chains(tools.spaces, ItemCache(), clock=ahead), clock=ahead)


def warm(tools: Toolbox, item_id: str, **params: Any) -> Any:
    """What a tool gives, called until a call only has to look."""
    results = [call_tool(tools, item_id, params).data for _ in range(3)]
    assert tools.ready.get(item_id, dry=False, now=ahead()) is not None
    assert results[0] == results[1] == results[2]
    return results[0]


def result_or_code(tools: Toolbox, item_id: str, **params: Any) -> Any:
    """What the tool says, or the code of the error."""
    try:
        data = call_tool(tools, item_id, params).data
    except plait.PlaitError as error:
        return error.code
    return data["said"] if isinstance(data, dict) else data


# ── what a warm call notices ─────────────────────────────────────────────


def function(project: Project, body: str = QUICK) -> Path:
    return project.script("my/quick", body, header=SCHEMA, runtime="python/function")


def other(word: str) -> str:
    return python_tool(QUICK.replace("one", word), header=SCHEMA, runtime="python/function")


def write_it(project: Project) -> None:
    (project.space / "tools/my/quick.py").write_text(other("two"))


def write_it_and_hide_the_time(project: Project) -> None:
    path = project.space / "tools/my/quick.py"
    before = path.stat()
    path.write_text(other("two"))  # of the same length
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def exchange_it(project: Project) -> None:
    new = project.write(".ai/new.py", other("two"))
    new.rename(project.space / "tools/my/quick.py")


def remove_it(project: Project) -> None:
    (project.space / "tools/my/quick.py").unlink()


def link_it(project: Project) -> None:
    path = project.space / "tools/my/quick.py"
    path.rename(project.top / "elsewhere.py")
    path.symlink_to(project.top / "elsewhere.py")


def put_another_beside_it(project: Project) -> None:
    project.write(".ai/tools/my/quick.yaml", "executor_id: core/primitives/subprocess\n")


def shadow_its_runtime(project: Project) -> None:
    project.config(
        "core/runtimes/python/function",
        executor_id="core/primitives/function",
        config={"function": "other"},
    )


def no_longer_trust_it(project: Project) -> None:
    project.toolbox.trust.store.forget_project(str(project.root))


def demand_signatures(project: Project) -> None:
    project.write(".ai/plait.yaml", "trust: signed\n")


def put_another_folder_in_its_place(project: Project) -> None:
    """The same files, in an untrusted folder."""
    project.root.rename(project.top / "old")
    project.root.mkdir()
    (project.top / "old" / ".ai").rename(project.space)


NOTICED: list[tuple[Callable[[Project], None], str]] = [
    (write_it, "two"),
    (write_it_and_hide_the_time, "two"),
    (exchange_it, "two"),
    (remove_it, "unknown-tool"),
    (link_it, "outside-space"),
    (put_another_beside_it, "ambiguous-id"),
    (shadow_its_runtime, "the file defines no function 'other'"),
    (no_longer_trust_it, "not-trusted"),
    (demand_signatures, "unsigned"),
    (put_another_folder_in_its_place, "not-trusted"),
]


@pytest.mark.parametrize(("change", "expected"), NOTICED, ids=[row[0].__name__ for row in NOTICED])
def test_a_warm_call_notices(
    here: Project, change: Callable[[Project], None], expected: str
) -> None:
    function(here.trust())
    tools = of(here)
    assert warm(tools, "my/quick") == {"said": "one", "n": 7}
    change(here)
    try:
        result = call_tool(tools, "my/quick", {})
        reported = result.data["said"] if result.success else str(result.error)
    except plait.PlaitError as error:
        reported = str(error.code)
    assert expected in reported


def test_a_file_of_the_project_shadows_one_of_the_user_that_was_warm(here: Project) -> None:
    here.trust().write_own("tools/my/quick.py", other("own"))
    tools = of(here)
    assert warm(tools, "my/quick")["said"] == "own"
    function(here)
    assert result_or_code(tools, "my/quick") == "one"


def test_an_own_file_that_others_can_write_from_now_on_is_refused(here: Project) -> None:
    path = here.write_own("tools/my/quick.py", other("own"))
    tools = of(here)
    warm(tools, "my/quick")
    path.parent.chmod(0o777)
    assert result_or_code(tools, "my/quick") == "unsafe-user-file"
    path.parent.chmod(0o755)
    assert result_or_code(tools, "my/quick") == "own"


def signed(project: Project) -> Path:
    path = project.sign(function(project))
    project.trust_key()
    return path


def test_a_revoked_key_ends_a_warm_tool(here: Project) -> None:
    signed(here)
    tools = of(here)
    warm(tools, "my/quick")
    # As another process would: our own store has not heard of it.
    other_store = TrustStore(str(here.user))
    decisions = prepare(tools, "my/quick", {}).ready.decisions
    assert decisions[0].fingerprint is not None
    other_store.revoke(decisions[0].fingerprint, "lost")
    assert result_or_code(tools, "my/quick") == "revoked-key"


def test_a_newer_version_that_ran_elsewhere_ends_a_warm_one(here: Project) -> None:
    path = signed(here)
    tools = of(here)
    warm(tools, "my/quick")
    before = path.read_bytes()
    newer = sign_bytes(
        before, kind="tool", item_id="my/quick", extension=".py", key=KEY, now=SIGNED_AT + 60
    )
    path.write_bytes(newer)
    assert call_tool(of(here), "my/quick", {}).success
    path.write_bytes(before)
    assert result_or_code(tools, "my/quick") == "rolled-back"


def test_a_clock_that_is_set_back_lets_a_tool_be_judged_again(here: Project) -> None:
    function(here.trust())
    tools = of(here)
    warm(tools, "my/quick")
    assert tools.ready.get("my/quick", dry=False, now=time.time() - 3600) is None


def test_env_files_come_change_and_go_while_a_tool_is_warm(here: Project) -> None:
    here.trust().config(
        "my/env", env_config={"passes": ["WORD"]}, config={"command": "printenv WORD"}
    )
    tools = of(here)
    seen: list[Any] = []
    for text in (None, "WORD=one\n", "WORD=two\n", None):
        (here.root / ".env").unlink(missing_ok=True)
        if text is not None:
            here.write(".env", text)
        seen += [call_tool(tools, "my/env", {}, in_clear=True).data for _ in range(3)]
        assert tools.ready.get("my/env", dry=False, now=ahead()) is not None
    assert seen == [*[""] * 3, *["one\n"] * 3, *["two\n"] * 3, *[""] * 3]


def test_an_interpreter_that_goes_or_comes_is_noticed(here: Project) -> None:
    folders = [here.top / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    host = {"PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]])}
    here.trust().config(
        "my/tool",
        env_config={
            "interpreter": {"type": "system_binary", "binary": "speaker", "var": "SPEAKER"}
        },
        config={"command": "${SPEAKER}"},
    )

    def put(folder: Path) -> None:
        (folder / "speaker").write_text(f"#!/bin/sh\necho {folder.name}\n")
        (folder / "speaker").chmod(0o755)

    put(folders[1])
    tools = replace(of(here), host=host)
    assert warm(tools, "my/tool") == "second\n"
    put(folders[0])
    assert warm(tools, "my/tool") == "first\n"
    (folders[0] / "speaker").chmod(0o644)
    assert warm(tools, "my/tool") == "second\n"
    (folders[1] / "speaker").unlink()
    assert result_or_code(tools, "my/tool") == "no-interpreter"


def test_a_marker_gives_a_warm_script_its_anchor(here: Project) -> None:
    here.trust().script("my/where", "import os\nprint(os.environ.get('PYTHONPATH', 'none'))\n")
    tools = of(here)
    assert warm(tools, "my/where") == "none\n"
    here.write(".ai/tools/my/__init__.py", "")
    assert result_or_code(tools, "my/where") != "none\n"
    # What it could load beside it is read each time: it is never only looked at.
    for _ in range(3):
        call_tool(tools, "my/where", {})
    assert tools.ready.get("my/where", dry=False, now=ahead()) is None


def test_a_copy_that_was_removed_is_made_again(here: Project) -> None:
    here.trust().script("my/echo")
    tools = of(here)
    warm(tools, "my/echo", n=1)
    (copy,) = (here.user / "cache" / "items").glob("[!.]*")
    shutil.rmtree(copy)
    assert call_tool(tools, "my/echo", {"n": 2}).data == {"n": 2}


def test_a_changed_system_file_ends_a_warm_tool(here: Project) -> None:
    system = here.top / "system"
    shutil.copytree(Path(app.__file__).parent.parent / "system", system)
    function(here.trust())
    tools = of(here)
    roots = [*tools.spaces.spaces[:2], Space("system", str(system))]
    spaces = Spaces(tuple(roots), str(here.root))
    tools = replace(tools, spaces=spaces, chains=Chains(spaces, ItemCache(), clock=ahead))
    warm(tools, "my/quick")
    manifest = system / "manifest.json"
    text = manifest.read_text()
    manifest.write_text('{"files": {}}')
    assert result_or_code(tools, "my/quick") == "changed-system-file"
    manifest.write_text(text)
    assert warm(tools, "my/quick")["said"] == "one"
    with (system / "tools/core/runtimes/python/function.yaml").open("a") as file:
        file.write("# changed\n")
    assert result_or_code(tools, "my/quick") == "changed-system-file"


# ── what a warm call still does ──────────────────────────────────────────


def test_a_warm_call_checks_its_parameters_and_fills_the_defaults(here: Project) -> None:
    function(here.trust())
    tools = of(here)
    warm(tools, "my/quick")
    assert result_or_code(tools, "my/quick", n="seven") == "schema-violation"
    assert call_tool(tools, "my/quick", {"n": 8}).data == {"said": "one", "n": 8}
    assert call_tool(tools, "my/quick", {}).data == {"said": "one", "n": 7}


def test_what_one_call_does_to_its_result_or_parameters_no_other_sees(here: Project) -> None:
    function(
        here.trust(), "def execute(params, _):\n    params['list'].append(1)\n    return params\n"
    )
    tools = of(here)
    given = {"list": [0]}
    for _ in range(4):
        result = call_tool(tools, "my/quick", given)
        assert result.data == {"list": [0, 1], "n": 7}
        result.record()["chain"][0]["item_id"] = "changed"
        result.metadata["resolved_env_keys"].append("CHANGED")
        result.data["list"].append(2)
    assert given == {"list": [0]}
    assert call_tool(tools, "my/quick", given).chain[0]["item_id"] == "my/quick"
    assert "CHANGED" not in call_tool(tools, "my/quick", given).metadata["resolved_env_keys"]


def test_a_dry_run_and_a_call_share_the_road_and_not_the_secrets(here: Project) -> None:
    here.trust().write(".env", "WORD=hunter2\n")
    here.config(
        "my/env",
        env_config={"passes": ["WORD"]},
        config={"command": "printenv", "input_data": "${WORD}"},
        secrets=["WORD"],
    )
    tools = of(here)
    shown = [plan_call(tools, "my/env", {}) for _ in range(4)]
    assert all(each == shown[0] for each in shown)
    assert "hunter2" not in str(shown)
    assert tools.ready.get("my/env", dry=True, now=ahead()) is not None
    assert tools.ready.get("my/env", dry=False, now=ahead()) is None
    invocation = prepare(tools, "my/env", {}).invocation
    assert isinstance(invocation, ProcessCall)
    assert invocation.stdin == b"hunter2"


def test_what_another_host_made_ready_is_not_ready_here(here: Project) -> None:
    here.trust().config(
        "my/env", env_config={"passes": ["WORD"]}, config={"command": "printenv WORD"}
    )
    tools = replace(of(here), host={**os.environ, "WORD": "one"})
    assert warm(tools, "my/env") == "one\n"
    assert (
        call_tool(replace(tools, host={**os.environ, "WORD": "two"}), "my/env", {}).data == "two\n"
    )


def test_a_tool_that_has_just_changed_is_not_cached(here: Project) -> None:
    function(here.trust())
    tools = replace(of(here), clock=time.time)
    for _ in range(3):
        call_tool(tools, "my/quick", {})
    (here.space / "tools/my/quick.py").touch()
    for _ in range(2):
        call_tool(tools, "my/quick", {})
    assert tools.ready.get("my/quick", dry=False, now=time.time()) is None


def test_a_change_while_a_tool_is_made_ready_is_seen_next_time(here: Project) -> None:
    path = function(here.trust())
    tools = of(here)
    call_tool(tools, "my/quick", {})

    class Meddling(ItemCache):
        """Somebody writes the file right after we have read it."""

        def get(self, found: Any) -> Any:
            item = super().get(found)
            if found.id == "my/quick":
                path.write_text(other("two"))
            return item

    meddled = replace(tools, chains=Chains(tools.spaces, Meddling(), clock=ahead))
    assert [result_or_code(meddled, "my/quick") for _ in range(3)] == ["one", "two", "two"]


def test_a_function_is_called_without_a_copy_of_its_file(here: Project) -> None:
    function(here.trust())
    tools = of(here)
    assert isinstance(prepare(tools, "my/quick", {}).invocation, FunctionCall)
    assert warm(tools, "my/quick")["said"] == "one"
    assert not (here.user / "cache").exists()


# ── looking ──────────────────────────────────────────────────────────────


def test_a_witness_holds_until_what_it_saw_changes(tmp_path: Path) -> None:
    file, folder = tmp_path / "folder" / "file", tmp_path / "folder"
    folder.mkdir()
    file.write_text("one")
    looks = [
        (FILE, str(file)),
        (TARGET, str(folder)),
        (IDENTITY, str(folder)),
        (FILE, str(tmp_path / "no")),
    ]
    seen = [path_state(look, path) for look, path in looks]
    assert [is_unchanged([each]) for each in seen] == [True] * 4
    file.write_text("two")
    assert [is_unchanged([each]) for each in seen] == [False, True, True, True]
    (folder / "new").touch()
    assert [is_unchanged([each]) for each in seen] == [False, False, True, True]
    folder.rename(tmp_path / "no")
    folder.mkdir()
    assert [is_unchanged([each]) for each in seen] == [False, False, False, False]


def test_where_no_file_is_the_nearest_folder_shows_when_one_comes(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b" / "file"
    assert watched_path(str(missing)) == (TARGET, str(tmp_path))
    before = path_state(*watched_path(str(missing)))
    missing.parent.mkdir(parents=True)
    assert not is_unchanged([before])
    assert watched_path(str(missing)) == (TARGET, str(missing.parent))
    missing.touch()
    assert watched_path(str(missing)) == (FILE, str(missing))


def test_only_what_changed_a_while_ago_is_settled(tmp_path: Path) -> None:
    seen = [path_state(TARGET, str(tmp_path)), path_state(FILE, str(tmp_path / "no"))]
    assert not is_old_enough(seen, time.time())
    assert is_old_enough(seen, ahead())
    assert is_old_enough([path_state(IDENTITY, str(tmp_path))], time.time())


def test_a_project_that_is_named_by_a_link_is_the_one_it_leads_to_now(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    for name in ("one", "two", "one"):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        for _ in range(2):
            assert project_root(link) == os.path.realpath(tmp_path / name)


def test_the_project_we_stand_in_is_the_nearest_one_above_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "outer" / "inner" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    monkeypatch.chdir(tmp_path / "link")
    for folder in (inner.parent.parent, inner.parent, inner):
        (folder / ".ai/tools").mkdir(parents=True)
        assert project_root(None) == os.path.realpath(folder)


SECRET_NAMES = [
    ("DB_PASSWD", True),
    ("GH_Token", True),
    ("client_secret", True),
    ("APIKEY", True),
    ("api_key", True),
    ("AUTH", True),
    ("AUTHOR_AUTH", True),
    ("AUTHORITY", False),
    ("GIT_AUTHOR_NAME", False),
    ("PATH", False),
    ("", False),
]


@pytest.mark.parametrize(("name", "secret"), SECRET_NAMES)
def test_which_names_look_like_those_of_secrets(name: str, secret: bool) -> None:
    assert looks_secret(name) == secret
