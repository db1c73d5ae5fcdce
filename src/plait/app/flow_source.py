"""The source of a run: its flow file, its options and its project, also when a run is resumed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from plait.core.errors import InputError, JournalError, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.projects import project_of_file
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Secret
from plait.engine.run_text import RunText

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.lang.loaded import LoadedFlow
    from plait.tools.trust.decisions import AskTrust


CHAT: Final = "chat"
"""The kind of a run that is a chat with a directive."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run; they are recorded with the run, so a resume uses the same."""

    inputs: Mapping[str, Json] = field(default_factory=dict)
    strict: bool | None = None
    max_parallel: int | None = None
    profile: str | None = None
    backend: str | None = None
    """None: the backend that the flow names."""
    keep_going: bool = False
    """A failed item of a map stops no other one, whatever the file says."""

    def record(self) -> dict[str, Json]:
        return {
            "inputs": dict(self.inputs),
            "strict": self.strict,
            "max_parallel": self.max_parallel,
            "profile": self.profile,
            "backend": self.backend,
            "keep_going": self.keep_going,
        }


class FlowSource:
    """A flow file, its options and its project."""

    def __init__(
        self, path: str, options: Options, project: str | None, *, tool: str | None = None
    ) -> None:
        self.path = path
        self.options = options
        self.tool = tool
        """Its id, if it was called as a tool: then its trust is checked before the file is read."""
        self.project = os.path.abspath(project) if project else project_of_file(path)
        self.started = time.strftime("%Y-%m-%dT%H:%M:%S%z")

    @classmethod
    def of(
        cls,
        opened: OpenRun,
        max_parallel: int | None,
        file: str | None = None,
        *,
        backend: str | None = None,
        keep_going: bool = False,
        inputs: Mapping[str, Json] | None = None,
    ) -> FlowSource:
        facts = opened.facts
        if not {"file", "project"} <= facts.keys():
            raise JournalError(
                f"run {opened.id} does not say which file and project it is of, so its journal is "
                "damaged",
                opened.folder,
                "restore its folder from a backup, or remove it and run the flow again",
                code="damaged",
            )
        if facts.get("python"):
            raise InputError(
                f"run {opened.id} was begun by a program in Python, and only that can resume it",
                fix=f"there: ensemble.run(resume='{opened.id}')",
                code="made-in-python",
            )
        if facts.get("kind") == CHAT:
            raise InputError(
                f"run {opened.id} is a chat, which cannot be resumed",
                fix=f"plait show {opened.id} shows it; plait chat FILE begins a new one",
                code="is-chat",
            )
        recorded = facts.get("options")
        known = Options().record()
        kept = (
            {name: recorded[name] for name in recorded if name in known}
            if isinstance(recorded, Mapping)
            else {}
        )
        if max_parallel is not None:
            kept["max_parallel"] = max_parallel
        if backend is not None:
            kept["backend"] = backend
        if keep_going:
            kept["keep_going"] = True
        kept["inputs"] = {**(kept.get("inputs") or {}), **_read_secret_inputs(opened, inputs or {})}
        path, project = place_now(str(facts["file"]), _project_then(opened), opened.project)
        tool = facts.get("tool")
        called = tool if isinstance(tool, str) and not file else None
        flow = cls(os.path.abspath(file) if file else path, Options(**kept), project, tool=called)
        flow.started = str(facts.get("started", ""))
        return flow

    def load(self, *, lenient: bool = False, ask: AskTrust | None = None) -> LoadedFlow:
        from plait.app.hooks import add_space_hooks

        loaded = self._load(lenient=lenient, ask=ask)
        return add_space_hooks(loaded, self.project, ask, running=not lenient)

    def _load(self, *, lenient: bool, ask: AskTrust | None) -> LoadedFlow:
        from plait.lang.flow_text import FlowText
        from plait.lang.load import load_flow
        from plait.lang.loaded import LoadOptions

        options = self.options
        if self.tool is not None:
            return self._load_tool(self.tool, lenient=lenient, ask=ask)
        how = LoadOptions(
            self.project,
            profile=options.profile,
            strict=options.strict,
            lenient=lenient,
            max_parallel=options.max_parallel,
            keep_going=options.keep_going,
            environ=os.environ,
        )
        return load_flow(FlowText.read(self.path), options.inputs, how)

    def _load_tool(self, tool_id: str, *, lenient: bool, ask: AskTrust | None) -> LoadedFlow:
        from plait.app.subflows import load_tool
        from plait.app.toolbox import toolbox

        loaded = load_tool(
            toolbox(self.project, ask=ask),
            tool_id,
            self.options.inputs,
            project=self.project,
            running=not lenient,
            strict=False if lenient else self.options.strict,
            max_parallel=self.options.max_parallel,
        )
        if loaded is None:
            raise InputError(
                f"'{tool_id}' is not a flow any more",
                self.path,
                "begin a new run",
                code="not-a-flow",
            )
        return loaded

    def facts(self, loaded: LoadedFlow) -> dict[str, Json]:
        # A secret is never stored with a run, so a resume needs it again.
        given = self.options.inputs
        withheld = sorted(_with_secrets(given, loaded))
        kept = {name: value for name, value in given.items() if name not in withheld}
        return {
            **self.source(loaded),
            "started": self.started,
            "options": replace(self.options, inputs=kept).record(),
            **({"secret_inputs": withheld} if withheld else {}),
            "env_files": _env_digest(loaded.environment.filed),
            "text": RunText.of(loaded.program.children).to_fact(),
        }

    def source(self, loaded: LoadedFlow) -> dict[str, Json]:
        """Return the facts that say which flow a run is of."""
        return {
            "tool": self.tool,
            "kind": loaded.program.kind,
            "flow": loaded.program.name,
            "file": self.path,
            "project": self.project,
        }


def keep_backend(opened: OpenRun, backend: str | None) -> None:
    """Record another backend, so that later resumes use it, too."""
    options = opened.facts.get("options")
    if backend is not None and isinstance(options, Mapping) and options.get("backend") != backend:
        opened.update_facts(options={**options, "backend": backend})


def require_worktrees_in_place(flow: FlowSource, loaded: LoadedFlow, opened: OpenRun) -> None:
    """Raise InputError if a project with worktrees was moved: git knows the old paths."""
    before, map_step = _project_then(opened), loaded.program.map
    is_isolated = (
        map_step is not None
        and map_step.isolation is not None
        and opened.journal.was_ever_started(map_step.name)
    )
    if flow.project == before or not is_isolated:
        return
    back = f"move the project back to {before}"
    if os.path.isdir(os.path.join(before, os.path.relpath(opened.folder, opened.project))):
        back = f"resume it there: --project {before}"
    raise InputError(
        f"run {opened.id} was begun in {before}, and the worktrees of its items are there",
        fix=f"{back}; or begin a new run here",
        code="moved",
    )


def _project_then(opened: OpenRun) -> str:
    """Return the path of the project at the start of the run."""
    project = str(opened.facts["project"])
    return project if os.path.isabs(project) else opened.project


def place_now(file: str, project: str, now: str) -> tuple[str, str]:
    """Return the present paths of a flow and its project, which may have been moved."""
    if os.path.realpath(project) == os.path.realpath(now):
        return file, project
    inside = os.path.relpath(file, project)
    return (file if inside.startswith(os.pardir) else os.path.join(now, inside)), now


def _with_secrets(given: Mapping[str, Json], loaded: LoadedFlow) -> Iterator[str]:
    """Yield the names of inputs that are declared secret, or contain a declared secret."""
    from plait.core.masking import Masker, mask_value

    mask = Masker(loaded.secret_texts()).mask
    for name, value in given.items():
        if isinstance(loaded.parameters.get(name), Secret) or mask_value(value, mask) != value:
            yield name


def _env_digest(variables: Mapping[str, str]) -> dict[str, Json]:
    if not variables:
        return {}
    from plait.app.env_digest import env_digest

    return env_digest(variables)


INPUT_ENV_PREFIX: Final = "PLAIT_INPUT_"
"""The prefix of the environment variable from which a resume takes a secret input."""


def _read_secret_inputs(opened: OpenRun, inputs: Mapping[str, Json]) -> dict[str, Json]:
    """Return the secret inputs for a resume; InputError if some are missing or others are given."""
    recorded = opened.facts.get("secret_inputs")
    withheld = [str(name) for name in recorded] if isinstance(recorded, list) else []
    others = [name for name in inputs if name not in withheld]
    if others:
        what = f"run {opened.id} has its inputs already: {format_names(others)}"
        raise InputError(
            what, fix="begin a new run with other inputs: plait run …", code="input-kept"
        )
    from_env = {
        name: os.environ[INPUT_ENV_PREFIX + name]
        for name in withheld
        if INPUT_ENV_PREFIX + name in os.environ
    }
    given = {**from_env, **inputs}
    missing = [name for name in withheld if name not in given]
    if missing:
        variables = " ".join(f"{INPUT_ENV_PREFIX}{name}=…" for name in missing)
        raise InputError(
            f"run {opened.id} was given secrets, which are not kept with it: "
            f"{format_names(missing)}",
            fix=f"give them again: {variables} plait resume {opened.id}",
            code="secret-input",
        )
    return given


def find_flow(path: str, options: Options, project: str | None) -> FlowSource:
    """Return the flow in a file; or, if there is no such file, the directive with that id."""
    from plait.agents.permissions import DIRECTIVE, normalize_tool_id

    wanted = normalize_tool_id(DIRECTIVE + path.removeprefix(DIRECTIVE))
    if os.path.lexists(path) or wanted is None:
        return FlowSource(os.path.abspath(path), options, project)
    from plait.app.toolbox import toolbox
    from plait.tools.spaces import DIRECTIVES

    spaces = toolbox(project).spaces
    found = spaces.find(wanted.removeprefix(DIRECTIVE), folder=DIRECTIVES)
    if found is None:
        if path.startswith(DIRECTIVE):
            raise spaces.missing_error(path.removeprefix(DIRECTIVE), folder=DIRECTIVES)
        return FlowSource(os.path.abspath(path), options, project)
    return FlowSource(found.path, options, spaces.project or os.getcwd(), tool=wanted)
