"""Which providers a file asks: its prompts, its agents, its tasks."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.documents import Mapping, Node, Scalar, decoded
from plait.core.records import dataclass
from plait.core.source import Span
from plait.lang.analysis.names import profile_of
from plait.lang.analysis.scopes import read_fields
from plait.lang.analysis.tool_calls import called_by


@dataclass(frozen=True, slots=True)
class AskedModel:
    """Something that needs a model."""

    provider: str | None
    """None: whichever is the usual one."""
    where: Span | str
    who: str = ""


def asked_models(
    path: str, kind: str | None, document: Node | None, *, project: str | None = None
) -> Iterator[AskedModel]:
    """All of them; what a value decides is left out."""
    if kind == "directive":
        from plait.lang.directive.read import read_directive

        with open(path, "rb") as file:
            directive = read_directive(decoded(file.read(), path), path)
        yield AskedModel(directive.provider, path)
    elif document is not None and profile_of(document) == "workflow":
        reading = read_fields(document, "workflow")
        others = (
            read_fields(other.document, "workflow", blocks=other.blocks)
            for other in called_by(reading, path, project)
        )
        for steps in (steps for one in (reading, *others) for steps in one.lists):
            for step in steps:
                yield from _of_step(step)
    elif document is not None and profile_of(document) == "prompt":
        yield from _of_ensemble(document, path)


def _of_step(step: Node) -> Iterator[AskedModel]:
    node = step.get("prompt") if isinstance(step, Mapping) else None
    if node is None or not isinstance(step, Mapping):
        return
    named = node.get("provider") if isinstance(node, Mapping) else None
    written = named.value if isinstance(named, Scalar) else None
    where = step.key_span("prompt") if named is None else named.span
    yield AskedModel(written if isinstance(written, str) and written else None, where)


def _of_ensemble(document: Node, path: str) -> Iterator[AskedModel]:
    from plait.lang.ensemble.compile import read_ensemble
    from plait.program.tasks.task_graph import asked_of_models

    cast = read_ensemble(document, path).cast
    for who, named in asked_of_models(cast):
        provider = cast.provider if named is None else named
        if isinstance(provider, str | None):
            yield AskedModel(provider, path, who)
