"""A step that passes a prompt to a command-line agent: a fake one, started by the real tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ProcessError, TrustError
from plait.core.records import dataclass, field
from plait.core.values import Json, Secret
from plait.engine.outcome import Succeeded
from plait.program.actions.cli_agent import CLAUDE, CliAgentAction
from plait.program.ports import OnOutput
from plait.tools.call import ToolResult, call_tool
from program.fakes import FakeServices, failure_of, new_run, performed, step, text_of
from tools.projects import Project, new_project

FAKE = f"""#!{sys.executable}
import json, os, sys
prompt = sys.stdin.read()
if "fail" in prompt:
    sys.exit("I cannot do that")
if "number" in prompt:
    print(42)
else:
    print(json.dumps([sys.argv[1:], prompt, os.getcwd(), os.environ.get("ANTHROPIC_API_KEY"), os.environ.get("OTHER")]))
"""


@dataclass(slots=True)
class RealTools(FakeServices):
    """Calls the tools of a project as everybody does."""

    project: Project | None = None
    called: list[str] = field(default_factory=list)

    async def call(
        self,
        tool_id: str,
        params: Mapping[str, Json],
        *,
        timeout: float | None,  # noqa: ARG002
        on_output: OnOutput | None = None,  # noqa: ARG002
        trace: tuple[tuple[str, str], ...] = (),  # noqa: ARG002
    ) -> ToolResult:
        assert self.project is not None
        self.called.append(tool_id)
        return call_tool(self.project.toolbox, tool_id, params)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a fake agent on the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("claude", "mine"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return new_project(tmp_path, monkeypatch, ANTHROPIC_API_KEY="key-1", OTHER="secret")


def asked(
    project: Project, agent: CliAgentAction, values: Mapping[str, Json] | None = None, **fields: Any
) -> Json:
    """What a fake agent says that it was given."""
    outcome = performed(
        step("a", agent, kind="agent"),
        new_run(RealTools(project=project)),
        values,
        directory=str(project.root),
        **fields,
    )
    assert isinstance(outcome, Succeeded), outcome
    assert isinstance(outcome.value["output"], str)
    return json.loads(outcome.value["output"])


def test_the_prompt_comes_on_standard_input_and_only_declared_variables_pass(
    project: Project,
) -> None:
    argv, prompt, folder, key, other = asked(
        project, CliAgentAction(text_of("Fix ${f}; $(rm -rf /)\n'\"")), {"f": "a b"}
    )
    assert argv == ["-p", "--output-format", "text"]
    assert prompt == "Fix a b; $(rm -rf /)\n'\""
    assert (folder, key, other) == (
        str(project.root),
        "***",
        None,
    )  # it passed, and is masked in what was printed


def test_options_are_words_of_their_own(project: Project) -> None:
    options = {
        "model": "${m}",
        "permission_mode": "acceptEdits",
        "allowed_tools": ["Edit", "Bash(git log:*)"],
        "disallowed_tools": ["WebFetch"],
        "max_turns": 3,
        "system": "Be ${m}.",
    }
    argv, *_ = asked(project, CliAgentAction(text_of("x"), options=text_of(options)), {"m": "opus"})
    assert argv[3:] == [
        "--model", "opus", "--permission-mode", "acceptEdits", "--max-turns", "3",
        "--append-system-prompt", "Be opus.", "--allowedTools", "Edit", "Bash(git log:*)",
        "--disallowedTools", "WebFetch",
    ]  # fmt: skip


OPTIONS: list[dict[str, Json]] = [
    {"model": "--dangerously-skip-permissions"},
    {"model": ""},
    {"permission_mode": "whatever"},
    {"allowed_tools": ["--dangerously-skip-permissions"]},
    {"dangerously_skip_permissions": True},
    {"max_turns": 0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_no_option_can_be_smuggled_in(project: Project, options: dict[str, Json]) -> None:
    made = step("a", CliAgentAction(text_of("x"), options=text_of(options)))
    failure = failure_of(
        performed(made, new_run(RealTools(project=project)), directory=str(project.root))
    )
    assert failure.kind == "refused"
    assert "core/agents/claude" in failure.message


def test_a_slash_command_is_passed_on_as_it_is(project: Project) -> None:
    assert (
        asked(project, CliAgentAction(text_of("/fix-files ${n} --all")), {"n": 3})[1]
        == "/fix-files 3 --all"
    )


def test_an_agent_works_where_its_step_does(project: Project) -> None:
    folder = project.root / "sub"
    folder.mkdir()
    outcome = performed(
        step("a", CliAgentAction(text_of("x")), working_dir=text_of("sub")),
        new_run(RealTools(project=project, top=str(project.root))),
        directory=str(project.root),
    )
    assert isinstance(outcome, Succeeded)
    assert json.loads(outcome.value["output"])[2] == str(folder)


def test_what_an_agent_says_is_text_whatever_it_looks_like(project: Project) -> None:
    outcome = performed(
        step("a", CliAgentAction(text_of("a number"))),
        new_run(RealTools(project=project)),
        directory=str(project.root),
    )
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "42\n"


def test_an_agent_that_fails_fails_its_step(project: Project) -> None:
    made = step("a", CliAgentAction(text_of("fail")))
    failure = failure_of(
        performed(made, new_run(RealTools(project=project)), directory=str(project.root))
    )
    assert (failure.message, failure.kind) == ("core/agents/claude: I cannot do that", "exit")


def test_a_missing_agent_is_reported_with_what_to_do(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_CLAUDE", "no-such-agent")
    made = step("a", CliAgentAction(text_of("x")))
    failure = failure_of(
        performed(made, new_run(RealTools(project=project)), directory=str(project.root))
    )
    assert failure.message == (
        "core/agents/claude: the agent 'no-such-agent' cannot be started (No such file or directory): install it "
        "(https://code.claude.com, or npm install -g @anthropic-ai/claude-code), "
        "set PLAIT_CLAUDE to where it is, or name another one by 'agent: {tool: …}'"
    )
    assert failure.exit_code == 127


def test_any_command_of_a_trusted_project_can_be_the_agent(project: Project) -> None:
    project.config(
        "agents/mine",
        executor_id="core/agents/command",
        config={"command": "mine", "args": ["--yes", "-"]},
    )
    agent = CliAgentAction(text_of("do it"), tool="agents/mine")
    with pytest.raises(TrustError):
        asked(project, agent)
    project.trust()
    argv, prompt, folder, *_ = asked(project, agent)
    assert (argv, prompt, folder) == (["--yes", "-"], "do it", str(project.root))


def test_a_command_that_is_not_there_is_reported_with_what_to_do(project: Project) -> None:
    project.config(
        "agents/gone", executor_id="core/agents/command", config={"command": "no-such-agent"}
    )
    project.trust()
    made = step("a", CliAgentAction(text_of("x"), tool="agents/gone"))
    failure = failure_of(
        performed(made, new_run(RealTools(project=project)), directory=str(project.root))
    )
    assert failure.kind == "refused"
    assert failure.message.startswith("the program 'no-such-agent' was not found\nfix: install it")
    assert failure.message.endswith(
        "fix: correct the command of the tool 'agents/gone', or name another agent by 'agent: {tool: …}'"
    )


def test_other_errors_of_a_process_stay_what_they_are() -> None:
    def call(_: str, __: Mapping[str, Json]) -> ToolResult:
        raise ProcessError("too slow", code="timeout")

    failure = failure_of(
        performed(step("a", CliAgentAction(text_of("x"))), new_run(FakeServices(on_call=call)))
    )
    assert (failure.message, failure.kind) == ("too slow", "timeout")


def test_secrets_do_not_reach_a_prompt() -> None:
    fakes = FakeServices(on_call=lambda *_: ToolResult(CLAUDE, True, "fine", None, (), {}))
    run = new_run(fakes, mask=lambda text: text.replace("hunter2", "***"))
    performed(
        step("a", CliAgentAction(text_of("${s} ${v}"))), run, {"s": Secret("other"), "v": "hunter2"}
    )
    assert fakes.asked[0]["params"]["prompt"] == "*** ***"


def test_a_dry_run_shows_the_prompt_and_starts_no_program() -> None:
    fakes = FakeServices()
    run = new_run(fakes, dry_run=True)
    performed(step("a", CliAgentAction(text_of("/fix ${n}"))), run, {"n": 1})
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == ["/fix 1"]
    assert fakes.asked == []
