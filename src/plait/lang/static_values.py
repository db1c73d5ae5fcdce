"""The values of a head that are written in files, for `plait check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem
from plait.core.values import NOT_KNOWN, Json
from plait.lang.analysis.assumed_values import Assumed
from plait.lang.environment import Head, env_files, read_env_file
from plait.scope import Scope
from plait.template.compiled import Lookup
from plait.template.template import Template


def find_static_values(
    document: nodes.Mapping, others: Set[str] = frozenset()
) -> tuple[dict[str, Json], list[Problem]]:
    """The values that are written in the file, and the problem if they are too long together.

    `others` are names of values from elsewhere: parameters, secrets, names of a caller.  A value
    that differs between profiles is unknown.
    """
    flow = schema.Fields("flow", document, Scope())
    found: dict[str, Json] | None = None
    problems: list[Problem] = []
    for profile in (
        None,
        *(name for name, node in flow.entries("profiles") if isinstance(node, nodes.Mapping)),
    ):
        reader = _StaticHead(flow, {})
        values = reader.find_values(others, profile)
        problems += [one for one in reader.problems if one.code == "output-too-long"]
        if found is None:
            found = values
        else:
            found = {name: value for name, value in found.items() if values.get(name) == value}
    return found or {}, list(dict.fromkeys(problems))


class _StaticHead(Head):
    """The head with the values of files; every other value is unknown."""

    def find_values(self, others: Set[str], profile: str | None) -> dict[str, Json]:
        filed = {name: value for name, value in self._in_env_files() if name not in others}
        variables = self._render_entries(self.flow.entries("vars"), {})
        found = {
            **filed,
            **{name: value for name, value in variables.items() if name not in others},
        }
        env = self._variables(profile, found)
        return {
            name: value
            for name, value in {**filed, **env, **variables}.items()
            if name not in others
        }

    def _lookup(self, names: Mapping[str, Json]) -> Lookup:
        return Assumed(names)

    def _note_origin(self, name: str, template: Template) -> None:
        """Do nothing: origins do not matter here."""

    def _in_env_files(self) -> Iterator[tuple[str, Json]]:
        for node in env_files(self.flow.get("env_files")):
            try:
                dotenv = read_env_file(node)
            except InputError:
                continue  # reported by the check of env files
            for name, value in dotenv.written if dotenv is not None else ():
                yield name, NOT_KNOWN if "$" in value else value
