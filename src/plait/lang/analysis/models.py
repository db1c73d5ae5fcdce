"""Find the providers that the prompts, agents and tasks of a file use."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.documents import Mapping, Node, Scalar
from plait.core.records import dataclass
from plait.core.source import Span
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import find_templates
from plait.lang.analysis.tool_calls import find_subworkflows
from plait.lang.flow_text import FlowText


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A prompt, agent or task that needs a model."""

    provider: str | None
    """None: the default one."""
    where: Span | str
    who: str = ""


def find_models(
    path: str, kind: str | None, document: Node | None, *, project: str | None = None
) -> Iterator[AskedModel]:
    """All uses of models whose provider has no placeholders."""
    if kind == "directive":
        from plait.lang.directive.read import read_flow

        yield AskedModel(read_flow(FlowText.read(path)).provider, path)
    elif document is not None and detect_profile(document) == "workflow":
        reading = find_templates(document, "workflow")
        others = (
            find_templates(other.document, "workflow", blocks=other.blocks)
            for other in find_subworkflows(reading, path, project)
        )
        for steps in (steps for one in (reading, *others) for steps in one.lists):
            for step in steps:
                yield from _of_step(step)
    elif document is not None and detect_profile(document) == "prompt":
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
    from plait.lang.ensemble.compile import read_flow
    from plait.program.tasks.task_graph import model_users

    spec = read_flow(FlowText("", path, document=document)).spec
    for who, named in model_users(spec):
        provider = spec.provider if named is None else named
        if isinstance(provider, str | None):
            yield AskedModel(provider, path, who)
