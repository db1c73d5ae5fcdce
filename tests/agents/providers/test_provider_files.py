"""Which file a provider's name means, what may be wrong with it, and who has to be trusted before a key is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.providers.talk import (
    FAMILIES,
    FILES,
    KEY,
    SYSTEM,
    ask,
    events,
    failure,
    fixture,
    hi,
    reply,
    saying,
    serving,
)
from plait.agents.messages import TokenUsage
from plait.agents.ports import Models
from plait.agents.providers.file_check import file_problems
from plait.agents.providers.provider_files import names
from plait.agents.providers.spec import read_spec
from plait.agents.providers.structured import StructuredProvider
from plait.app.runs import Options, RunObservers, run_flow
from plait.app.services import LocalModels, local_services
from plait.app.toolbox import toolbox
from plait.core import documents
from plait.core.errors import InputError, PlaitError, TrustError
from plait.core.json_schema import validator
from plait.engine.events import Event, StepFinished
from plait.engine.outcome import Succeeded
from plait.engine.stop import StopSignal
from plait.schema import PROVIDER
from plait.schema.json_schema import json_schema
from plait.schema.reference import render_reference
from runs.stories import Ran
from tools.projects import Project, new_project

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return new_project(tmp_path, monkeypatch)


def found(project: Project, name: str | None = None, *, env: dict[str, str] | None = None) -> Any:
    """The provider that a flow with these variables of its own would ask."""
    services = local_services(str(project.root), "", StopSignal(), env=env or {})
    return services.get(Models).provider(name)


def elsewhere(url: str, more: str = "") -> str:
    return f"extends: openai\nbase_url: {url}\n{more}"


# ── the files of the system space ────────────────────────────────────────


def test_the_system_space_has_a_provider_for_each_family_and_for_local_servers(
    project: Project,
) -> None:
    assert names(toolbox(project.root).spaces) == ["anthropic", "local", "openai", "replay"]


@pytest.mark.parametrize("name", ["anthropic", "local", "openai", "replay"])
def test_a_file_of_the_system_space_is_as_its_table_and_its_schema_say(name: str) -> None:
    text = (SYSTEM / f"{name}.yaml").read_text("utf-8")
    node = documents.parse(text, name)
    assert file_problems(node) == []
    assert read_spec(name, node, {}).name == name
    assert list(validator(json.dumps(json_schema("provider"))).iter_errors(node.data())) == []


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_every_tier_has_a_price_and_the_default_is_a_tier(name: str) -> None:
    spec = read_spec(name, documents.parse((SYSTEM / f"{name}.yaml").read_text("utf-8"), name), {})
    assert {spec.model_id(tier) for tier in spec.models} == spec.prices.keys()
    assert spec.default_model in spec.models
    million = TokenUsage(1_000_000, 0, 1_000_000)
    for tier in (None, *spec.models):
        fresh, cached = spec.price(tier, TokenUsage(1_000_000)), spec.price(tier, million)
        assert fresh is not None
        assert cached is not None
        assert 0 < cached < fresh
    assert spec.price("unknown", million) is None


def test_the_page_has_the_tables_of_the_format() -> None:
    page = (ROOT / "docs" / "providers.md").read_text("utf-8")
    assert page.partition("## All maps and their fields\n\n")[2].rstrip() == render_reference(
        PROVIDER
    )


# ── names ────────────────────────────────────────────────────────────────


def test_a_local_server_works_by_setting_its_address(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(saying("chat_completions", "hello from here")) as server:
        monkeypatch.setenv("LOCAL_BASE_URL", f"{server.url}/v1/")
        monkeypatch.setenv("LOCAL_MODEL", "llama")
        answer = ask(found(project, "local"))
    assert (answer.text, server.paths, server.asked()["model"]) == (
        "hello from here",
        ["/v1/chat/completions"],
        "llama",
    )
    assert "authorization" not in server.headers[0]
    assert answer.usage.cost is None


def test_no_provider_is_asked_unless_one_was_chosen(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(project) is None
    monkeypatch.setenv("PLAIT_PROVIDER", "anthropic")
    assert found(project).name == "anthropic"
    monkeypatch.delenv("PLAIT_PROVIDER")
    project.write_own("config/providers/default.yaml", "extends: openai\n")
    assert found(project).name == "default"


def test_an_unknown_name_is_refused_with_the_nearest(project: Project) -> None:
    with pytest.raises(InputError) as caught:
        found(project, "opanai")
    assert str(caught.value) == (
        "there is no provider 'opanai'\nfix: did you mean 'openai'? there are anthropic, local, openai, replay; "
        "or write .ai/config/providers/opanai.yaml"
    )


@pytest.mark.parametrize("name", ["../openai", "a/b", "", "x" * 9 + "/.."])
def test_a_name_leads_nowhere_else(project: Project, name: str) -> None:
    if not name:
        assert found(project, name) is None
        return
    with pytest.raises(InputError):
        found(project, name)


def test_a_file_extends_the_one_that_it_hides(project: Project) -> None:
    with serving(saying("chat_completions", "mine")) as server:
        project.write_own(
            "config/providers/local.yaml",
            f"extends: local\nbase_url: {server.url}\ndefault_model: own\n",
        )
        assert ask(found(project, "local")).text == "mine"
    assert server.asked()["model"] == "own"


CIRCLES = [
    ({"a": "extends: b", "b": "extends: a"}, "the provider 'a' extends itself"),
    ({"a": "extends: a"},                    "the provider 'a' extends itself"),
    ({"a": "extends: nobody"},               "there is no provider 'nobody'"),
    ({"a": "{family: replay, file: x, record: a}"}, "the provider 'a' records itself"),
    ({"a": "{family: replay, file: x, record: b}", "b": "{family: replay, file: x, record: a}"}, "the provider 'b' records itself"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "what"), CIRCLES)
def test_files_that_lead_in_a_circle_are_refused(
    project: Project, files: dict[str, str], what: str
) -> None:
    for name, text in files.items():
        project.write_own(f"config/providers/{name}.yaml", text)
    with pytest.raises(InputError) as caught:
        found(project, "a")
    assert caught.value.what == what


# ── what is wrong with a file ────────────────────────────────────────────

WRONG = [
    # file                                                         what is wrong with it
    ("famly: replay",                                              "'famly' is not a field of a provider"),
    ("family: openai",                                             "'family' must be one of chat_completions, anthropic_messages, replay"),
    ("base_url: https://{model}.example.org",                      "'{name}' cannot stand here: the host of a server is never part of a question"),
    ("path: chat",                                                 "'path' begins with '/'"),
    ("path: /{messages}",                                          "'{name}' cannot stand here: only the model is known here"),
    ("headers: {x-a: '{model}'}",                                  "'{name}' cannot stand here: headers hold no part of a question"),
    ("headers: {x-api-key: sk-123}",                               "the header 'x-api-key' looks like a key, and a key never stands in a file"),
    ("headers: {authorization: Bearer sk-123}",                    "the header 'authorization' looks like a key, and a key never stands in a file"),
    ("auth: {key: sk-123}",                                        "'key' is not a field of an auth"),
    ("auth: {env: 'A B'}",                                         "'env' must be the name of an environment variable"),
    ("prices: {m: {input: 1}}",                                    "a price needs 'output': tokens of the response"),
    ("retry: {statuses: [200]}",                                   "a part of 'statuses' must be a whole number from 400 to 599"),
    ("stream: maybe",                                              "'stream' must be true or false, not text"),
    ("[1]",                                                        "this file must be a map: provider, not a list"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), WRONG)
def test_a_problem_of_a_file_is_reported_at_its_place(
    project: Project, text: str, what: str
) -> None:
    path = project.write_own("config/providers/mine.yaml", text)
    with pytest.raises(InputError) as caught:
        found(project, "mine")
    assert caught.value.what == what
    assert str(caught.value.where).startswith(f"{path}:1:")


MISSING = [
    ("description: x",                                      ["a provider needs 'family'"]),
    ("family: replay",                                      ["a provider needs 'file'"]),
    ("family: chat_completions",                            ["a provider needs 'base_url'", "a provider needs 'path'", "a provider needs 'body'"]),
    ("{family: replay, file: x, auth: {type: header}}",     ["auth of type header needs 'env'", "auth of type header needs 'header'"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), MISSING)
def test_all_missing_fields_are_reported_at_once(
    project: Project, text: str, what: list[str]
) -> None:
    project.write_own("config/providers/mine.yaml", text)
    with pytest.raises(InputError) as caught:
        found(project, "mine")
    assert [problem.what for problem in caught.value.problems] == what


# ── trust ────────────────────────────────────────────────────────────────

BROUGHT = [
    # the project's file                   who is asked for
    ("evil",    "evil"),
    ("openai",  "openai"),
    ("default", None),
]  # fmt: skip


@pytest.mark.parametrize(("file", "name"), BROUGHT)
def test_no_key_goes_to_a_host_that_an_untrusted_project_chose(
    project: Project, monkeypatch: pytest.MonkeyPatch, file: str, name: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(saying("chat_completions", "thanks")) as server:
        project.write(f".ai/config/providers/{file}.yaml", elsewhere(server.url))
        with pytest.raises(TrustError):
            found(project, name)
        assert server.headers == []
        project.trust()
        assert ask(found(project, name)).text == "thanks"
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_file_of_the_project_that_is_extended_has_to_be_trusted_too(project: Project) -> None:
    project.write_own("config/providers/mine.yaml", "extends: theirs\n")
    project.write(".ai/config/providers/theirs.yaml", elsewhere("http://127.0.0.1:9"))
    with pytest.raises(TrustError):
        found(project, "mine")


def test_variables_of_a_flow_do_not_move_a_provider(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(saying("chat_completions", "right")) as right,
        serving(saying("chat_completions", "wrong")) as wrong,
    ):
        monkeypatch.setenv("LOCAL_BASE_URL", right.url)
        monkeypatch.setenv("LOCAL_MODEL", "m")
        answer = ask(
            found(project, "local", env={"LOCAL_BASE_URL": wrong.url, "LOCAL_API_KEY": KEY})
        )
    assert (answer.text, wrong.bodies) == ("right", [])


BAD_URLS = ["ftp://127.0.0.1", "http://user:pass@127.0.0.1", "127.0.0.1:80", "http://"]


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_is_none_is_refused_and_not_shown(
    project: Project, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("LOCAL_BASE_URL", url)
    monkeypatch.setenv("LOCAL_MODEL", "m")
    with pytest.raises(PlaitError) as caught:
        ask(found(project, "local"))
    assert "pass" not in str(caught.value)


def test_one_provider_is_made_once_for_a_run(project: Project) -> None:
    fakes = LocalModels(str(project.root))
    assert fakes.provider("openai") is fakes.provider("openai")


# ── through a run ────────────────────────────────────────────────────────


SAYING = """
vars: {word: "{model} $${HOME}"}
steps:
  - prompt: say ${word}
    capture: said
  - shell: echo ${said}
"""


def run(project: Project, flow: str) -> Ran:
    path = project.write("flow.yaml", flow)
    reported: list[Event] = []
    result = run_flow(
        str(path), Options(), observers=RunObservers([lambda one: reported.append(one.event)])
    )
    return Ran(result, reported)


def kept(project: Project) -> bytes:
    """All that a run left behind."""
    return b"".join(
        path.read_bytes() for path in (project.space / "state").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_step_asks_a_server_and_the_key_is_nowhere_afterwards(
    project: Project, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    name = FILES[family]
    with serving(events(fixture(family, "stream.sse"))) as server:
        monkeypatch.setenv(f"{name.upper()}_API_KEY", KEY)
        monkeypatch.setenv(f"{name.upper()}_BASE_URL", server.url)
        monkeypatch.setenv("PLAIT_PROVIDER", name)
        ran = run(project, SAYING)
    assert ran.result.status == "done", ran.message
    assert "say {model} ${HOME}" in json.dumps(server.asked()["messages"], ensure_ascii=False)
    first = next(
        event for event in ran.events if isinstance(event, StepFinished) and event.kind == "prompt"
    )
    assert isinstance(first.outcome, Succeeded)
    assert first.outcome.value["facts"]["usage"]["input"] == 1200
    assert "Grüße aus ${HOME} und {model}." in [
        text for text in ran.outputs.values() if isinstance(text, str)
    ]
    assert KEY.encode() not in kept(project)


def test_a_server_that_repeats_the_key_in_an_error_puts_it_nowhere(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(
        reply({"error": {"message": f"bad key {KEY}", "code": "invalid_api_key"}}, 401)
    ) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ran = run(project, "- prompt: {prompt: hi, provider: openai}\n")
    assert ran.result.status == "failed"
    assert "look at the key in OPENAI_API_KEY" in ran.message
    assert KEY.encode() not in kept(project)
    assert KEY not in repr(ran.events)


def test_a_flow_plays_back_what_was_recorded_with_one_variable(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "talk.yaml", "- ask: hi\n  answer: {text: hello, usage: {input: 2, output: 1, cost: 0.5}}\n"
    )
    monkeypatch.setenv("PLAIT_PROVIDER", "replay")
    monkeypatch.setenv("PLAIT_REPLAY", "talk.yaml")
    ran = run(project, "- prompt: hi\n")
    assert list(ran.outputs.values()) == ["hello"]


def test_recording_asks_another_provider_and_writes_it_down(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(events(fixture("chat_completions", "stream.sse"))) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        project.write_own(
            "config/providers/taped.yaml", "family: replay\nfile: talk.jsonl\nrecord: openai\n"
        )
        live = ask(found(project, "taped"), hi("one"))
    project.write_own("config/providers/played.yaml", "family: replay\nfile: talk.jsonl\n")
    played: StructuredProvider = found(project, "played")
    assert ask(played, hi("one")) == live
    assert failure(played, hi("two")).kind == "refused"
    assert KEY not in (project.root / "talk.jsonl").read_text()
