"""The head of a flow: its variables, environment files and secrets.

The environment has layers; later ones win: `env_files`, `env`, the chosen profile, the `env` of a
step, secrets.  Values of `vars`, `env` and profiles are templates over parameters, secrets, the
values above them, and `env.*`.  A secret is a `Secret` as soon as it is read, and so are values
that contain it: only processes, bound shell text and HTTP requests see the text.  A variable whose
name looks like that of a secret is one, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Set

from plait import schema
from plait.core.documents import nodes
from plait.core.documents.files import read_text
from plait.core.errors import (
    InputError,
    LimitError,
    PlaitError,
    Problem,
    closest_name,
    format_names,
)
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field, replace
from plait.core.secret_names import has_form_of_key, looks_secret, password_in
from plait.core.values import Secret, reveal_text
from plait.lang.analysis.references import names_in
from plait.scope import Scope
from plait.scope.computed import Sources
from plait.template.compiled import Budget

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.source import Span
    from plait.core.values import Json
    from plait.template.compiled import Lookup
    from plait.template.template import Template
    from plait.tools.environment import DotEnv


MAX_SECRET: Final = 64 * 1024
"""Bytes of a file that holds a secret."""

MAX_ENV_FILE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FlowEnvironment:
    """The variables of a flow, and the environment of its processes."""

    vars: Mapping[str, Json]
    env: Mapping[str, Json]
    """The values as written: a number stays a number in templates."""
    secrets: Mapping[str, Secret]
    guessed: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts of variables that look like secrets but are not declared as such."""
    refused: tuple[str, ...] = ()
    """Variables of env files that are ignored, because they could change which programs run."""
    filed: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables of env files."""
    given: frozenset[str] = frozenset()
    """Names of values from outside the flow file: secrets, env files, values that contain them.
    """
    data: frozenset[str] = frozenset()
    """The names among `given` whose values contain data of a run: items, captures."""

    def names(self) -> dict[str, Json]:
        return {**self.env, **self.vars, **self.secrets}

    def process_env(self) -> dict[str, str]:
        return {
            **{name: reveal_text(value) for name, value in self.env.items()},
            **{name: secret.reveal() for name, secret in self.secrets.items()},
        }

    def texts_to_mask(self) -> frozenset[str]:
        """Every text that is masked wherever it appears."""
        return self.guessed.union(secrets_in([self.names(), *self.secrets.values()]))

    def environ(self, host: Mapping[str, str]) -> dict[str, str | Secret]:
        """The variables for `env.X`; the text of a secret is a `Secret` under every name."""
        return _wrap_secrets({**host, **self.process_env()}, self.texts_to_mask())


NO_ENVIRONMENT: Final = FlowEnvironment({}, {}, {})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a workflow file: its names, and the origin of the parameters that it passes."""

    scope: Scope
    given: frozenset[str] = frozenset()
    """Parameters whose values are not written in the calling file."""
    data: frozenset[str] = frozenset()
    """The parameters among `given` whose values contain data of a run."""


def load_environment(
    flow: schema.Fields,
    parameters: Mapping[str, Json],
    *,
    profile: str | None,
    environ: Mapping[str, str],
    caller: Caller | None = None,
) -> FlowEnvironment:
    """The environment that a head declares; InputError with everything that is missing."""
    reader = Head(flow, environ, caller)
    found = reader.read(parameters, profile)
    if reader.problems:
        raise InputError.together(reader.problems)
    return found


def find_secret_texts(flow: schema.Fields, environ: Mapping[str, str]) -> frozenset[str]:
    """The texts of the secrets of a head that can be read; problems are reported elsewhere."""
    return Head(flow, environ).texts_to_mask()


class Head:
    def __init__(
        self, flow: schema.Fields, environ: Mapping[str, str], caller: Caller | None = None
    ) -> None:
        self.flow = flow
        self.caller = caller
        self.environ = environ
        self.sources = Sources(environ=environ)
        self.problems: list[Problem] = []
        self.given: set[str] = set()
        """Names of values from outside the file."""
        self.data: set[str] = set()
        """The names among `given` whose values contain data of a run."""
        self.own: set[str] = set()
        """The names that the head declares; all other names come from the caller."""
        self.budget = Budget()

    def texts_to_mask(self) -> frozenset[str]:
        filed, _ = self._env_files()
        secrets = self._secrets(filed)
        return frozenset(self._guess_secrets(filed)).union(
            secret.reveal() for secret in secrets.values()
        )

    def read(self, parameters: Mapping[str, Json], profile: str | None) -> FlowEnvironment:
        filed, refused = self._env_files()
        secrets = self._secrets(filed)
        caller = self.caller
        self.own = {*filed, *secrets, *parameters}
        self.given = {*filed, *secrets, *(parameters if caller is None else caller.given)}
        self.data = set() if caller is None else set(caller.data)
        guessed = frozenset(self._guess_secrets(filed))
        hidden = guessed.union(secret.reveal() for secret in secrets.values())
        self.sources = Sources(environ=_wrap_secrets(self.environ, hidden))
        given = _wrap_secrets(filed, hidden)
        outer = {} if caller is None else caller.scope.names
        variables = self._render_entries(
            self.flow.entries("vars"), {**outer, **parameters, **secrets}
        )
        known = {**outer, **given, **parameters, **variables, **secrets}
        env = {**given, **self._variables(profile, known)}
        return FlowEnvironment(
            variables,
            env,
            secrets,
            guessed,
            refused,
            filed,
            frozenset(self.given - parameters.keys()),
            frozenset(self.data - parameters.keys()),
        )

    def _variables(self, profile: str | None, known: Mapping[str, Json]) -> dict[str, Json]:
        """The variables of the flow; a profile replaces some of them."""
        own, chosen = dict(self.flow.variables("env")), dict(self._profile(profile))
        if not chosen:
            return self._render_entries(list(own.items()), known)
        if circles := list(circular_variables(own, chosen)):
            self.problems += circles
            return {}

        found: dict[str, Json] = {}
        tried: set[str] = set()

        def settle(name: str) -> None:
            """Fill a variable after those that it uses. In its own value, its name
            means the value of the flow.
            """
            if name in tried or not (name in own or name in chosen):
                return
            tried.add(name)
            node = chosen[name] if name in chosen else own[name]
            extends = name in own and node is not own[name] and name in names_in(node)
            for other in [*names_in(node), *(names_in(own[name]) if extends else ())]:
                settle(other)
            before = (
                self._render_entries([(name, own[name])], {**known, **found}) if extends else {}
            )
            found.update(self._render_entries([(name, node)], {**known, **found, **before}))

        for name in (*own, *chosen):
            settle(name)
        return found

    def _render_entries(
        self, entries: list[tuple[str, nodes.Node]], known: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Render each value; it may use the values above it."""
        found: dict[str, Json] = {}
        names = dict(known)
        for name, node in entries:
            try:
                template = schema.to_template(node)
                value = template.render_checked(self._lookup(names), strict=True, sealing=True)
                self.budget.spend(value, node.span)
                found[name] = names[name] = value
                self._note_origin(name, template)
            except PlaitError as error:
                self.problems += [
                    replace(one, where=one.where or node.span) for one in error.problems
                ]
                if isinstance(error, LimitError):
                    break  # the values below may contain it and be longer
        return found

    def _lookup(self, names: Mapping[str, Json]) -> Lookup:
        return Scope(names, sources=self.sources)

    def _note_origin(self, name: str, template: Template) -> None:
        """Record a value that does not come from the flow file alone, or contains data of a run."""
        for written in template.placeholders:
            root = written.partition(".")[0]
            if root in self.own or self.caller is None:
                is_authors = root.isidentifier() and root not in self.given and root != "env"
                is_data = root in self.data
            else:
                origin = self.caller.scope.origin(root)
                is_authors = origin is not None and origin.of_author
                is_data = not root.isidentifier() if origin is None else not origin.is_trusted
            if not is_authors:
                self.given.add(name)
            if is_data:
                self.data.add(name)
        self.own.add(name)

    def _profile(self, chosen: str | None) -> list[tuple[str, nodes.Node]]:
        if chosen is None:
            return []
        profiles = dict(self.flow.entries("profiles"))
        node = profiles.get(chosen)
        if not isinstance(node, nodes.Mapping):
            close = closest_name(chosen, profiles)
            fix = (
                f"did you mean '{close}'?"
                if close
                else (
                    f"profiles: {format_names(profiles)}"
                    if profiles
                    else "the flow has no profiles"
                )
            )
            self.problems.append(
                Problem(f"there is no profile '{chosen}'", None, fix, code="profile")
            )
            return []
        return [
            (str(key.value), schema.keep_number_text(value))
            for key, value in node.entries
            if key.value != "description"
        ]

    # ── files ────────────────────────────────────────────────────────────

    def _env_files(self) -> tuple[dict[str, str], tuple[str, ...]]:
        found: dict[str, str] = {}
        refused: list[str] = []
        for node in env_files(self.flow.get("env_files")):
            try:
                dotenv = read_env_file(node)
            except InputError as error:
                self.problems += error.problems
                continue
            if dotenv is not None:
                found |= dotenv.expand({**self.environ, **found})
                refused += dotenv.refused
        return found, tuple(dict.fromkeys(refused))

    # ── secrets ──────────────────────────────────────────────────────────

    def _secrets(self, filed: Mapping[str, str]) -> dict[str, Secret]:
        found: dict[str, Secret] = {}
        for name, node in self.flow.entries("secrets"):
            secret = self._secret(name, node, {**filed, **self.environ})
            if secret is not None:
                found[name] = secret
        return found

    def _guess_secrets(self, filed: Mapping[str, str]) -> Iterator[str]:
        """Texts that look like secrets, in env files and in variables that the flow mentions."""
        declared = {_origin(node)[1] for _, node in self.flow.entries("secrets")}
        found = [
            (name, secret)
            for name, value in (*filed.items(), *self.environ.items())
            for secret in (
                value
                if (looks_secret(name) and not _is_plain(value)) or has_form_of_key(value)
                else None,
                password_in(value),
            )
            if secret
        ]
        written = repr(self.flow.node.data()) if found else ""
        yield from (secret for name, secret in found if name in filed or name in written)
        yield from (value for name, value in filed.items() if name in declared)

    def _secret(self, name: str, node: nodes.Node, env: Mapping[str, str]) -> Secret | None:
        kind, key, where = _origin(node)
        if kind == "env" and key in env:
            return Secret(env[key])
        if kind == "env":
            what = f"the secret '{name}' comes from the variable {key}, which is not set"
            self.problems.append(
                Problem(what, where, f"set {key}, or name another one", code="secret")
            )
            return None
        if kind != "file" or not key:
            what = f"the secret '{name}' has no source"
            fix = f"write {name}: VARIABLE, or {name}: {{file: path}}"
            self.problems.append(Problem(what, where, fix, code="secret"))
            return None
        try:
            return Secret(
                read_text(_beside(node, os.path.expanduser(key)), MAX_SECRET).rstrip("\r\n")
            )
        except PlaitError as error:
            self.problems += [_with_location(problem, where) for problem in error.problems]
            return None


def _origin(node: nodes.Node) -> tuple[str, str, Span]:
    """`env` or `file`, its name, and where the name stands."""
    if isinstance(node, nodes.Scalar):
        return "env", str(node.value), node.span
    assert isinstance(node, nodes.Mapping)
    fields = schema.Fields("secret", node, Scope())
    for kind in ("env", "file"):
        if (key := fields.text(kind)) is not None:
            return kind, key, fields.span(kind)
    return (
        fields.text("provider") or "",
        fields.text("key") or "",
        node.entries[0][0].span if node.entries else node.span,
    )


PLAIN: Final = 6
"""The limit in characters: a shorter text, or a number, is masked only if it is declared as a
secret.
"""


def _is_plain(value: str) -> bool:
    return len(value) < PLAIN or re.fullmatch(r"[-+]?[0-9][0-9.,_]*", value) is not None


def _wrap_secrets(environ: Mapping[str, str], hidden: Set[str]) -> dict[str, str | Secret]:
    return {name: Secret(value) if value in hidden else value for name, value in environ.items()}


def secrets_in(value: Json) -> Iterator[str]:
    match value:
        case Secret():
            yield value.reveal()
        case Mapping():
            for inner in value.values():
                yield from secrets_in(inner)
        case list():
            for inner in value:
                yield from secrets_in(inner)


def secret_texts(environment: FlowEnvironment, parameters: Mapping[str, Json]) -> list[str]:
    """Every text that is masked wherever it appears, sorted."""
    return sorted(environment.texts_to_mask().union(secrets_in(parameters)))


def env_files(node: nodes.Node | None) -> list[nodes.Scalar]:
    """The files of `env_files`, which is a path or a list."""
    every = node.items if isinstance(node, nodes.Sequence) else (node,)
    return [one for one in every if isinstance(one, nodes.Scalar)]


def read_env_file(node: nodes.Scalar) -> DotEnv | None:
    """The variables of an env file; None if it is optional and missing. InputError if it cannot
    be read.
    """
    from plait.tools.environment import read_dotenv

    path = _beside(node, str(node.value).removesuffix("?"))
    if str(node.value).endswith("?") and not os.path.lexists(path):
        return None
    try:
        found = read_dotenv(read_text(path, MAX_ENV_FILE), ())
    except PlaitError as error:
        problems = [_with_location(problem, node.span) for problem in error.problems]
        if error.code == "no-file":
            fix = "check the path, or end it with ? if the file may be missing"
            problems = [replace(problem, fix=fix) for problem in problems]
        raise InputError.together(problems) from None
    if found.unread:
        raise InputError.together(_unread(path, line) for line in found.unread)
    return found


def _unread(path: str, line: int) -> Problem:
    """The problem does not quote the line: it may be a secret."""
    fix = 'write NAME=value, or NAME="value" with \\" for a quote in it; a comment begins with #'
    return Problem("this line does not set a variable", f"{path}:{line}", fix, code="env-file")


def _beside(node: nodes.Node, path: str) -> str:
    """A path relative to the file that names it."""
    return os.path.join(os.path.dirname(node.span.place.source.name), path)


def _with_location(problem: Problem, span: Span) -> Problem:
    where = f" ({problem.where})" if isinstance(problem.where, str) else ""
    return Problem(f"{problem.what}{where}", span, problem.fix, code=problem.code)


def circular_variables(
    own: Mapping[str, nodes.Node], chosen: Mapping[str, nodes.Node]
) -> Iterator[Problem]:
    """Yield the variables of a flow with a profile that need each other in a cycle."""

    def needed(name: str) -> Iterator[str]:
        node = chosen[name] if name in chosen else own[name]
        extends = name in own and name in chosen and name in names_in(node)
        mentioned = (*names_in(node), *(names_in(own[name]) if extends else ()))
        # In its own value, the name of a variable means the value of the flow, or of the
        # environment.
        return (other for other in mentioned if other != name and (other in own or other in chosen))

    settled: set[str] = set()

    def follow(name: str, trail: tuple[str, ...]) -> tuple[str, ...] | None:
        if name in trail:
            return (*trail[trail.index(name) :], name)
        if name not in settled:
            for other in needed(name):
                if circle := follow(other, (*trail, name)):
                    return circle
            settled.add(name)
        return None

    for name in chosen:
        if circle := follow(name, ()):
            what = f"variables need each other: {' → '.join(circle)}"
            fix = "give one of them a value that does not use the others"
            yield Problem(what, chosen[name].span, fix, code="cycle")
            return
