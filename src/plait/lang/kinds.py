"""Which of the four languages a file is written in."""

from __future__ import annotations

from plait import schema as format
from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Literal
from plait.lang.analysis.names import detect_profile

if TYPE_CHECKING:
    from plait.core.hints import Final, TypeAlias


Kind: TypeAlias = Literal["workflow", "graph", "directive", "ensemble"]

KINDS: Final[tuple[Kind, ...]] = ("workflow", "graph", "directive", "ensemble")

MARKDOWN: Final = (".md", ".markdown")

_BY_PROFILE: Final[dict[str | None, Kind]] = {
    "workflow": "workflow",
    "graph": "graph",
    "prompt": "ensemble",
}

_FORMS: Final[dict[Kind, str]] = {"workflow": "flow", "graph": "graph", "ensemble": "ensemble"}

KIND_HELP: Final = (
    "a workflow has steps:, or setup:, map: and reduce:; a graph has start: and nodes:; "
    "an ensemble has tasks:; a directive is a Markdown file"
)


def kind_of_file(path: str) -> Kind:
    """What a file holds, by its name and shape; one that cannot be read, or is no flow, is an
    InputError.
    """
    return "directive" if path.endswith(MARKDOWN) else detect_kind(documents.load(path), path)


def detect_kind(document: nodes.Node, path: str) -> Kind:
    """What a document is, or is meant to be."""
    profile = detect_profile(document)
    kind = _BY_PROFILE.get(profile) or (likely_kind(document) if profile is None else None)
    if kind is not None:
        return kind
    if profile == "config":
        what, fix = (
            "this file is a tool, and no flow",
            "plait call ID calls a tool; plait tools lists them",
        )
    else:
        what, fix = "this file is no flow", KIND_HELP
    raise InputError(what, path, fix, code="no-flow")


def likely_kind(document: nodes.Node) -> Kind | None:
    """The kind that has most of its fields, misspelt ones included; None: it has none of any."""
    if isinstance(document, nodes.Sequence):
        return "workflow" if document.items else None
    if not isinstance(document, nodes.Mapping):
        return None
    keys = [str(key.value) for key, _ in document.entries]
    fits = {kind: _fit(keys, form) for kind, form in _FORMS.items()}
    best = max(fits, key=lambda kind: fits[kind])
    return best if fits[best] else None


def _fit(keys: list[str], form: str) -> int:
    """Two for a field, one for what looks like one."""
    fields = format.fields_by_spelling(form)
    return sum(2 if key in fields else 1 if closest_name(key, fields) else 0 for key in keys)
