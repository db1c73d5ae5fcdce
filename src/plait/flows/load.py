"""A file becomes a program, whatever kind of flow it holds.

    *.md                                   a directive
    a map with `nodes` and `start`         a graph, also below `config` of a tool
    a map with `tasks`                     an ensemble
    anything else                          a workflow, or its problems
"""

from __future__ import annotations

from collections.abc import Mapping

from plait import documents
from plait.flows.loaded import Loaded
from plait.flows.names import profile_of
from plait.hints import Final, Literal, TypeAlias
from plait.values import Json

Kind: TypeAlias = Literal["workflow", "graph", "directive", "ensemble"]
KINDS: Final[tuple[Kind, ...]] = ("workflow", "graph", "directive", "ensemble")
_BY_PROFILE: Final[dict[str | None, Kind]] = {"graph": "graph", "prompt": "ensemble"}


def kind_of_file(path: str) -> Kind:
    """What a file holds, by its name and shape; a file that cannot be read is an InputError."""
    if path.endswith((".md", ".markdown")):
        return "directive"
    return _BY_PROFILE.get(profile_of(documents.load(path)), "workflow")


def load_flow(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The program in a file; InputError with everything that is wrong with it or with what it is given."""
    kind = kind_of_file(path)
    match kind:
        case "graph":
            from plait.flows.graph import load_graph as load
        case "directive":
            from plait.flows.directive import load_directive as load
        case "ensemble":
            from plait.flows.ensemble import load_ensemble as load
        case "workflow":
            from plait.flows.workflow import load_workflow as load
    return load(
        path,
        given=given,
        project=project,
        profile=profile,
        strict=strict,
        max_parallel=max_parallel,
        environ=environ,
    )
