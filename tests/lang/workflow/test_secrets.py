"""What is made of a secret is one: nothing that a run leaves behind or shows holds it, in any usual form."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from plait import Secret
from plait.app.runs import flow_runs
from plait.core.documents import parse
from plait.lang.environment import FlowEnvironment, load_environment
from plait.schema import Fields
from plait.scope import Scope
from runs.stories import Place, new_place

TOKEN = "tok-Ab3/xY+z9 QwErTy"
OTHER = "other-Zz81-secret"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch, TOKEN=TOKEN, PLAIN="plain-value-1")


def forms(secret: str) -> list[str]:
    data = secret.encode()
    return [
        secret,
        quote(secret, safe=""),
        data.hex(),
        base64.b64encode(data).decode().rstrip("=")[:-1],
    ]


MADE = [
    # how a variable of the head or of a step comes by it       what the process has in it
    ("secrets: {T: TOKEN}\nenv: {V: 'Bearer ${T}'}",              f"Bearer {TOKEN}"),
    ("secrets: {T: TOKEN}\nenv: {V: 'Bearer ${env.TOKEN}'}",      f"Bearer {TOKEN}"),
    ("secrets: {T: TOKEN}\nenv: {V: '${T | upper}'}",             TOKEN.upper()),
    ("secrets: {T: TOKEN}\nenv: {V: '${env.TOKEN | upper}'}",     TOKEN.upper()),
    ("secrets: {T: TOKEN}\nenv: {W: '${T}', V: '${W | lower}'}",  TOKEN.lower()),
    ("secrets: {T: TOKEN}\nvars: {v: {a: ['${T | upper}']}}\nenv: {V: '${v.a[0]}'}", TOKEN.upper()),
    ("secrets: {T: TOKEN}\nprofiles: {}\nenv: {V: 'x'}\nX: step",  TOKEN.upper()),
    ("env: {V: 'Bearer ${env.TOKEN}'}",                           f"Bearer {TOKEN}"),       # called like a secret
    ("env_files: some.env\nenv: {V: '${API_KEY}!'}",              f"{OTHER}!"),
    ("env_files: some.env\nenv: {V: '${DATABASE}'}",              f"postgres://me:{OTHER}@host/db"),
    ("env_files: some.env\nsecrets: {T: NAMED}\nenv: {V: '${NAMED}'}", OTHER),
]  # fmt: skip
STEPS = """
steps:
  - shell: |
      printf '%s' "$V" | wc -c
  - shell: |
      echo $V; printf '%s' "$V" | base64 -w0; printf '%s' "$V" | od -An -tx1 | tr -d ' \\n' >&2
    capture_output: leaked
  - {shell: 'echo ${V} ${leaked}; exit 3', continue_on_error: true}
  - {write_file: {path: out.txt, content: 'said ${V} ${leaked} ${env.V}'}}
  - {shell: 'echo ${V} ${env.V:-}', when: '${V} != "x"'}
"""


@pytest.mark.parametrize(("head", "held"), MADE)
def test_what_is_made_of_a_secret_is_in_nothing_that_a_run_leaves_or_shows(
    place: Place, head: str, held: str
) -> None:
    place.write(
        "some.env", f"API_KEY={OTHER}\nNAMED={OTHER}\nDATABASE=postgres://me:{OTHER}@host/db\n"
    )
    steps = STEPS
    if "X: step" in head:
        head = head.replace("\nX: step", "")
        steps = STEPS.replace(
            "    capture_output", "    env: {V: '${T | upper}'}\n    capture_output"
        ).replace('"$V" | wc -c', '"${T | upper}" | wc -c')
    ran = place.done(head + steps)
    assert ran.outputs["steps/0"] == str(len(held)), "the process itself has it whole"
    run = ran.result.run
    commands = (
        ("logs", run),
        ("show", run),
        ("run", "flow.yaml", "--json"),
        ("run", "flow.yaml", "--dry-run"),
    )
    shown = [f"{done.stdout}{done.stderr}" for done in (place.plait(*args) for args in commands)]
    seen = "".join([repr(ran.events), repr(ran.result), place.text("out.txt"), *shown])
    secret = OTHER if OTHER in held else held.removeprefix("Bearer ")
    assert [form for form in forms(secret) if form in seen] == []
    assert [form for form in forms(secret) if form.encode() in place.state] == []


def test_a_secret_that_is_given_as_a_parameter_is_masked(place: Place) -> None:
    flow = "parameters: {key: string}\nsteps: [{shell: 'echo ${key}'}, {shell: 'echo ${key | upper}'}]\n"
    ran = place.done(flow, inputs={"key": Secret(TOKEN)})
    assert list(ran.outputs.values()) == ["***", "***"]
    assert TOKEN.encode() not in place.state


LEFT = [
    # what a step, which the run remembers when it is resumed, leaves in a file
    "{shell: 'printf %s \"$A\" > out', env: {A: 'pre-${T | upper}'}}",
    "{shell: 'printf %s ${T | upper} > out'}",
    "{foreach: [x], do: [{shell: 'printf %s \"$A\" > out', env: {A: '${item}-${T | lower}'}}]}",
]


@pytest.mark.parametrize("step", LEFT)
def test_a_resumed_run_masks_what_replayed_steps_have_made_of_a_secret(
    place: Place, step: str
) -> None:
    flow = f"secrets: {{T: TOKEN}}\nsteps: [{step}, {{shell: test -e go}}, {{shell: cat out}}]\n"
    failed = place.run(flow)
    place.write("go", "")
    whole = place.done(flow).outputs["steps/2"]
    assert "***" in whole
    assert place.resume(failed.result.run).outputs["steps/2"] == whole
    assert [one for one in (TOKEN.upper(), TOKEN.lower()) if one.encode() in place.state] == []


def test_what_a_command_makes_of_a_secret_is_one(place: Place) -> None:
    flow = "secrets: {T: TOKEN}\nsteps: [{shell: 'echo ${cmd:printf %s ${T} | rev}'}]\n"
    assert list(place.done(flow).outputs.values()) == ["***"]


def head_of(text: str, environ: dict[str, str]) -> FlowEnvironment:
    node = parse(text, "flow.yaml")
    return load_environment(Fields("flow", node, Scope()), {}, profile=None, environ=environ)  # type: ignore[arg-type]


NOT_GUESSED = [
    # a variable of the environment, and what the flow says         hidden
    ("MAX_TOKENS", "4096",             "env: {A: '${env.MAX_TOKENS}'}",  []),           # a number
    ("USE_TOKEN",  "true",             "env: {A: '${env.USE_TOKEN}'}",   []),           # too short
    ("REGION",     "eu-central-1",     "env: {A: '${env.REGION}'}",      []),           # a name like any other
    ("GH_TOKEN",   "abcdefgh",         "env: {A: x}",                    []),           # nothing speaks of it
    ("GH_TOKEN",   "abcdefgh",         "env: {A: '${env.GH_TOKEN}'}",    ["abcdefgh"]),
    ("TOKEN",      "abc",              "secrets: {A: TOKEN}",            ["abc"]),      # it is declared
    ("SITE",       "http://a:pw1@h/",  "env: {A: '${env.SITE}'}",        ["pw1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text", "hidden"), NOT_GUESSED)
def test_what_is_called_like_a_secret_is_hidden_and_nothing_that_data_is_full_of(
    name: str, value: str, text: str, hidden: list[str]
) -> None:
    assert sorted(head_of(text, {name: value}).texts_to_mask()) == hidden


# ── secrets among the inputs ─────────────────────────────────────────────

GIVEN = [
    lambda secret: secret,
    lambda secret: f"Bearer {secret}",
    lambda secret: base64.b64encode(secret.encode()).decode(),
    lambda secret: {"a": [secret]},
]
GIVEN_FLOW = """\
secrets: {T: TOKEN}
parameters: {p: {type: any}, n: {type: integer}}
steps: [{shell: 'echo ${p}'}, {shell: 'test -e go && echo ${p} ${n}'}]
"""


@pytest.mark.parametrize("form", GIVEN)
def test_an_input_that_holds_a_secret_is_not_kept_and_given_again(
    place: Place, form: Callable[[str], object]
) -> None:
    given = form(TOKEN)
    place.write("flow.yaml", GIVEN_FLOW)
    (place.root.parent / "given.json").write_text(json.dumps({"p": given, "n": 3}))
    ran = place.plait("run", "flow.yaml", "--inputs", "../given.json")
    assert ran.returncode == 1, ran.stderr
    held = [found for one in forms(TOKEN) if (found := one.encode()) in place.state]
    assert held == []
    run = flow_runs(str(place.root))[0].id
    refused = place.plait("resume", run)
    assert refused.stderr == (
        f"run {run} was given secrets, which are not kept with it: p\n"
        f"fix: give them again: PLAIT_INPUT_p=… plait resume {run}\n"
    )
    place.write("go", "")
    done = place.plait("resume", run, "-i", f"p:={json.dumps(given)}")
    assert (done.returncode, "steps: done, 2 steps" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
    assert [one for one in forms(TOKEN) if one.encode() in place.state] == []


def test_an_input_without_a_secret_is_kept(place: Place) -> None:
    ran = place.run(GIVEN_FLOW, inputs={"p": "plain", "n": 3})
    place.write("go", "")
    assert place.resume(ran.result.run).outputs["steps/1"] == "plain 3"
