"""Find everything that is wrong with a file before anything runs.

Nothing is filled or started.  An `error` would fail or mislead a run; a `warning` works but
deserves a look; a `note` says what was not checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from plait import schema
from plait.agents.providers.file_check import file_problems
from plait.core import documents
from plait.core.errors import InputError, PlaitError, Problem, with_article
from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import find_templates
from plait.lang.analysis.templates import check_template, overlap
from plait.lang.findings import Finding, from_format, sort_findings
from plait.lang.flow_text import MARKDOWN, FlowText
from plait.lang.foreign_files import foreign_problem
from plait.lang.languages import (
    KIND_HELP,
    LANGUAGES,
    is_meant_as_flow,
    language_by_shape,
    likely_language,
)
from plait.lang.workflow.check import check_workflow
from plait.lang.workflow.compose import compose_alone
from plait.tools.headers import says_anything
from plait.tools.spaces import EXTENSIONS
from plait.tools.trust.decisions import require_valid_settings

Around: TypeAlias = Callable[[str, str | None, documents.Node | None], Iterable[Finding]]
"""Checks the tools and providers that a file names, by its path, kind and document.

`app` provides it, because it knows where they are. For the file of a tool, it checks the whole
tool.
"""

YAML: Final = (".yaml", ".yml")
SKIPPED_FOLDERS: Final = frozenset({"node_modules", "__pycache__"})
"""Folders that hold no flows; hidden ones other than `.ai` are skipped, too."""


def check_file(
    path: str,
    *,
    kind: str | None = None,
    profile: str | None = None,
    names: Iterable[str] = (),
    project: str | None = None,
    must_be_flow: bool = False,
    around: Around | None = None,
) -> list[Finding]:
    """All findings of a file and of the files that it extends or imports, sorted by place.

    `kind`: None: its place or shape decides. `profile`: check only its templates, by this
    profile. `must_be_flow`: the file should be a flow, so one without the shape of a language
    is compared with the most likely language. `around` checks the tools and providers that it
    names.
    """
    kind = kind or (kind_by_place(path) if profile is None else None)
    if kind == "tool" and not path.endswith(YAML):
        return sort_findings(around(path, kind, None) if around else ())
    try:
        source = FlowText.read(path)
        if kind == "directive":
            found = LANGUAGES["directive"].check(source)
            return sort_findings([*found, *(around(path, kind, None) if around else ())])
        read = documents.parse_partial(source.text, path)
        document = read.node or documents.parse("", path)
        source = FlowText(source.text, path, document=document)
        if kind is None and read.problems and must_be_flow:
            foreign = foreign_problem(path, source.text, None)
            if foreign is not None:  # YAML problems of such a file do not matter
                return [Finding(foreign)]
        if read.node is None and read.problems:
            found = []
        elif kind is None:
            found = _of_file(source, profile, names, project, must_be_flow=must_be_flow)
        else:
            found = _of_kind(kind, source, names, project)
        if around is not None and read.node is not None and profile is None:
            found += around(path, kind, read.node)
    except PlaitError as error:
        return [Finding(problem) for problem in error.problems]
    kept = [finding for finding in found if not _follows(finding, read)]
    return sort_findings([*map(Finding, read.problems), *kept])


FILE_KINDS: Final = (*LANGUAGES, "tool", "hooks", "provider")


def kind_by_place(path: str) -> str | None:
    """The kind of a file by its path; None: its shape decides."""
    if path.endswith(MARKDOWN):
        return "directive"
    folders, name = os.path.split(os.path.abspath(path))
    above, folder = os.path.split(folders)
    if folder == "providers" and os.path.basename(above) in ("config", "system"):
        return "provider"
    if f"{os.sep}.ai{os.sep}tools{os.sep}" in os.path.join(folders, ""):
        return "tool"
    return {("config", "hooks.yaml"): "hooks", (".ai", "plait.yaml"): "settings"}.get(
        (folder, name)
    )


def _of_kind(
    kind: str, source: FlowText, names: Iterable[str], project: str | None
) -> list[Finding]:
    """All findings of a file of this kind, whatever its shape."""
    document = source.document
    match kind:
        case "provider":
            return [Finding(problem) for problem in file_problems(document)]
        case "hooks":
            from plait.lang.hooks import check_hooks_file

            return check_hooks_file(document, space=_hook_space(source.path))
        case "settings":
            return _of_settings(document)
        case "tool":  # a tool may be a flow, too
            return _of_document(source, detect_profile(document) or "config", names, project)
    language = LANGUAGES[kind]
    if detect_profile(document) == language.profile:
        return language.check(source, names=names, project=project)
    found = [from_format(problem) for problem in schema.validate(document, language.form)]
    what = f"this file does not look like {with_article(kind)}"
    problem = Problem(what, source.path, f"write {language.marks}", code="no-flow")
    return found or [Finding(problem)]


def _of_settings(document: documents.Node) -> list[Finding]:
    if isinstance(document, documents.Mapping):
        try:
            require_valid_settings(document)
        except PlaitError as error:
            return [Finding(problem) for problem in error.problems]
    return []


def _hook_space(path: str) -> str:
    """The space whose hooks a file holds."""
    own = os.path.join(os.path.expanduser("~"), ".ai", "config")
    folder = os.path.dirname(os.path.abspath(path))
    return (
        "project"
        if folder != own and os.path.basename(os.path.dirname(folder)) == ".ai"
        else "user"
    )


def _of_file(
    source: FlowText,
    profile: str | None,
    names: Iterable[str],
    project: str | None,
    *,
    must_be_flow: bool,
) -> list[Finding]:
    document, path = source.document, source.path
    if profile is None and detect_profile(document) is None:
        from plait.lang.hooks import check_hooks_file, is_hooks_file

        if is_hooks_file(document):
            return check_hooks_file(document, space=_hook_space(path))
        if _is_recording(document):
            return []  # recorded turns: any data is fine
        foreign = foreign_problem(path, source.text, document) if must_be_flow else None
        if foreign is not None:
            return [Finding(foreign)]
        must_be_flow = must_be_flow or is_meant_as_flow(document)
        language = likely_language(document) if must_be_flow else None
        if language is not None and (wrong := schema.validate(document, language.form)):
            return [from_format(problem) for problem in wrong]
        if must_be_flow and language is None:
            return [Finding(Problem("this file is not a flow", path, KIND_HELP, code="no-flow"))]
    return _of_document(source, profile, names, project)


def _is_recording(document: documents.Node) -> bool:
    """A list of recorded turns, for the replay provider."""
    items = document.items if isinstance(document, documents.Sequence) else ()
    return bool(items) and all(
        isinstance(one, documents.Mapping) and one.get("answer") for one in items
    )


def _of_document(
    source: FlowText, profile: str | None, names: Iterable[str], project: str | None
) -> list[Finding]:
    if (profile or detect_profile(source.document)) == "workflow":
        return LANGUAGES["workflow"].check(source, names=names, project=project)
    return check_document(source.document, source.path, profile=profile, names=names)


ABOUT_THE_REST: Final = frozenset({
    "missing-field", "unknown-name", "unknown-input", "unknown-parameter", "unknown-block", "missing-with",
    "misplaced-field", "wrong-phases", "no-profile", "no-steps",
})  # fmt: skip
"""Findings that may be wrong if a part of the file could not be read."""


def _follows(finding: Finding, read: documents.PartialDocument) -> bool:
    """Does the finding only follow from a part that could not be read?"""
    if not read.problems:
        return False
    if finding.code in ("no-profile", "no-flow") or (
        not read.whole and finding.code in ABOUT_THE_REST
    ):
        return True
    return any(
        problem.code != "duplicate-key" and overlap(problem.where, finding.problem.where)
        for problem in read.problems
    )


def check_document(
    document: documents.Node, name: str, *, profile: str | None = None, names: Iterable[str] = ()
) -> list[Finding]:
    """All findings of one document; of a workflow, without the files that it extends."""
    profile = profile or detect_profile(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows, so its templates are not checked"
        fix = f"name its kind: plait check --kind {'|'.join(FILE_KINDS)}"
        return [Finding(Problem(what, name, fix, code="no-profile"), "note")]
    if profile == "workflow":
        return check_workflow(compose_alone(document), names=names)
    language = language_by_shape(document)
    if language is not None and language.profile == profile:
        return language.check(FlowText("", name, document=document), names=names)
    fields = find_templates(document, profile, names=names).fields
    return sort_findings(finding for field in fields for finding in check_template(field, profile))


# ── files ────────────────────────────────────────────────────────────────


def flow_files(paths: Sequence[str]) -> list[str]:
    """The given files, and below directories every YAML file, directive and tool."""
    found: list[str] = []
    for path in paths:
        below = sorted(_below(path)) if os.path.isdir(path) else [path]
        if not below:
            what = "there is no YAML file and no directive below this directory"
            raise InputError(what, path, "name a file", code="no-file")
        found += below
    return list(dict.fromkeys(found))


def _below(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and (name == ".ai" or not name.startswith("."))
        ]
        for name in files:
            path = os.path.join(folder, name)
            # A file without a header beside tools may be a part of a tool.
            if (
                name.endswith(YAML)
                or (name.endswith(MARKDOWN) and _is_directive(path))
                or (
                    name.endswith(EXTENSIONS)
                    and kind_by_place(path) == "tool"
                    and says_anything(path)
                )
            ):
                yield path


_OF_DIRECTIVES: Final = lazy_pattern(
    r"^(?:inputs|outputs|permissions|limits|provider|model|actions|hooks):", re.MULTILINE
)
MOST_OF_A_HEAD: Final = 8192


def _is_directive(path: str) -> bool:
    """Is the file in a folder of directives, or does it have the head of one? Most Markdown
    files are not directives.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return looks_like_directive(path, file.read(MOST_OF_A_HEAD))
    except OSError:
        return _is_with_directives(path)


def _is_with_directives(path: str) -> bool:
    return f"{os.sep}.ai{os.sep}directives{os.sep}" in os.path.abspath(path)


def looks_like_directive(path: str, begin: str) -> bool:
    """Is a Markdown file a directive, by its folder or by the beginning of its text?"""
    if _is_with_directives(path):
        return True
    if begin.startswith("---"):
        return _OF_DIRECTIVES.search(begin.partition("\n---")[0]) is not None
    return "```xml\n<directive" in begin
