"""A file becomes a program, whatever kind of flow it holds.

    *.md                                   a directive
    a map with `nodes` and `start`         a graph, also below `config` of a tool
    a map with `tasks`                     an ensemble
    a map with `steps` or phases, a list   a workflow

A file is read and parsed once.  One that has none of these shapes is taken for the kind whose
fields it has; if it has none of those either, the error says what each kind looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from plait.core import documents
from plait.core.values import Json
from plait.lang.kinds import MARKDOWN, detect_kind
from plait.lang.loaded import LoadedFlow


def load_flow(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,
    strict: bool | None = None,
    lenient: bool = False,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedFlow:
    """The program in a file; InputError with everything that is wrong with it or with what it is
    given.

    `lenient`: for a dry run, in which not all names are known: whatever it says, it is not strict.
    """
    if path.endswith(MARKDOWN):
        from plait.lang.directive.read import load_directive

        strict = False if lenient else strict
        return load_directive(path, given=given, project=project, strict=strict, environ=environ)
    document = documents.load(path)
    match detect_kind(document, path):
        case "graph":
            from plait.lang.graph.read import load_graph as load
        case "ensemble":
            from plait.lang.ensemble.compile import load_ensemble as load
        case _:
            from plait.lang.workflow.read import load_workflow

            load = partial(load_workflow, lenient=lenient)
            lenient = False
    strict = False if lenient else strict
    return load(
        path,
        given=given,
        project=project,
        profile=profile,
        strict=strict,
        max_parallel=max_parallel,
        environ=environ,
        document=document,
    )
