"""A workflow file becomes a flow that can run, or one error with everything that is wrong.

    load_workflow   file → composed document → checked → parameters, environment, secrets → steps
    Loaded          the flow, and what it was given

Whatever `plait check` calls an error is an error here, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many

from plait import documents
from plait.documents import nodes
from plait.errors import InputError, Problem
from plait.flows import format
from plait.flows.build import Builder
from plait.flows.check import Finding, check_workflow
from plait.flows.compose import Composed, compose
from plait.flows.format import Said
from plait.flows.names import profile_of
from plait.flows.parameters import Parameter, Surroundings, declared, resolve, surroundings
from plait.hints import Any, Final
from plait.records import dataclass, field, replace
from plait.scope import Scope
from plait.scope.computed import Sources
from plait.source import Span
from plait.steps.workflow import Workflow
from plait.values import Json

SHORT_SECRET: Final = 6
"""Characters; what is shorter may well occur in data that is not secret."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A flow that can run, and what it was given."""

    workflow: Workflow
    path: str
    project: str
    parameters: Mapping[str, Json]
    surroundings: Surroundings = field(repr=False)
    declared: Mapping[str, Parameter]
    uses: Mapping[str, Span] = field(default_factory=dict)
    """The tools that its steps name, and where."""
    warnings: tuple[Finding, ...] = ()
    strict: bool = False
    timeout: float | None = None
    durability: str = "normal"
    backend: str = "local"
    allow_outside: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def scope(self, run: str, *, sources: Sources | None = None, started: str = "") -> Scope:
        """The names with which a run of the flow begins."""
        facts: dict[str, Json] = {
            "name": self.workflow.name,
            "id": run,
            "run": run,
            "path": self.path,
            "dir": self.project,
            "iteration": 1,
            "start_time": started,
        }
        names = {**self.surroundings.names(), **self.parameters}
        outermost = Scope({}, label="run", sources=sources or self.sources())
        return outermost.frame("flow", workflow={"workflow": facts}, env=names)

    def sources(self, **more: Any) -> Sources:
        """Where computed values come from; `run`, `clock` and their like are those of `Sources`."""
        environ = {**self.environ, **self.surroundings.process_env()}
        for name in self.surroundings.secrets:
            environ.pop(name, None)  # a secret is asked for by its own name, where it is masked
        return Sources(self.project, environ=environ, allow_outside=self.allow_outside, **more)

    def process_env(self) -> dict[str, str]:
        """What its processes find in their environment, besides that of Plait."""
        return self.surroundings.process_env()

    def secret_texts(self) -> list[str]:
        """What has to be masked wherever it appears."""
        return [secret.reveal() for secret in self.surroundings.secrets.values()]


def load_workflow(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The flow in a file; InputError with everything that is wrong with it or with what it is given."""
    environ = environ or {}
    flow = compose(documents.load(path), path, project=project)
    findings = _expect_workflow(flow, path, project)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    head = Said("flow", _head(flow.document), Scope())
    parameters = declared(flow.document)
    values, around = _given(head, parameters, given or {}, profile, environ)
    scope = Scope({**around.names(), **values}, sources=Sources(environ=environ))
    said = replace(head, scope=scope)
    strictly = said.flag("strict") if strict is None else strict
    builder = Builder(flow, said, scope, strict=strictly, profile=profile, max_parallel=max_parallel)
    name = said.text("name") or os.path.splitext(os.path.basename(path))[0]
    return Loaded(
        builder.workflow(name),
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        values,
        around,
        parameters,
        uses=builder.tools,
        warnings=(*_warnings(findings), *_refused_variables(around, said), *_short_secrets(around, said)),
        strict=strictly,
        timeout=said.seconds("timeout"),
        durability=said.text("durability") or "normal",
        backend=said.text("backend") or "local",
        allow_outside="outside_files" in said.words("allow"),
        environ=environ,
    )


def _expect_workflow(flow: Composed, path: str, project: str | None) -> list[Finding]:
    if profile_of(flow.document) == "workflow" or flow.problems:
        return check_workflow(flow, project=project)
    found = format.problems(flow.document)
    if found:
        raise InputError.together(found)
    fix = "write steps:, or setup:, map: and reduce:"
    raise InputError("this file has no steps", path, fix, code="no-steps")


def _head(document: nodes.Node) -> nodes.Mapping:
    """What a flow says about itself; a file that is only a list of steps says nothing."""
    return document if isinstance(document, nodes.Mapping) else nodes.Mapping((), document.span)


def _given(
    head: Said,
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Json],
    profile: str | None,
    environ: Mapping[str, str],
) -> tuple[dict[str, Json], Surroundings]:
    problems: list[Problem] = []
    # What stands in for a value that is missing lets everything else be looked at as well.
    values: dict[str, Json] = dict.fromkeys(parameters)
    around = Surroundings({}, {}, {})
    try:
        values = resolve(parameters, given)
    except InputError as error:
        problems += error.problems
    try:
        around = surroundings(head, values, profile=profile, environ=environ)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError.together(problems)
    return values, around


def _warnings(findings: Many[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")


def _short_secrets(around: Surroundings, said: Said) -> Iterator[Finding]:
    for name, secret in around.secrets.items():
        if len(secret.reveal()) < SHORT_SECRET:
            what = (
                f"the secret '{name}' has fewer than {SHORT_SECRET} characters: "
                "they are masked wherever they occur, also in data"
            )
            where, fix = said.span("secrets"), "choose a longer one, or do not declare it"
            yield Finding(Problem(what, where, fix, code="short-secret"), "warning")


def _refused_variables(around: Surroundings, said: Said) -> Iterator[Finding]:
    for name in around.refused:
        what = f"the variable {name} of an env file is left away: it could change what programs run"
        fix = f"write {name} under env, where it is seen to be meant"
        yield Finding(Problem(what, said.span("env_files"), fix, code="refused-variable"), "warning")
