"""Compose a workflow of several files: `extends`, `imports` and `blocks`.

    extends: base.yaml               maps are merged, lists and plain values replaced; later files
    win
    imports: [{path: lib.yaml, alias: lib}]
    blocks: {test: [{shell: make test}]}
    steps: [{use: test}, {use: lib.lint, with: {folder: src}}]

Every leaf keeps its file and line.  A block knows the blocks of its own file.  Files are found only
below the project.  Files or blocks that lead back to themselves are reported as a chain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many

from plait import schema
from plait.core import documents
from plait.core.documents.files import unsaved_text
from plait.core.documents.nodes import Mapping, Node, Scalar, Sequence
from plait.core.errors import (
    InputError,
    LimitError,
    PlaitError,
    Problem,
    closest_name,
    format_names,
)
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.core.safe_files import read_below
from plait.core.source import Span

MAX_FILES: Final = 100
"""The limit for files of one flow."""
MAX_STEPS: Final = 10_000
"""The limit for steps of a flow when every `use` is expanded."""
MAX_DEPTH: Final = 32
"""The limit for blocks that use each other."""

ReadFile = Callable[[str], documents.PartialDocument]
"""Reads the document at a path below the project, as far as it can be read."""


# ── blocks ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Steps with a name, and the file whose blocks they know."""

    name: str
    steps: tuple[Node, ...]
    needs: tuple[str, ...]
    """Names that a step must pass in `with`."""
    home: Blocks
    span: Span


@dataclass(slots=True, eq=False)
class Blocks:
    """The blocks that the steps of a file can use, by their names in that file."""

    own: dict[str, Block] = field(default_factory=dict)
    imported: dict[str, Block] = field(default_factory=dict)

    def get(self, name: str) -> Block | None:
        return self.own.get(name) or self.imported.get(name)

    def names(self) -> list[str]:
        return [*self.own, *self.imported]


@dataclass(frozen=True, slots=True)
class ComposedWorkflow:
    """A flow as one document, with its blocks and the problems of composing it."""

    document: Node
    blocks: Blocks
    problems: tuple[Problem, ...] = ()
    whole: bool = True
    """True if all of its files could be read."""
    others: tuple[str, ...] = ()
    """Its other files, by their paths below the project."""

    @property
    def head(self) -> Mapping:
        """The outermost map; a file that is only a list of steps has an empty one."""
        document = self.document
        return document if isinstance(document, Mapping) else Mapping((), document.span)


# ── files ────────────────────────────────────────────────────────────────


def compose(document: Node, path: str, *, project: str | None = None) -> ComposedWorkflow:
    """The flow whose outermost layer is `document`, read from `path`.

    A file that cannot be read is one of its problems.
    """
    root = _root(path, project)
    composer = _Composer(lambda relative: _read_below(root, relative))
    return composer.compose_document(document, os.path.relpath(os.path.realpath(path), root))


def compose_alone(document: Node) -> ComposedWorkflow:
    """Return a document as a flow of its own, without other files."""
    composer = _Composer(None)
    return composer.compose_document(document, "")


def _root(path: str, project: str | None) -> str:
    """The project, or the file's own folder if the file is not in it."""
    folder = os.path.dirname(os.path.realpath(path))
    root = os.path.realpath(project) if project is not None else folder
    return root if os.path.commonpath([root, folder]) == root else folder


def _read_below(root: str, relative: str) -> documents.PartialDocument:
    name = os.path.relpath(os.path.join(root, relative))
    if (shown := unsaved_text(os.path.join(root, relative))) is not None:
        return documents.parse_partial(shown, name)
    found = read_below(root, relative)
    if found is None:
        beside = os.path.dirname(os.path.join(root, relative))
        close = closest_name(
            os.path.basename(relative), os.listdir(beside) if os.path.isdir(beside) else ()
        )
        fix = (
            f"did you mean '{close}'?"
            if close
            else "paths are relative to the file that names them"
        )
        raise InputError(f"there is no file '{name}'", fix=fix, code="no-file")
    return documents.parse_partial(documents.decode_text(found[0], name, drawn=True), name)


class _Composer:
    def __init__(self, read: ReadFile | None) -> None:
        self.read = read
        self.problems: list[Problem] = []
        self.known: dict[str, Blocks] = {}
        self.files: dict[str, Node] = {}
        self.whole = True

    def compose_document(self, document: Node, path: str) -> ComposedWorkflow:
        merged, blocks = self._file(document, path, (path,))
        found = _block_problems(merged, blocks)
        shares = isinstance(document, Mapping) and (
            document.get("imports") or document.get("extends")
        )
        if not self.whole or (self.read is None and shares):
            # Blocks of files that are not read are unknown.
            found = (problem for problem in found if problem.code != "unknown-block")
        self.problems += found
        return ComposedWorkflow(
            merged, blocks, tuple(dict.fromkeys(self.problems)), self.whole, tuple(self.files)
        )

    def _file(self, document: Node, path: str, chain: tuple[str, ...]) -> tuple[Node, Blocks]:
        """The document merged over those that it extends, and its blocks."""
        layers = [(document, path), *self._below(document, path, chain)][::-1]
        merged = documents.merge([layer for layer, _ in layers])
        blocks = Blocks()
        if isinstance(merged, Mapping):
            blocks.own.update(_own_blocks(merged, blocks))
        for layer, place in layers:
            self._import(layer, place, chain, blocks)
        return merged, blocks

    def _below(
        self, document: Node, path: str, chain: tuple[str, ...]
    ) -> Iterator[tuple[Node, str]]:
        """The layers that a file extends, from the nearest to the farthest."""
        extends = document.get("extends") if isinstance(document, Mapping) else None
        while isinstance(extends, Scalar) and isinstance(extends.value, str):
            found = self._other(extends, path, chain)
            if found is None:
                return
            layer, path = found
            if not isinstance(layer, Mapping):
                what = "only a map can be extended, but this file is a list"
                self.problems.append(
                    Problem(what, extends.span, "give its steps a name: steps:", code="extends")
                )
                return
            chain = (*chain, path)
            yield layer, path
            extends = layer.get("extends")

    def _import(self, layer: Node, path: str, chain: tuple[str, ...], blocks: Blocks) -> None:
        imports = layer.get("imports") if isinstance(layer, Mapping) else None
        for entry in imports.items if isinstance(imports, Sequence) else ():
            named = entry.get("path") if isinstance(entry, Mapping) else entry
            if not (isinstance(named, Scalar) and isinstance(named.value, str)):
                continue  # the schema reports it
            found = self._other(named, path, chain)
            if found is not None:
                self._take(entry, named, self._load_blocks(*found, chain), blocks)

    def _load_blocks(self, document: Node, path: str, chain: tuple[str, ...]) -> Blocks:
        known = self.known.get(path)
        if known is None:
            self.problems += schema.validate(document, called=f"'{path}'")
            merged, known = self._file(document, path, (*chain, path))
            self.problems += _block_problems(merged, known)
            self.problems += _check_ignored_keys(merged)
            self.known[path] = known
        return known

    def _take(self, entry: Node, named: Scalar, offered: Blocks, blocks: Blocks) -> None:
        alias = entry.get("alias") if isinstance(entry, Mapping) else None
        only = entry.get("selective") if isinstance(entry, Mapping) else None
        prefix = f"{alias.value}." if isinstance(alias, Scalar) else ""
        wanted = (
            [one for one in only.items if isinstance(one, Scalar)]
            if isinstance(only, Sequence)
            else None
        )
        for one in wanted or ():
            if str(one.value) not in offered.own:
                self.problems.append(_no_block(str(one.value), list(offered.own), one.span))
        if not offered.own:
            what, fix = "this file has no blocks to import", "give it blocks: {name: [steps]}"
            self.problems.append(Problem(what, named.span, fix, code="imports"))
        for name, block in offered.own.items():
            if wanted is not None and name not in {str(one.value) for one in wanted}:
                continue
            other = blocks.get(prefix + name)
            if other is not None and other is not block:
                what, fix = (
                    f"there are two blocks '{prefix}{name}'",
                    "give the import another alias",
                )
                self.problems.append(Problem(what, named.span, fix, code="imports"))
            else:
                blocks.imported[prefix + name] = block

    def _other(self, named: Scalar, path: str, chain: tuple[str, ...]) -> tuple[Node, str] | None:
        """The document of a named file, and its path below the project."""
        if self.read is None:
            return None
        relative = os.path.normpath(os.path.join(os.path.dirname(path), str(named.value)))
        if relative in chain:
            circle = " → ".join([*chain[chain.index(relative) :], relative])
            what = f"these files lead back to themselves: {circle}"
            self.problems.append(Problem(what, named.span, "remove one of them", code="cycle"))
            self.whole = False
            return None
        try:
            return self._document(relative, named.span), relative
        except PlaitError as error:
            placed = [
                p if isinstance(p.where, Span) else Problem(p.what, named.span, p.fix, code=p.code)
                for p in error.problems
            ]
            self.problems += placed
            self.whole = False
            return None

    def _document(self, relative: str, span: Span) -> Node:
        if relative not in self.files:
            if len(self.files) >= MAX_FILES:
                what = f"a flow has at most {MAX_FILES} files"
                raise LimitError(what, span, "merge some of them", code="too-many-files")
            if relative.startswith("..") or os.path.isabs(relative):
                what = "this file is outside the project"
                raise InputError(what, span, "name a file below the project", code="file-outside")
            assert self.read is not None
            read = self.read(relative)
            self.problems += read.problems
            self.whole = self.whole and read.whole
            self.files[relative] = read.node or Scalar(None, span)
        return self.files[relative]


_HERE: Final = "write it in the file that imports it"
_BESIDES: Final = {
    "env": f"give the steps of its blocks an env, or {_HERE}",
    "env_files": _HERE,
    "secrets": _HERE,
    "profiles": _HERE,
    "vars": "pass it where the block is used: with: {NAME: …}",
    "parameters": "pass it where the block is used: with: {NAME: …}",
    "strict": _HERE,
    "hooks": _HERE,
    "limits": _HERE,
}
"""Fields of an imported file that its blocks do not get, and what to do instead."""


def _check_ignored_keys(document: Node) -> Iterator[Problem]:
    """Find fields of an imported file that are ignored: a block has the names of the place that
    uses it.
    """
    for key, value in document.entries if isinstance(document, Mapping) else ():
        if (fix := _BESIDES.get(str(key.value))) is not None:
            first = (
                str(value.entries[0][0].value)
                if isinstance(value, Mapping) and value.entries
                else "name"
            )
            what = f"only the blocks of an imported file are used, not its {key.value}"
            yield Problem(what, key.span, fix.replace("NAME", first), code="imports")


def _own_blocks(document: Mapping, home: Blocks) -> Iterator[tuple[str, Block]]:
    blocks = document.get("blocks")
    for key, value in blocks.entries if isinstance(blocks, Mapping) else ():
        name = str(key.value)
        needs: tuple[str, ...] = ()
        steps: Node | None = value
        if isinstance(value, Mapping):
            steps = value.get("steps") or value.get("commands")
            wanted = value.get("with")
            needs = (
                tuple(str(one.data()) for one in wanted.items)
                if isinstance(wanted, Sequence)
                else ()
            )
        if isinstance(steps, Sequence):
            yield name, Block(name, steps.items, needs, home, key.span)


# ── uses ─────────────────────────────────────────────────────────────────


def block_uses(node: Node) -> Iterator[Mapping]:
    """The steps below a node that use a block, those under `blocks` excluded."""
    match node:
        case Mapping(entries):
            used = node.get("use")
            if isinstance(used, Scalar) and isinstance(used.value, str):
                yield node
            for key, value in entries:
                if key.value not in ("blocks", "params", "with", "env", "vars"):
                    yield from block_uses(value)
        case Sequence(items):
            for item in items:
                yield from block_uses(item)


def _block_problems(document: Node, blocks: Blocks) -> Iterator[Problem]:
    """Uses of blocks that do not exist, lack a name, form a cycle or are too many."""
    for step in block_uses(document):
        yield from _use_problems(step, blocks)
    walk = _Walk()
    for block in blocks.own.values():
        for step in _uses_in(block):
            yield from _use_problems(step, blocks)
        walk.size(block, ())
    found = [blocks.get(_name(step)) for step in block_uses(document)]
    total = sum(walk.size(block, ()) for block in found if block is not None)
    yield from walk.problems
    if total > MAX_STEPS:
        what = f"this flow has more than {MAX_STEPS:,} steps when all blocks are expanded"
        where = document.entries[0][0].span if isinstance(document, Mapping) else document.span
        yield Problem(what, where, "use map or foreach for items", code="too-many-steps")


class _Walk:
    """Measures blocks that use other blocks, each block once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.measured: dict[Block, tuple[int, int]] = {}
        """The number of steps of a block with all uses expanded, and its depth."""

    def size(self, block: Block, chain: tuple[Block, ...]) -> int:
        return self._measure(block, chain)[0]

    def _measure(self, block: Block, chain: tuple[Block, ...]) -> tuple[int, int]:
        if block in chain:
            circle = " → ".join([*(one.name for one in chain[chain.index(block) :]), block.name])
            what = f"these blocks lead back to themselves: {circle}"
            self.problems.append(Problem(what, block.span, "remove one use", code="cycle"))
            return 0, 0
        if len(chain) > MAX_DEPTH:
            return 0, 1  # reported below, by the depth of the blocks that use it
        if block not in self.measured:
            inner = [block.home.get(_name(step)) for step in _uses_in(block)]
            measured = [self._measure(one, (*chain, block)) for one in inner if one is not None]
            size = len(block.steps) + sum(size for size, _ in measured)
            height = 1 + max((height for _, height in measured), default=0)
            self.measured[block] = min(size, MAX_STEPS + 1), height
        size, height = self.measured[block]
        if len(chain) + height > MAX_DEPTH:
            what = f"blocks use blocks more than {MAX_DEPTH} levels deep"
            self.problems.append(
                Problem(what, block.span, "expand some of them by hand", code="too-deep")
            )
        return size, height


def _uses_in(block: Block) -> Iterator[Mapping]:
    for step in block.steps:
        yield from block_uses(step)


def _name(step: Mapping) -> str:
    used = step.get("use")
    return str(used.value) if isinstance(used, Scalar) else ""


def _use_problems(step: Mapping, blocks: Blocks) -> Iterator[Problem]:
    used = step.get("use")
    assert used is not None
    block = blocks.get(_name(step))
    if block is None:
        yield _no_block(_name(step), blocks.names(), used.span)
        return
    given = step.get("with")
    names = {str(key.value) for key, _ in given.entries} if isinstance(given, Mapping) else set()
    missing = [name for name in block.needs if name not in names]
    if missing:
        what = f"the block '{_name(step)}' needs {format_names(missing)}"
        yield Problem(what, used.span, f"add with: {{{missing[0]}: …}}", code="missing-with")
    for key, _ in given.entries if isinstance(given, Mapping) and block.needs else ():
        if str(key.value) not in block.needs:
            close = closest_name(str(key.value), block.needs)
            fix = f"did you mean '{close}'?" if close else f"it knows: {format_names(block.needs)}"
            what = f"the block '{_name(step)}' has no '{key.value}'"
            yield Problem(what, key.span, fix, code="unknown-with")


def _no_block(name: str, known: list[str], span: Span) -> Problem:
    close = closest_name(name, known)
    fix = (
        f"did you mean '{close}'?"
        if close
        else (
            f"known: {format_names(known)}"
            if known
            else "define it under blocks, or import a file that has it"
        )
    )
    return Problem(f"there is no block '{name}'", span, fix, code="unknown-block")


# ── files that are called ────────────────────────────────────────────────

MOST_DEEP: Final = 16
"""The depth to which workflows may call each other."""
MOST_CALLS: Final = 1000
"""Calls in all files together; a call counts each time its file is called."""


class Calls:
    """The chain of files that call each other, and the number of all calls."""

    def __init__(self, paths: Many[str] = (), opened: list[int] | None = None) -> None:
        self.paths = tuple(paths)
        self._opened = [0] if opened is None else opened

    def inside(self, path: str) -> Calls:
        return Calls((*self.paths, path), self._opened)

    def expect(self, path: str, node: Node) -> None:
        """Raise InputError if a step must not call this file: it calls itself, or there are
        too many calls.
        """
        if path in self.paths:
            what = "these workflows call each other without end"
            raise InputError(what, node.span, "remove one of the calls", code="bad-workflow-call")
        self._opened[0] += 1
        if len(self.paths) >= MOST_DEEP or self._opened[0] > MOST_CALLS:
            what = (
                f"workflows call each other more than {MOST_DEEP} deep, or more than "
                f"{MOST_CALLS:,} times"
            )
            raise InputError(what, node.span, "use map or foreach for items", code="too-many-steps")
