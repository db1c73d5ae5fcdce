"""The four languages of flow files: how each is recognised, read and checked.

    *.md                                   a directive
    a map with `nodes` and `start`         a graph, also below `config` of a tool
    a map with `tasks`                     an ensemble
    a map with `steps` or phases, a list   a workflow

A file that has none of these shapes counts as the language whose fields it has.  If it has none of
those either, the error says what each language looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import DocumentError, InputError, PlaitError, closest_name
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.lang.analysis.names import detect_profile
from plait.lang.flow_text import MARKDOWN, FlowText, Kind

if TYPE_CHECKING:
    from plait.core.hints import Final, Protocol
    from plait.core.values import Json
    from plait.lang.findings import Finding
    from plait.lang.loaded import LoadedFlow, LoadOptions
    from plait.lang.parameters import Parameter

    class FlowFile(Protocol):
        """A file that was read and has no problems."""

        @property
        def parameters(self) -> Mapping[str, Parameter]: ...

        def compile(self, inputs: Mapping[str, Json], options: LoadOptions) -> LoadedFlow:
            """Return the program with its inputs; raise InputError with all problems of
            the inputs.
            """

    class Reader(Protocol):
        def read_flow(self, source: FlowText, project: str | None) -> FlowFile: ...

    class Checker(Protocol):
        def check_flow(
            self, source: FlowText, names: Iterable[str], project: str | None
        ) -> list[Finding]: ...


@dataclass(frozen=True, slots=True)
class Language:
    """One language.  Its modules are loaded when a file is read or checked, not before."""

    kind: Kind
    profile: str
    """The name that `detect_profile` returns for its documents; each language has its own."""
    table: str
    """The schema of its outermost map."""
    marks: str
    """The marks by which a file of this language is recognised, for messages."""

    @property
    def form(self) -> schema.Kind:
        """The schema of a whole file."""
        return schema.FILES[self.kind]

    def read(self, source: FlowText, project: str | None = None) -> FlowFile:
        """What the file declares; InputError with every problem that `check` calls an error."""
        return _reader(self.kind).read_flow(source, project)

    def check(
        self, source: FlowText, *, names: Iterable[str] = (), project: str | None = None
    ) -> list[Finding]:
        """All findings, sorted by place; `names` are known everywhere in the file."""
        return _checker(self.kind).check_flow(source, names, project)


def _reader(kind: Kind) -> Reader:
    match kind:
        case "workflow":
            from plait.lang.workflow import read as workflow

            return workflow
        case "graph":
            from plait.lang.graph import read as graph

            return graph
        case "directive":
            from plait.lang.directive import read as directive

            return directive
        case "ensemble":
            from plait.lang.ensemble import compile as ensemble

            return ensemble


def _checker(kind: Kind) -> Checker:
    match kind:
        case "workflow":
            from plait.lang.workflow import check as workflow

            return workflow
        case "graph":
            from plait.lang.graph import check as graph

            return graph
        case "directive":
            from plait.lang.directive import read as directive

            return directive
        case "ensemble":
            from plait.lang.ensemble import check as ensemble

            return ensemble


LANGUAGES: Final[dict[str, Language]] = {
    "workflow": Language("workflow", "workflow", "flow", "steps:"),
    "graph": Language("graph", "graph", "graph", "start: and nodes:"),
    "directive": Language("directive", "directive", "directive", "a prompt"),
    "ensemble": Language("ensemble", "prompt", "ensemble", "tasks:"),
}
_BY_PROFILE: Final = {language.profile: language for language in LANGUAGES.values()}

KIND_HELP: Final = (
    "a workflow has steps:, or setup:, map: and reduce:; a graph has start: and nodes:; "
    "an ensemble has tasks:; a directive is a Markdown file"
)


def detect_language(source: FlowText) -> Language:
    """The language of a flow; InputError if it is not one."""
    if source.kind is not None:
        return LANGUAGES[source.kind]
    if source.path.endswith(MARKDOWN):
        return LANGUAGES["directive"]
    try:
        document = source.document
    except DocumentError as error:
        raise _foreign_error(source, None) or error from None
    profile = detect_profile(document)
    if profile == "config":
        what, fix = (
            "this file is a tool, not a flow",
            "plait call ID calls a tool; plait tools lists them",
        )
        raise InputError(what, source.path, fix, code="no-flow")
    if (language := language_by_shape(document)) is not None:
        return language
    if (foreign := _foreign_error(source, document)) is not None:
        raise foreign
    if (language := likely_language(document)) is None:
        raise InputError("this file is not a flow", source.path, KIND_HELP, code="no-flow")
    return language


def require_own_file(source: FlowText) -> None:
    """Raise an error that names the other system if the file belongs to one."""
    try:
        document = source.document
    except DocumentError as error:
        raise _foreign_error(source, None) or error from None
    is_ours = detect_profile(document) is not None
    if not is_ours and (foreign := _foreign_error(source, document)) is not None:
        raise foreign


def _foreign_error(source: FlowText, document: nodes.Node | None) -> PlaitError | None:
    """The error for a file of another system."""
    from plait.lang.foreign_files import foreign_problem

    problem = foreign_problem(source.path, source.text, document)
    return None if problem is None else InputError.together([problem])


def language_by_shape(document: nodes.Node) -> Language | None:
    """The language whose shape a document has."""
    return _BY_PROFILE.get(detect_profile(document) or "")


def likely_language(document: nodes.Node) -> Language | None:
    """The language with most of the document's fields, misspelt ones included; None if it has
    no known field.
    """
    if isinstance(document, nodes.Sequence):
        return LANGUAGES["workflow"] if document.items else None
    if not isinstance(document, nodes.Mapping):
        return None
    keys = [str(key.value) for key, _ in document.entries]
    in_yaml = [language for language in LANGUAGES.values() if language.kind != "directive"]
    fits = {language.kind: _fit(keys, language.table) for language in in_yaml}
    best = max(fits, key=lambda kind: fits[kind])
    return LANGUAGES[best] if fits[best] else None


def is_meant_as_flow(document: nodes.Node) -> bool:
    """Is a document without the shape of a language clearly meant as one?

    It is if a list in it has steps, or if the key of its list or map is a misspelt one of ours.
    Other YAML files are ignored.
    """
    if isinstance(document, nodes.Sequence):
        return _has_step(document)
    if not isinstance(document, nodes.Mapping):
        return False
    return any(
        _has_step(value)
        or (
            _holds_maps(value)
            and closest_name(str(key.value), _FLOW_KEYS, cutoff=0.75) not in (None, key.value)
        )
        for key, value in document.entries
    )


_FLOW_KEYS: Final = ("steps", "commands", "setup", "map", "reduce", "merge", "nodes", "tasks")


def _has_step(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Sequence) and any(
        isinstance(item, nodes.Mapping) and bool(item.get("shell") or item.get("tool"))
        for item in node.items
    )


def _holds_maps(node: nodes.Node) -> bool:
    match node:
        case nodes.Sequence(items=items):
            return any(isinstance(item, nodes.Mapping) for item in items)
        case nodes.Mapping(entries=entries):
            return any(isinstance(value, nodes.Mapping | nodes.Sequence) for _, value in entries)
    return False


def _fit(keys: list[str], table: str) -> int:
    """The score of a table: two points for a field, one for a misspelt field."""
    fields = schema.fields_by_spelling(table)
    return sum(2 if key in fields else 1 if closest_name(key, fields) else 0 for key in keys)
