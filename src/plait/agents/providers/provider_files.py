"""Find the file of a provider by its name, and check that it may be used.

    project   <project>/.ai/config/providers/NAME.yaml
    user      <user space>/config/providers/NAME.yaml
    system    providers/NAME.yaml of the installation, and of bundles

A file decides which host gets a key. So it needs trust like a tool, together with all files that
it extends: a file of a project counts only if you trust the project, or the key that signed the
file. Its variables are those of the environment in which Plait was started, not those of a flow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock

from plait.agents.messages import NAME_A_PROVIDER
from plait.agents.providers.file_check import file_problems
from plait.agents.providers.spec import Spec, read_spec
from plait.agents.providers.structured import Model, StructuredProvider
from plait.core import documents
from plait.core.digests import sha256_hex
from plait.core.documents.nodes import Mapping as MappingNode
from plait.core.documents.nodes import Node, Scalar
from plait.core.errors import InputError, PlaitError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.safe_files import read_below
from plait.schema.provider_tables import PROVIDER_NAME
from plait.template.sinks import render_text
from plait.tools.spaces import Space, Spaces
from plait.tools.tool_file import Header, ToolFile

if TYPE_CHECKING:
    from plait.agents.providers.client import Open
    from plait.tools.trust.decisions import Trust

CHOICE: Final = "PLAIT_PROVIDER"
"""The environment variable that names the provider if a flow names none."""
DEFAULT: Final = "default"
"""The provider that is used if neither the flow nor the environment names one."""


class Providers:
    """The providers of a project, each made once."""

    def __init__(
        self, spaces: Spaces, trust: Trust, open: Open, *, environ: Mapping[str, str], project: str
    ) -> None:
        self._spaces = spaces
        self._trust = trust
        self._open = open
        self._environ = environ
        self._project = project
        self._made: dict[str, StructuredProvider] = {}
        self._lock = Lock()

    def get(self, name: str | None) -> StructuredProvider | None:
        """The provider of that name, or the default one. None if neither is configured."""
        named = name or self._environ.get(CHOICE) or ""
        if not named and not _files(DEFAULT, self._spaces):
            return None
        with self._lock:
            wanted = named or DEFAULT
            if wanted not in self._made:
                self._made[wanted] = StructuredProvider(self._model(wanted))
            return self._made[wanted]

    def _model(self, name: str, *, recording: tuple[str, ...] = ()) -> Model:
        spec = self._spec(name)
        if spec.family != "replay":
            from plait.agents.providers.client import HttpModel

            return HttpModel(spec, self._open, environ=self._environ)
        from plait.agents.providers.recordings import RecordedModel, RecordingModel

        path = os.path.join(self._project, render_text(spec.file, {}, env=self._environ))
        if spec.record is None:
            return RecordedModel(name, path, spec.match)
        if spec.record in (name, *recording):
            raise InputError(
                f"the provider '{name}' records itself", fix="record another one", code="circle"
            )
        inner = self._model(spec.record, recording=(name, *recording))
        return RecordingModel(name, path, inner, mask=getattr(inner, "mask", str))

    def _spec(self, name: str) -> Spec:
        layers = list(_layers(name, self._spaces))
        self._trust.require([item for item, _ in layers])
        if wrong := [problem for _, node in layers for problem in file_problems(node)]:
            raise InputError.together(wrong)
        return read_spec(
            name, documents.merge([node for _, node in reversed(layers)]), self._environ
        )


def provider_problems(
    name: str | None, spaces: Spaces, environ: Mapping[str, str]
) -> Sequence[Problem]:
    """Why a provider cannot be used, as far as its files show. Never asks for trust."""
    named = name or environ.get(CHOICE) or ""
    if not named and not _files(DEFAULT, spaces):
        what = "no model provider is configured"
        return (Problem(what, fix=NAME_A_PROVIDER, code="no-provider"),)
    try:
        layers = list(_layers(named or DEFAULT, spaces))
    except PlaitError as error:
        return error.problems
    return [problem for _, node in layers for problem in file_problems(node)]


def extends_problems(path: str, node: Node, spaces: Spaces) -> Sequence[Problem]:
    """The problems of the `extends` of a provider file."""
    extends = _extends_field(node)
    if extends is None:
        return ()
    name = os.path.basename(path).removesuffix(".yaml")
    own = {one.path for one in _files(name, spaces) if os.path.samefile(one.path, path)}
    try:
        for _ in _layers(str(extends.value), spaces, seen=own, where=extends):
            pass
    except PlaitError as error:
        return error.problems
    return ()


def names(spaces: Spaces) -> list[str]:
    """The names of all providers."""
    found: set[str] = set()
    for space in spaces.all:
        folder = os.path.join(space.root, _folder(space))
        if os.path.isdir(folder):
            found |= {
                name.removesuffix(".yaml") for name in os.listdir(folder) if name.endswith(".yaml")
            }
    return sorted(found)


def _layers(
    name: str, spaces: Spaces, *, seen: Collection[str] = (), where: Scalar | None = None
) -> Iterator[tuple[ToolFile, Node]]:
    """The file of a provider, the one that it extends, and so on.

    `seen` are files that led to this name, `where` is the field that holds it.
    """
    seen = set(seen)
    while True:
        # A file that extends its own name extends the file that it hides.
        item = next((one for one in _files(name, spaces) if one.path not in seen), None)
        if item is None:
            raise _missing_provider_error(name, spaces, where, circular=bool(_files(name, spaces)))
        seen.add(item.path)
        node = documents.parse(item.data.decode("utf-8", "surrogateescape"), item.path)
        yield item, node
        where = _extends_field(node)
        if where is None:
            return
        name = str(where.value)


def _extends_field(node: Node) -> Scalar | None:
    found = node.get("extends") if isinstance(node, MappingNode) else None
    return found if isinstance(found, Scalar) and isinstance(found.value, str) else None


def _files(name: str, spaces: Spaces) -> list[ToolFile]:
    """The files of that name; the first one is used."""
    if not re.fullmatch(PROVIDER_NAME.pattern, name):
        return []
    found = (_file(space, name) for space in spaces.all)
    return [item for item in found if item is not None]


def _file(space: Space, name: str) -> ToolFile | None:
    relative = f"{_folder(space)}/{name}.yaml"
    contents = read_below(space.root, relative)
    if contents is None:
        return None
    data = contents[0]
    stem = relative.removesuffix(".yaml")
    return ToolFile(
        "config", stem, space, os.path.join(space.root, relative), data, sha256_hex(data), Header()
    )


def _folder(space: Space) -> str:
    return "providers" if space.name == "system" else "config/providers"


def _missing_provider_error(
    name: str, spaces: Spaces, extends: Scalar | None, *, circular: bool
) -> InputError:
    where = None if extends is None else extends.span
    if circular:
        return InputError(
            f"the provider '{name}' extends itself", where, "extend another one", code="circle"
        )
    known = names(spaces)
    guess = closest_name(name, known)
    return InputError(
        f"there is no provider '{name}'",
        where,
        (f"did you mean '{guess}'? " if guess else "")
        + f"there are {format_names(known)}; or write .ai/config/providers/{name}.yaml",
        code="unknown-provider",
    )
