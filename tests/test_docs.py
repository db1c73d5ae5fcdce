"""Every example of the documentation runs, every link leads somewhere, every table says what the code does.

    ```python     is executed; `>>>` examples and `# → result` comments are compared
    ```console    `$ command` lines run in an empty folder, their output is compared
    ```yaml       is read by plait.core.documents; one that begins with `# FILE.yaml` is that file from there on
    ```text       is not run; any other kind of block is refused, so that none goes unnoticed

In expected output `…` stands for any characters of a line, and a line of `…` alone for any lines.
The blocks of one file share one folder and one set of names, as a reader would use them; a line that
is only `$ cd FOLDER` leads all that follow it there.
"""

from __future__ import annotations

import argparse
import ast
import doctest
import errno
import importlib.util
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import plait
from plait.adapters.store.faults import to_journal_error
from plait.app import api as app
from plait.app import toolbox as app_toolbox
from plait.cli import COMMANDS
from plait.cli.arguments import Parser
from plait.core import documents, errors
from plait.core.errors import PlaitError, ShellRefusedError
from plait.lang.analysis import names
from plait.lang.analysis.names import detect_profile
from plait.lang.check import check_document
from plait.schema import all_forms, fields_by_spelling
from plait.scope import computed
from plait.scope.frames import ALIASES
from plait.template import compiled, grammar, template
from plait.template.filters import FILTERS, FORMATS
from plait.template.profiles import PROFILES
from plait.template.shell.lexer import MAX_SHELL_TEXT, REFUSALS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
WITH_EXAMPLES = [ROOT / "README.md", EXAMPLES / "README.md", *sorted(DOCS.rglob("*.md"))]
ALL = [
    *WITH_EXAMPLES,
    *(ROOT / name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]
WRITTEN_BY_A_RUN = {DOCS / "benchmarks.md"}
COMMAND_TIMEOUT = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ── the parts of a page ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    fence, kind, start, body = "", "", 0, list[str]()
    for number, line in enumerate(page.splitlines(), 1):
        opened = re.match(r"(`{3,})(.*)$", line)
        if not fence and opened:
            fence, kind, start, body = opened[1], opened[2].strip(), number + 1, []
        elif fence and line == fence:
            found.append(Block(kind, "".join(f"{each}\n" for each in body), start))
            fence = ""
        elif fence:
            body.append(line)
    assert not fence, f"the block before line {start} is never closed"
    return found


def prose(page: str) -> str:
    """The page without its blocks, line for line."""
    lines, inside = [], False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = not inside
            lines.append("")
        else:
            lines.append("" if inside else line)
    return "\n".join(lines)


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    _, _, rest = f"\n{page}".partition(f"\n{heading}\n")
    assert rest, f"there is no heading '{heading}'"
    rows: list[list[str]] = []
    for line in rest.splitlines():
        if line.startswith("|"):
            rows.append(
                [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            )
        elif rows or line.startswith("## "):
            break
    assert len(rows) > 2, f"there is no table under '{heading}'"
    return rows[2:]


def code_in(cell: str) -> str:
    """What stands between the backticks."""
    found = re.fullmatch(r"(`+) ?(.+?) ?\1", cell)
    assert found, f"not code: {cell}"
    return found[2]


# ── examples ─────────────────────────────────────────────────────────────────────────────────────


def agrees(expected: str, actual: str) -> bool:
    lines = [
        r"(?:.*\n)*?"
        if line.strip() == "…"
        else "[^\n]*?".join(map(re.escape, line.split("…"))) + "\n"
        for line in expected.rstrip("\n").splitlines()
    ]
    return (
        re.fullmatch("".join(lines), actual.rstrip("\n") + "\n" if actual.strip() else "")
        is not None
    )


@dataclass(slots=True)
class Reader:
    """Somebody who types what a page says: where they are, and where their home is."""

    directory: Path
    home: Path

    @classmethod
    def at(cls, directory: Path) -> Reader:
        # Beside the folder and not around it: a home that holds a project may not vouch for it.
        return cls(directory, directory.parent / "home")


def problems(page: str, directory: Path) -> list[str]:
    """What differs from what the page says; its examples run in `directory`."""
    names: dict[str, Any] = {"__name__": "__example__"}
    found: list[str] = []
    reader = Reader.at(directory)
    for block in blocks(page):
        match block.kind:
            case "python":
                with chdir(reader.directory):
                    found += python_problems(block, names)
            case "console":
                found += console_problems(block, reader)
            case "yaml":
                found += yaml_problems(block)
                if named := re.match(r"# ([\w./-]+\.yaml)\n", block.text):
                    (reader.directory / named[1]).write_text(block.text, encoding="utf-8")
            case "text":
                pass
            case other:
                found.append(
                    f"line {block.line}: a block of kind '{other}' is not run and not marked as text"
                )
    return found


def console_problems(block: Block, reader: Reader) -> Iterator[str]:
    steps: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            steps.append((number, line[2:], []))
        elif steps and not steps[-1][2] and (line == ">" or line.startswith("> ")):
            at, command, output = steps[-1]
            steps[-1] = (at, f"{command}\n{line[2:]}", output)
        elif steps:
            steps[-1][2].append(line)
        else:
            yield f"line {number}: output without a command"
    if not steps:
        yield f"line {block.line}: a console block without a command"
    for number, command, output in steps:
        expected = "".join(f"{line}\n" for line in output)
        if led := re.fullmatch(r"cd ([\w./-]+)", command):
            reader.directory = (reader.directory / led[1]).resolve(strict=True)
        actual = "" if led else printed_by(command, reader)
        if not agrees(expected, actual):
            yield f"line {number}: $ {command}\n--- the page says\n{expected}--- it prints\n{actual}"


def printed_by(command: str, reader: Reader) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {"PATH": path, "HOME": str(reader.home), "LC_ALL": "C.UTF-8", "USER": "ada"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=reader.directory, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT,
    )  # fmt: skip
    return done.stdout.decode("utf-8", "replace")


class Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:  # noqa: ARG002 - the base's shape
        return agrees(want.replace("<BLANKLINE>", ""), got)


def python_problems(block: Block, names: dict[str, Any]) -> Iterator[str]:
    if block.text.startswith(">>>"):
        yield from session_problems(block, names)
        return
    for statement in ast.parse(block.text).body:
        number = block.line + statement.lineno - 1
        printed = io.StringIO()
        with redirect_stdout(printed):
            result = executed(statement, names)
        shown = printed.getvalue().rstrip("\n") if result is None else repr(result)
        last = block.text.splitlines()[(statement.end_lineno or 1) - 1]
        code, arrow, promised = last.partition("# → ")
        if arrow and not agrees(promised, shown):
            yield f"line {number}: {code.strip()}\n--- the page says\n{promised}\n--- it gives\n{shown}"


def executed(statement: ast.stmt, names: dict[str, Any]) -> object:
    if isinstance(statement, ast.Expr):
        return eval(compile(ast.Expression(statement.value), "<example>", "eval"), names)
    exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
    return None


def session_problems(block: Block, names: dict[str, Any]) -> Iterator[str]:
    session = doctest.DocTestParser().get_doctest(
        block.text, names, "example", None, block.line - 1
    )
    session.globs = names
    reports: list[str] = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    runner.run(session, out=reports.append, clear_globs=False)
    yield from reports


def yaml_problems(block: Block) -> Iterator[str]:
    try:
        document = documents.parse(block.text, "example.yaml")
    except PlaitError as error:
        yield f"line {block.line}: {error}"
        return
    if (
        detect_profile(document) is not None and document.at("base_url") is None
    ):  # a provider extends another
        for finding in check_document(document, "example.yaml"):
            if finding.severity == "error" and finding.code != "no-file":
                yield f"line {block.line}: {finding.problem}"


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_every_example_gives_what_its_page_says(path: Path, tmp_path: Path) -> None:
    directory = tmp_path / "examples"
    page = path.read_text(encoding="utf-8")
    if path.parent == EXAMPLES:
        shutil.copytree(EXAMPLES, directory)
    else:  # nothing is there but what the page makes
        directory.mkdir()
    assert page.startswith("# "), "a page begins with its title"
    if found := problems(page, directory):
        pytest.fail("\n\n".join([f"{name_of(path)}:", *found]), pytrace=False)


WITHOUT_A_FIRST_EXAMPLE = {
    DOCS / "README.md",
    DOCS / "guides/README.md",
    DOCS / "architecture.md",
    DOCS / "benchmarks.md",
}
"""Two indexes, a tour of the code, and tables that a run wrote."""
FIRST_EXAMPLES = [
    path
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")])
    if path not in WITHOUT_A_FIRST_EXAMPLE
]


@pytest.mark.parametrize("path", FIRST_EXAMPLES, ids=name_of)
def test_a_page_starts_with_an_example_that_runs(path: Path) -> None:
    start = re.split(r"^## ", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    assert {"console", "python"} & {block.kind for block in blocks(start)}


WRONG = [
    # an example that says something false                    what must be seen
    ("```console\n$ echo a\nb\n```", "line 2: $ echo a"),
    ("```console\n$ echo a\n```", "line 2: $ echo a"),
    ("```console\n$ true\na\n```", "line 2: $ true"),
    ("```console\n$ printf 'a\\nb\\n'\na\n```", "line 2: $ printf"),
    ("```console\n$ plait --version; echo\nplait 99\n```", "line 2: $ plait --version"),
    ("```console\na\n```", "line 2: output without a command"),
    (
        "```yaml\nsteps: [{shell: 'echo ${itme}'}]\n```",
        "line 2: example.yaml:1:23: unknown variable 'itme'",
    ),
    ("```console\n$ mkdir d\n$ cd d\n$ ls ..\n```", "line 4: $ ls .."),
    ("```python\n1 + 1  # → 3\n```", "line 2: 1 + 1"),
    ("```python\nprint('a')  # → b\n```", "line 2: print('a')"),
    ("```python\n>>> 1 + 1\n3\n```", "Expected:\n    3\nGot:\n    2"),
    ("```python\n>>> 1 / 0\n0\n```", "ZeroDivisionError"),
    ("```yaml\na: 1\na: 2\n```", "line 2:"),
    ("```\nwhat is this?\n```", "line 2: a block of kind '' is not run and not marked as text"),
    ("```sh\nls\n```", "line 2: a block of kind 'sh' is not run and not marked as text"),
]


@pytest.mark.parametrize(("page", "seen"), WRONG)
def test_a_false_example_is_noticed(page: str, seen: str, tmp_path: Path) -> None:
    assert seen in "\n".join(problems(page, tmp_path))


RIGHT = [
    "```console\n$ echo a\na\n$ echo b >&2; exit 3\nb\n```",
    "```console\n$ printf 'one\\ntwo\\nthree\\n'\none\n…\nthree\n```",
    "```console\n$ echo took 31 ms\ntook … ms\n```",
    "```console\n$ cat <<END\n> a\n> END\na\n```",
    "```console\n$ mkdir d\n$ cd d\n$ touch a\n```\n```python\nimport os\nos.listdir()  # → ['a']\n```",
    "```python\nx = [1,\n     2]\nx  # → [1, 2]\nprint(x)  # → [1, 2]\n```\n```python\n>>> x[0]\n1\n```",
    "```yaml\na: [1, 2]\n```",
    "```yaml\n# d.yaml\na: 1\n```\n```console\n$ cat d.yaml\n# d.yaml\na: 1\n```",
    "```text\nanything\n```",
]


@pytest.mark.parametrize("page", RIGHT)
def test_a_true_example_is_accepted(page: str, tmp_path: Path) -> None:
    assert problems(page, tmp_path) == []


# ── links ────────────────────────────────────────────────────────────────────────────────────────


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, page: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if found in WRITTEN_BY_A_RUN:
            continue
        if not found.is_relative_to(ROOT) or not found.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
            yield f"{target}: there is no such heading"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert list(broken_links(path, path.read_text(encoding="utf-8"))) == []


def test_a_broken_link_is_noticed() -> None:
    page = "[1](docs/README.md) [2](nowhere.md) [3](#safety) [4](#peril) [5](https://example.org) [6](../x.md)"
    assert list(broken_links(ROOT / "README.md", page)) == [
        "nowhere.md: there is no such file",
        "#peril: there is no such heading",
        "../x.md: there is no such file",
    ]


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_every_page_is_reached_from_the_index(path: Path) -> None:
    top = DOCS / "README.md"
    # The index of a folder lists its pages, and the top index lists the index of the folder.
    index = top if path.name == "README.md" else path.parent / "README.md"
    linked = re.findall(r"\]\(([^)#\s]+)", index.read_text(encoding="utf-8"))
    assert path == top or path in [(index.parent / target).resolve() for target in linked]


# ── commands and options ─────────────────────────────────────────────────────────────────────────


@cache
def options_of(command: str, *, hidden: bool = True) -> frozenset[str]:
    """The long options of a command; without `hidden`, those that its help names."""
    parser = Parser(command, "", examples=())
    import_module(f"plait.cli.{command}").configure(parser)
    return frozenset(
        name
        for action in parser._actions
        if hidden or action.help != argparse.SUPPRESS
        for name in action.option_strings
        if name.startswith("--")
    )


def commands_in(page: str) -> Iterator[tuple[str, list[str]]]:
    """Every call of plait in the page's code: its command and its options."""
    spans = re.findall(r"`+([^`\n]+)`+", prose(page))
    lines = [
        line
        for block in blocks(page)
        if block.kind == "console"
        for line in block.text.splitlines()
    ]
    calls = [line[2:] for line in lines if line.startswith(("$ ", "> "))]
    for text in [*spans, *calls]:
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
        for call in re.findall(r"(?:^|[;&|(] *)plait ([^;&]*)", unquoted):
            command, *rest = call.split() or [""]
            yield command, [word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)]


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_command_and_option_exists(path: Path) -> None:
    for command, options in commands_in(path.read_text(encoding="utf-8")):
        if command in ("help", "--version", "--help", "…"):
            continue
        assert command in COMMANDS, f"plait {command}"
        assert set(options) <= options_of(command), f"plait {command} {options}"


def test_an_invented_option_is_noticed() -> None:
    page = "`plait render 'a --b' --strikt`\n```console\n$ true; plait dance\n```"
    assert list(commands_in(page)) == [("render", ["--strikt"]), ("dance", [])]
    assert "--strict" in options_of("render")
    assert "--strikt" not in options_of("render")


PATH_IN_PROSE = re.compile(r"(?:\.github|bench|docs|examples|src|tests)/[\w./-]+")
PATTERNS = {"tests/data/providers/FAMILY/"}
"""Paths with a part that the reader chooses."""
OTHER_KEYS = {
    # named on a page as `key: …`, and no field of a flow, a tool's header, a hook or a provider
    "any_method", "input_data", "server",  # config of a tool
    "flags",                               # a parameter of an example
    "op",                                  # a condition
    "keep_runs", "mcp_expose", "telemetry", "trust",    # .ai/plait.yaml
    "date", "json",                        # a value that Plait computes
    "authorization", "sh",                 # a header of HTTP, a message of the shell
}  # fmt: skip


def spans(page: str) -> list[str]:
    return re.findall(r"`+([^`\n]+)`+", prose(page))


def unknown_paths(page: str) -> list[str]:
    named = [span for span in spans(page) if PATH_IN_PROSE.fullmatch(span)]
    return [path for path in named if path not in PATTERNS and not (ROOT / path).exists()]


def unknown_fields(page: str) -> list[str]:
    known = {name for form in all_forms() for name in fields_by_spelling(form.name)}
    named = [found[1] for span in spans(page) if (found := re.match(r"([a-z][a-z_]+):( |$)", span))]
    return [name for name in named if name not in known | OTHER_KEYS]


def broken_fields(page: str) -> Iterator[str]:
    """Fields with a map or a list in the text that cannot be read."""
    for span in spans(page):
        if re.match(r"[a-z][a-z_]+: [\[{]", span) and "…" not in span:
            try:
                documents.parse(span, "example.yaml")
            except PlaitError:
                yield span


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_path_and_every_field_in_the_text_exists(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert (unknown_paths(page), unknown_fields(page), [*broken_fields(page)]) == ([], [], [])


def test_an_invented_path_and_field_are_noticed() -> None:
    assert [*broken_fields("`with: {a: ${x}, b: 1}` `with: {a: '${x}'}`")] == [
        "with: {a: ${x}, b: 1}"
    ]
    page = "`docs/README.md` `tests/nowhere.py` `timeout: 5` `tiemout: 5` `on_faliure:`"
    assert unknown_paths(page) == ["tests/nowhere.py"]
    assert unknown_fields(page) == ["tiemout", "on_faliure"]


def test_every_target_of_make_is_explained() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^make (\S+)", listed, re.MULTILINE)
    rows = table((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "## Set up and run")
    assert sorted(f"`make {target}`" for target in targets if target != "help") == sorted(
        target for target, *_ in rows
    )


def page_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_example_of_a_recording_calls_a_tool_by_the_name_under_which_it_is_offered(
    tmp_path: Path,
) -> None:
    from plait.app.tool_catalog import offers
    from plait.app.toolbox import toolbox

    known = {offer.name for offer in offers(toolbox(str(tmp_path)), ["core/*"])}
    called = re.findall(r"uses: \[\{name: (\w+)", page_of("providers.md"))
    assert called
    assert set(called) <= known


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_the_command_line_lists_every_option(command: str) -> None:
    rows = table(page_of("cli.md"), f"## plait {command}")
    listed = {word for option, _ in rows for word in re.findall(r"--[a-z][a-z-]*", option)}
    assert listed == options_of(command, hidden=False) - {"--help", "--color"}


# ── tables that repeat what the code says ────────────────────────────────────────────────────────


def signature(name: str) -> str:
    """A public name as its page writes it: functions with their parameters, without types."""
    found = getattr(plait, name)
    if isinstance(found, type):
        return name
    written = inspect.signature(found)
    bare = [
        each.replace(annotation=inspect.Parameter.empty) for each in written.parameters.values()
    ]
    return name + str(inspect.Signature(bare)).replace("'", '"')


def test_the_table_of_public_names_has_every_name_and_its_parameters() -> None:
    rows = table(page_of("python.md"), "# From Python")
    assert {cell for row in rows for cell in re.findall("`([^`]+)`", row[0])} == set(
        map(signature, plait.__all__)
    )


def test_the_tables_of_formats_filters_and_profiles_are_complete() -> None:
    page = page_of("language.md")
    assert [row[0] for row in table(page, "## Profiles")] == [f"`{name}`" for name in PROFILES]
    formats = [row[0] for row in table(page, "## Formats")]
    assert sorted(formats) == sorted(
        [*(f"`:{name}`" for name in FORMATS), "`:*.py` and other globs"]
    )
    filters = [re.sub(r"\(.*\)", "", code_in(row[0])) for row in table(page, "## Filters")]
    assert filters == list(FILTERS)


def test_the_limits_are_those_of_the_code() -> None:
    page = page_of("language.md")
    limits = dict(table(page, "## Limits"))
    twice = "characters of a rendered text or tree in which a value stands twice"
    together = "characters of all `vars` and `env` of a flow together; of the `env` of a step;"
    assert limits == {
        "characters of one template": f"{grammar.MAX_TEXT:,}",
        "characters of shell text": f"{MAX_SHELL_TEXT:,}",
        "placeholders nested in placeholders": str(grammar.MAX_DEPTH),
        "nesting of a tree of templates": str(template.MAX_TREE_DEPTH),
        f"{twice}, or that has more than {compiled.FEW_PLACEHOLDERS} placeholders": f"{compiled.MAX_OUTPUT:,}",
        f"{together} of what a tool's config makes; of its arguments; of the state that a node of a graph leaves": (
            f"{compiled.MAX_OUTPUT:,}"
        ),
        "characters of a text that is written as JSON or CSV; of all separators that `join` puts in": (
            f"{compiled.MAX_OUTPUT:,}"
        ),
        "a file named by `file:`": f"{computed.MAX_FILE >> 20} MiB",
        "a command named by `cmd:`": f"{app_toolbox.COMMAND_TIMEOUT:.0f} seconds",
        "a YAML file": f"{documents.MAX_TEXT >> 20} MiB, {documents.MAX_NODES:,} nodes with aliases written out, "
        f"depth {documents.MAX_DEPTH}",
    }


DEVIATIONS = [
    # document    what Plait does instead, as its line has it
    ("003",       ["`core/…`", "`rye/core/…`", "`rye/bash/bash`"]),
    ("003",       ["`python/function`", "`core/primitives/function`"]),
    ("003",       ["`InputError`", "`missing-executor`", "exit code 2"]),
    ("003",       ["`function`, `mcp` and `flow`"]),
    ("001",       ["`PromptTemplateError`", "`missing_variables`"]),
    ("000",       ["a missing input that is required ends the directive"]),
    ("000",       ["a field that a hook does not have is refused"]),
    ("002",       ["below the project", "`allow: [outside_files]`"]),
    ("003",       ["`PYTHONPATH` of the user reaches a tool only if it `passes` it"]),
    ("003",       ["`LD_…`", "`PYTHON…`", "`NODE_OPTIONS`", "`--allow-env`"]),
    ("000, 004",  ["left out if it is the whole of a header, an argument or a variable"]),
    ("003",       ["the `stat` of its files"]),
    ("000, 003",  ["a circle is an error", "`config-cycle`"]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "words"), DEVIATIONS, ids=lambda it: str(it)[:40])
def test_a_deviation_that_was_accepted_has_a_line_of_its_own(
    document: str, words: list[str]
) -> None:
    lines = [
        line for line in page_of("deviations.md").splitlines() if line.startswith(f"| {document} |")
    ]
    cells = [line.split(" | ")[2] for line in lines]
    assert len([cell for cell in cells if all(word in cell for word in words)]) == 1


def test_the_page_of_safety_says_who_writes_a_command_that_a_model_asks_for() -> None:
    (paragraph,) = (
        line
        for line in page_of("safety.md").split("\n\n")
        if line.startswith("**Commands that a model")
    )
    assert "may call `core/shell` writes the command itself" in paragraph


def coded(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def test_the_tables_of_names_are_those_of_the_checker() -> None:
    page = page_of("names.md")
    everywhere = tuple(names.PHASES)
    assert table(page, "## Built-in names") == [
        [
            f"`{n.name}`",
            "everywhere" if n.phases == everywhere else " ".join(n.phases),
            coded(n.fields),
            n.what,
        ]
        for n in names.NAMES
    ]
    assert table(page, "## Phases") == [[phase, what] for phase, what in names.PHASES.items()]
    assert table(page, "## Names inside a handler") == [
        [f"`{field}`", f"`{n.name}`", coded(n.fields), n.what]
        for field, n in names.HANDLER_NAMES.items()
    ]
    assert table(page, "## Names inside a `foreach`") == [
        [f"`{n.name}`", n.what] for n in names.LOOP_NAMES
    ]
    assert table(page, "## Parameters of tool configuration") == [
        [f"`{n}`"] for n in names.CONFIG_NAMES
    ]
    assert table(page, "## Deprecated names") == [
        [f"`{old}`", f"`item.{new}`"] for old, new in ALIASES.items()
    ]


def test_the_tour_of_the_code_names_files_that_exist_and_every_part() -> None:
    root = Path(plait.__file__).parent
    files = [
        path for folder in (root, ROOT / "tests", ROOT / "bench") for path in folder.rglob("*.py")
    ]
    named = set(re.findall(r"`([a-z_/]+\.py)`", page_of("architecture.md")))
    assert [name for name in sorted(named) if not any(file.match(name) for file in files)] == []
    parts = {path.name for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {part for part in parts if f"`{part}/" not in page_of("architecture.md")} == set()


SHELL_VALUES = {"x": "5", "y": "b"}
PRELUDE = "unset __p1; __p1=${PLAIT_1?}; unset PLAIT_1; "
NOT_WRITTEN_OUT = {"dollar-before-placeholder", "nul-in-script", "too-deep"}


def script(cell: str) -> str:
    return code_in(cell).replace("⏎", "\n")


def refusals() -> list[list[str]]:
    return table(page_of("shell.md"), "## Refused before anything runs")


def test_every_refusal_has_its_row() -> None:
    assert {code_in(row[0]) for row in refusals()} == REFUSALS.keys() - NOT_WRITTEN_OUT
    assert all(f"`{code}`" in page_of("shell.md") for code in NOT_WRITTEN_OUT)


@pytest.mark.parametrize("row", refusals(), ids=lambda row: code_in(row[0]))
def test_a_row_of_refusals_is_refused_with_its_code_and_its_fix_is_not(row: list[str]) -> None:
    code, refused, instead = code_in(row[0]), script(row[1]), script(row[2])
    with pytest.raises(ShellRefusedError) as caught:
        app.bind_script(refused, SHELL_VALUES)
    assert {problem.code for problem in caught.value.problems} == {code}
    assert app.bind_script(instead, SHELL_VALUES).env


@pytest.mark.parametrize(
    "row", table(page_of("shell.md"), "## How a value is bound"), ids=lambda row: row[0]
)
def test_a_row_of_states_shows_what_the_shell_reads(row: list[str]) -> None:
    bound = app.bind_script(script(row[1]), SHELL_VALUES)
    assert bound.script.removeprefix(PRELUDE) == script(row[2])


def test_the_limit_of_shell_text_is_named_on_its_page() -> None:
    assert f"A script may have {MAX_SHELL_TEXT:,} characters" in page_of("shell.md")


NOT_CAUGHT = [
    # what the page about safety names, and nothing refuses
    "echo ${x} | sh",
    "{ cat <<E\necho ${x}\nE\n} | sh",
    'run() { eval "$1"; }; run ${x}',
    'n=${x}; eval "$n"',
    "n=${x}; echo $((n+1))",
    "n=${x}; echo ${!n}",
    "make FILE=${x}",
]


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("text", NOT_CAUGHT)
def test_what_the_page_says_is_not_caught_is_named_there_and_not_caught(
    text: str, shell: str
) -> None:
    page = re.sub(" +#.*", "", page_of("safety.md"))
    assert text in page
    assert app.bind_script(text, SHELL_VALUES, shell=shell).env


@pytest.mark.parametrize("text", ["sh <<E\n${x}\nE", "cat <<E | sh\n${x}\nE"])
def test_what_the_page_says_is_seen_is_refused(text: str) -> None:
    assert f"`{text.partition(chr(10))[0]}`" in page_of("safety.md")
    with pytest.raises(ShellRefusedError) as caught:
        app.bind_script(text, SHELL_VALUES)
    assert caught.value.code == "value-in-code-input"


def test_the_error_tree_is_the_one_of_the_code() -> None:
    listed = [
        (code_in(name), int(code)) for name, _, code in table(page_of("errors.md"), "## The tree")
    ]
    classes = [
        it for it in vars(errors).values() if isinstance(it, type) and issubclass(it, PlaitError)
    ]
    assert listed == [(it.__name__, it.exit_code) for it in classes]


@cache
def source() -> tuple[set[str], set[str]]:
    """Every code that an error is given as `code="…"`, and every text of all; it is read once for both."""
    codes, texts = set[str](), set[str]()
    for path in Path(plait.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="code", value=ast.Constant(value=str(code))) if code.islower():
                    codes.add(code)
                case ast.Constant(value=str(text)):
                    texts.add(text)
    return codes, texts


def listed_codes() -> list[str]:
    return [code_in(row[0]) for row in table(page_of("errors.md"), "## Codes")]


def test_every_code_of_an_error_is_listed_once() -> None:
    listed = listed_codes()
    assert sorted(listed) == sorted(set(listed))
    codes, _ = source()
    assert codes - REFUSALS.keys() <= set(listed)


PUT_TOGETHER = {"unknown-command"}  # `unknown-` and what is unknown


def test_every_code_that_is_listed_stands_in_the_source() -> None:
    _, texts = source()
    assert set(listed_codes()) - texts == PUT_TOGETHER


def test_what_the_journal_says_of_a_fault_is_listed() -> None:
    found = {
        to_journal_error(OSError(number, ""), "x").code
        for number in (errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EIO)
    }
    assert found == {"disk-full", "too-large", "read-only", "input-output"}
    assert found <= set(listed_codes())


LONGEST_SENTENCE = 34


def long_sentences(page: str) -> list[str]:
    """Sentences of the text that a reader has to read twice; a list of names is longer at times."""
    lines = [
        line for line in prose(page).splitlines() if not line.lstrip().startswith(("|", "#", ">"))
    ]
    found = re.split(r"(?<=[.:;!?])\s|\n\s*(?=[-*] |\d+\. |\n)", "\n".join(lines))
    return [" ".join(one.split()) for one in found if len(one.split()) > LONGEST_SENTENCE]


@pytest.mark.parametrize("path", [*ALL, *sorted(EXAMPLES.glob("*/README.md"))], ids=name_of)
def test_no_sentence_is_too_long(path: Path) -> None:
    assert long_sentences(path.read_text(encoding="utf-8")) == []


def test_a_long_sentence_is_noticed() -> None:
    words = ["word"] * LONGEST_SENTENCE
    page = f"# {'a ' * 40}\n\n{' '.join(words)}.\n{' '.join(words)} more.\n\n- {' '.join(words[2:])}\n- end"
    assert long_sentences(page) == [f"{' '.join(words)} more."]


IMPOSSIBLE_PROMISES = ["sandboxed", "injection-proof"]


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_no_page_makes_an_impossible_promise(path: Path) -> None:
    page = path.read_text(encoding="utf-8").lower()
    assert [word for word in IMPOSSIBLE_PROMISES if word in page] == []


def test_each_guarantee_names_the_tests_that_show_it() -> None:
    rows = table(page_of("guarantees.md"), "## The table")
    numbers = [int(row[0].strip("*G")) for row in rows]
    assert numbers == sorted(set(numbers))
    targets = set(
        re.findall("^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for number, _, shown_by in rows:
        assert re.search(r"\]\(\.\./tests/[a-z_/]+\.py\)", shown_by), number
        assert set(re.findall("`make ([a-z-]+)`", shown_by)) <= targets, number


SHARED = {
    # the files that flows on the page of the format call, extend, import and take variables from
    ".ai/tools/team/report.py": '__executor_id__ = "core/runtimes/python/script"\n__version__ = "1.0.0"\n',
    ".env": "TOKEN_FILE=token.txt\n",
    "base.yaml": "name: base\n",
    "lib/checks.yaml": "blocks: {lint: {steps: [{shell: 'true'}]}}\nsteps: [{use: lint}]\n",
}
FLOWS = [block for block in blocks(page_of("workflow.md")) if block.kind == "yaml"]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda block: f"line {block.line}")
def test_every_flow_on_the_page_of_the_format_is_one(flow: Block, tmp_path: Path) -> None:
    for name, text in {**SHARED, "flow.yaml": flow.text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert printed_by("plait check flow.yaml", Reader.at(tmp_path)) == "no problems in 1 file\n"


def test_the_table_of_dependencies_is_the_one_of_the_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=~! ]", dependency)[0] for dependency in project["dependencies"]]
    rows = table(page_of("install.md"), "## Dependencies")
    assert [code_in(row[0]) for row in rows] == wanted


# ── the pictures and the demo ────────────────────────────────────────────────────────────────────


def rows_of(picture: str) -> list[str]:
    """The lines of text in a picture of a terminal, but for empty ones."""
    drawing = ElementTree.parse(DOCS / "pictures" / picture).getroot()
    rows: dict[str, str] = {}
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        rows[text.attrib["y"]] = rows.get(text.attrib["y"], "") + (text.text or "")
    return list(rows.values())


def test_the_picture_shows_what_the_commands_print(tmp_path: Path) -> None:
    directory = tmp_path / "examples"
    shutil.copytree(EXAMPLES, directory)
    session = "".join(f"{row}\n" for row in rows_of("check.svg"))
    assert list(console_problems(Block("console", session, 1), Reader.at(directory))) == []
    assert session.count("$ plait ") == 2


def picture_maker() -> Any:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = made  # its dataclasses look for their module
    spec.loader.exec_module(made)
    return made


def steady(rows: list[str]) -> list[str]:
    """The lines of a run without its id, times, rates and bars; items that run together come in any order."""
    found = re.search(r"run (\w{8})\b", "\n".join(rows))
    assert found, rows
    lines = (
        re.sub(
            r"~?\d+:\d\d(?!:)|~\d+ s|\d+\.\d s|\S+/s(?!\S)|[█░]+", "", row.replace(found[1], "ID")
        )
        for row in rows
    )
    return sorted(" ".join(line.split()) for line in lines)


def test_the_picture_of_a_run_shows_what_a_terminal_shows() -> None:
    maker = picture_maker()
    recorded = [maker.text_of(line) for line in maker.stopped_and_resumed()]
    assert steady(rows_of("run.svg")) == steady([line for line in recorded if line])
    assert recorded[-1].startswith("  retry        plait retry ")


def test_the_demo_runs_and_every_value_arrives() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert re.search(r"^values that became commands, .* 0$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^items that ran again after they were recorded, .* 0$", done.stdout, re.MULTILINE
    )
    assert "Problems: 38 before, 4 after." in done.stdout
