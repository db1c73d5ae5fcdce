"""Headers: what a file says in each language, where, and what is refused; and when it is read again."""

from __future__ import annotations

import ast
import json
import os
import threading
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core import documents
from plait.core.errors import DocumentError, LimitError
from plait.core.safe_files import FileStamp
from plait.tools import headers as readers
from plait.tools.chain import PRIMITIVES
from plait.tools.headers import ItemCache, read_item
from plait.tools.headers.entries import KEYS
from plait.tools.headers.formats import NAMES, READERS
from plait.tools.spaces import EXTENSIONS, FILE_TYPES, Space, Spaces, ToolLocation
from plait.tools.tool_file import INFORMATIONAL, Header, ToolFile
from plait.tools.trust.manifest_reader import SYSTEM
from share import examples

STAMP = FileStamp(device=1, inode=2, size=3, modified=4, changed=5)


@dataclass(frozen=True)
class InMemory(ToolLocation):
    """A file that is not on a disk."""

    data: bytes = b""

    def read(self) -> tuple[bytes, FileStamp]:
        return self.data, self.stamp


def item(extension: str, contents: str | bytes, *, kind: str = "tool") -> ToolFile:
    data = contents if isinstance(contents, bytes) else contents.encode()
    return read_item(InMemory("t", Space("project", "/p"), f"t{extension}", STAMP, data), kind=kind)


def header(extension: str, contents: str | bytes) -> Header:
    return item(extension, contents).header


def refusal(extension: str, contents: str | bytes) -> str:
    with pytest.raises((DocumentError, LimitError)) as caught:
        item(extension, contents)
    return str(caught.value)


def places(extension: str, contents: str) -> list[str]:
    """`line:column what` of every problem."""
    with pytest.raises((DocumentError, LimitError)) as caught:
        item(extension, contents)
    return [
        f"{problem.where}: {problem.what}".removeprefix(f"/p/t{extension}:")
        for problem in caught.value.problems
    ]


# ── the same header in every language ────────────────────────────────────────────────────────────

PYTHON = '''#!/usr/bin/env python3
# rye:signed:2026-03-30T03:47:11Z:00:00:00
"""A tool."""
from __future__ import annotations
__executor_id__ = "core/x"
__version__: str = "1.2.0"
CONFIG = {"url": "http://x/y", "n": [1, -2.5, None, True]}
'''
YAML = """# rye:signed:2026-03-30T03:47:11Z:00:00:00
executor_id: core/x
version: 1.2.0
config: {url: "http://x/y", n: [1, -2.5, null, true]}
"""
PLAIN = """#!/bin/sh
# plait:signed:2026-03-30T03:47:11Z:00:00:00
# My tool: it does things.
#
# executor_id: core/x
# version: 1.2.0
# config:
#   url: "http://x/y"
#   n: [1, -2.5, null, true]
# Usage: none

echo "$1"
# category: not/at/the/top
"""
FENCED = """#!/bin/sh
# category: outside/the/fence
# ---
# executor_id: core/x
# version: 1.2.0
# config:
#   url: "http://x/y"
#
#   n: [1, -2.5, null, true]
# ---
echo
"""
JAVASCRIPT = """#!/usr/bin/env node
// rye:signed:2026-03-30T03:47:11Z:00:00:00
const __executor_id__ = "core/x";
export const __version__ = '1.2.0'
let CONFIG = {
  url: `http://x/y`, // not a comment: the one in the text
  "n": [1, -2.5, null, /* why */ true,],
}
"""
TYPESCRIPT = """import { x } from "./x";
const __executor_id__: string | null = "core/x", __version__ = "1.2.0" as const;
export const CONFIG: Record<string, () => void> & { a?: number; b: string[] } = {
  url: "http://x/y", n: [1, -2.5, null, true],
} as const satisfies Thing<"a">
export default {}
"""


@pytest.mark.parametrize(
    ("extension", "contents"),
    [
        (".py", PYTHON),
        (".yaml", YAML),
        (".yml", YAML),
        (".sh", PLAIN),
        (".bash", FENCED),
        (".rb", PLAIN),
        (".go", PLAIN.replace("#!/bin/sh\n", "").replace("#", "//")),
        (".js", JAVASCRIPT),
        (".mjs", JAVASCRIPT),
        (
            ".cjs",
            "// ---\n"
            + "".join(f"// {line}\n" for line in YAML.splitlines())
            + "// ---\nmodule.exports = {}\n",
        ),
        (".ts", TYPESCRIPT),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_means_the_same_in_every_language(
    extension: str, contents: str, ending: str, mark: str
) -> None:
    expected = Header(
        executor_id="core/x",
        version="1.2.0",
        config={"url": "http://x/y", "n": [1, -2.5, None, True]},
    )
    assert header(extension, (mark + contents).replace("\n", ending)) == expected


def test_an_item_holds_the_bytes_and_their_digest() -> None:
    data = b"\xef\xbb\xbfexecutor_id: a\r\n"
    found = item(".yaml", data, kind="runtime")
    assert (found.kind, found.id, found.space, found.path) == (
        "runtime",
        "t",
        Space("project", "/p"),
        "/p/t.yaml",
    )
    assert (found.data, found.digest) == (data, sha256(data).hexdigest())


names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
# Printable: what YAML allows in a file as it is.
texts = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(config=st.dictionaries(names, values, max_size=4))
def test_data_written_as_a_literal_is_read_as_that_data(config: dict[str, object]) -> None:
    text = json.dumps(config, ensure_ascii=False)
    for extension, contents in [
        (".py", f"__executor_id__ = 'a'\nCONFIG = {config!r}\n"),
        (".js", f"const __executor_id__ = 'a'\nconst CONFIG = {text}\n"),
        (
            ".ts",
            f"const __executor_id__ = 'a'\nconst CONFIG: T = {json.dumps(config, indent=1)} as const\n",
        ),
        (".yaml", f"executor_id: a\nconfig: {text}\n"),
        (".sh", f"# ---\n# executor_id: a\n# config: {text}\n# ---\n"),
        (".go", f"// executor_id: a\n// config: {text}\n"),
    ]:
        assert header(extension, contents).config == config


# ── what is not a header ─────────────────────────────────────────────────────────────────────────

IGNORED = [
    # extension, what stands before or behind the header
    (".py", "__all__ = [name()]\n__author__ = who()\n__revision__ = 2\n__version_info__ = (1, 2)\n__doc__ = f()"),
    (".py", "if x:\n    __version__ = f()\ndef f():\n    __category__ = 1\nclass C:\n    CONFIG = 1"),
    (".py", "# __version__ = f()\n'''\n__version__ = f()\n'''\nconfig = f(); x.CONFIG = 1; x[CONFIG] = 2"),
    (".py", "__version__: str\nfrom settings import CONFIG"),
    (".sh", "# note: this: is prose\n# author: A: B\n#executor\n# Version: 9\n# version:9\n"),
    (".rb", "# frozen_string_literal: true\n"),
    (".go", "//go:build linux\n"),
    (".js", '// const __version__ = "2"\n/* const __version__ = "2"\nconst __version__ = 3 */'),
    (".js", "const s = 'const __version__ = 3', u = \"http://x//y\""),
    (".js", "const s = `\nconst __version__ = 3\n`, t = `${ `}` + {a: '}'} } const __version__ = 3`"),
    (".js", "const r = /[/'\"`]const __version__ = 3/g, q = a / b / c; x++ / 2"),
    (".js", "if (x) /'/.test(y)\nfunction f() {}\n/\"/.test(z)\nconst h = {a: 1} / '2'.length, d = (1) / '2'"),
    (".js", "const h = {a: 1} / '/'.length\nx++ / '/'.length\nx.return / '/'.length"),
    (".js", "function f() { const __version__ = g() }\n{ let CONFIG = 1 }\n(() => { var INPUTS = 1 })()"),
    (".js", "x.CONFIG = 1; x = {CONFIG: 1}; if (CONFIG == 1) f(CONFIG); let __version__; const __dirname = f()"),
    (".js", "import { CONFIG } from './x'\nconst { ANCHOR } = require('./x')\nconst [a] = 1"),
    (".ts", "type CONFIG = { a: string }\nexport type ANCHOR = X\nlet INPUTS!: string[]\nlet y = 5\ndeclare const OUTPUTS: A"),
]  # fmt: skip

SIMPLE = {
    ".py": '__executor_id__ = "a"\n',
    ".yaml": "executor_id: a\n",
    ".sh": "# executor_id: a\n",
    ".rb": "# executor_id: a\n",
    ".go": "// executor_id: a\n",
    ".js": 'const __executor_id__ = "a"\n',
    ".ts": 'const __executor_id__ = "a"\n',
}


@pytest.mark.parametrize(("extension", "around"), IGNORED)
def test_what_is_no_declaration_is_not_believed(extension: str, around: str) -> None:
    says_nothing = Header(executor_id="a")
    assert header(extension, f"{around}\n{SIMPLE[extension]}") == says_nothing
    if extension in (".py", ".js", ".ts"):
        assert header(extension, f"{SIMPLE[extension]}{around}") == says_nothing


JAVASCRIPT_VALUES = [
    ("{a: 1, 'b': 2, \"c\": 3, 4: 5, $d_: 6}", {"a": 1, "b": 2, "c": 3, "4": 5, "$d_": 6}),
    ("[0, 1_000, 0xFF, 0o17, 0b11, 1.5, .5, 5., 1e3, 1E-2, +7]", [0, 1000, 255, 15, 3, 1.5, 0.5, 5.0, 1000.0, 0.01, 7]),
    (r"""["\n\t\\\"\'", 'it\'s', `a\`b$c`]""", ["\n\t\\\"'", "it's", "a`b$c"]),
    (r"['\x41\u0042\u{1F600}\ud83d\ude00', 'a\z\/']", ["AB😀😀", "az/"]),
    ("['a\\\nb', `c\r\nd`]", ["ab", "c\nd"]),
    ("[[], {}, [{}],]", [[], {}, [{}]]),
    ("{true: null, if: false}", {"true": None, "if": False}),
]  # fmt: skip


@pytest.mark.parametrize(("literal", "expected"), JAVASCRIPT_VALUES)
@pytest.mark.parametrize(
    "end",
    ["", ";", "\nfoo()", "\n{}", " // x", "\n++x", " as T\nconst y = 1", ", __category__ = 'c'"],
)
def test_a_javascript_literal_is_read_as_its_data(literal: str, expected: object, end: str) -> None:
    found = header(".js", f"const __executor_id__ = 'a', CONFIG = {{v: {literal}}}{end}")
    assert found.config == {"v": expected}
    assert found.category == ("c" if "__category__" in end else "")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────

COMPUTED = "is computed: a header is read, never executed"
REFUSED = [
    # extension, contents, every problem with its place
    (".py", "__executor_id__ = get()", [f"1:19: '__executor_id__' {COMPUTED}"]),
    (".py", "é = 'é'; __executor_id__ = f('é')", [f"1:28: '__executor_id__' {COMPUTED}"]),
    (".py", "x = 1\r__executor_id__ = f()", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a' + b", [f"1:19: '__executor_id__' {COMPUTED}"]),
    (".py", "__executor_id__ = f'{a}'", [f"1:19: '__executor_id__' {COMPUTED}"]),
    (".py", "__executor_id__, x = 'a', 1", [f"1:1: '__executor_id__' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = {}\nCONFIG['x'] = 1", [f"3:1: 'CONFIG' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nINPUTS += ['x']", [f"2:1: 'INPUTS' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = {'k': {**x}}", [f"2:19: 'CONFIG' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = {'k': -True}", [f"2:16: 'CONFIG' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nINPUTS = {'x'}", ["2:10: 'INPUTS' holds a set, which JSON does not have"]),
    (".py", "__executor_id__ = b'a'", ["1:19: '__executor_id__' holds bytes, which JSON does not have"]),
    (".py", "__executor_id__ = ...", ["1:19: '__executor_id__' holds ..., which JSON does not have"]),
    (".py", "__executor_id__ = 2j", ["1:19: '__executor_id__' holds complex, which JSON does not have"]),
    (".py", "__executor_id__ = '\\ud800'", ["1:19: '__executor_id__' holds NUL or half of a character pair"]),
    (".py", "__executor_id__ = 1e999", ["1:19: '__executor_id__' holds a number that is too large"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = {1: 2}", ["2:11: 'CONFIG' has a key that is not text"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = {'k': 1, 'k': 2}", ["2:19: 'CONFIG' has a key that stands twice"]),
    (".py", "__excutor_id__ = 'a'", ["1:1: '__excutor_id__' is not a key of a header"]),
    (".py", "__executor__ = 'a'", ["1:1: '__executor__' is not a key of a header"]),
    (".py", "__executor_id__ = 'a'\nanchor = {}\nANCHOR = {}", ["2:1: 'anchor' is set twice, again at line 3"]),
    (".py", "__executor_id__ = 3", ["1:1: 'executor_id' is text"]),
    (".py", "__executor_id__ = 'a'\nCONFIG = 3\n__version__ = f()", ["2:1: 'config' is a map", f"3:15: '__version__' {COMPUTED}"]),
    (".py", "__executor_id__ = 'a'\nx = (1,\n", ["2:5: this is not Python: '(' was never closed"]),
    (".py", "__executor_id__ = 'a'\n\tx = 1", ["2:1: this is not Python: unexpected indent"]),
    (".py", "x = 'é' 5", ["1:9: this is not Python: invalid syntax"]),
    (".py", "a\0b", ["1:2: a NUL stands here"]),
    (".yaml", "executor_id: a\nversoin: 1", ["2:1: 'versoin' is not a key of a tool"]),
    (".yaml", "executr_id: a", ["1:1: 'executr_id' is not a key of a tool"]),
    (".yaml", "- executor_id: a", ["1:1: a header is a map"]),
    (".yaml", "", ["1:1: a header is a map"]),
    (".sh", "# executor_id: a: b", ["1:17: a ':' stands where no key can be"]),
    (".sh", "# executor_id: a\n#   - b\n# config: [", ["3:12: a value cannot begin like this"]),
    (".sh", "# ---\n# executor_id: a\necho", ["1:3: this '---' opens a header that is never closed"]),
    (".sh", "# ---\n# executor_id: a\n# ---\n# ---\n", ["4:3: a second header begins here"]),
    (".sh", "# ---\n# only words\n# ---\n", ["1:3: a header is a map"]),
    (".sh", "# ---\n# executor_id: a\n#   name: b\n# ---", ["3:9: a ':' stands where no key can be"]),
    (".sh", "# ---\n# executor_id: a\n# versoin: 1\n# ---", ["3:3: 'versoin' is not a key of a tool"]),
    (".yaml", "execr:", ["1:1: this tool says no executor_id"]),
    (".sh", "echo\n# executor_id: a", ["1:1: this tool says no executor_id"]),
    (".js", "const __executor_id__ = 'a' + b", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\n+ b", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a' as T + b", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".js", "const __executor_id__ = `a${b}`", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst CONFIG = {k: env.X}", [f"2:20: 'CONFIG' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst CONFIG = {k}", [f"2:17: 'CONFIG' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst CONFIG = {...k}", [f"2:17: 'CONFIG' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst CONFIG = {[k]: 1}", [f"2:17: 'CONFIG' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst INPUTS = [1,,2]", [f"2:19: 'INPUTS' {COMPUTED}"]),
    (".js", "const __executor_id__ = 'a'\nconst CONFIG = {k: 1, 'k': 2}", ["2:23: 'CONFIG' has a key that stands twice"]),
    (".js", "const __executor_id__ = undefined", [f"1:25: '__executor_id__' {COMPUTED}"]),
    (".js", "const __executor_id__ = 10n", ["1:25: '__executor_id__' holds a number that JSON does not have"]),
    (".js", "const __executor_id__ = 010", ["1:25: '__executor_id__' holds a number that JSON does not have"]),
    (".js", "const __executor_id__ = 1e999", ["1:25: '__executor_id__' holds a number that is too large"]),
    (".js", r"const __executor_id__ = '\07'", ["1:25: '__executor_id__' holds an escape that is no character"]),
    (".js", r"const __executor_id__ = '\u{110000}'", ["1:25: '__executor_id__' holds an escape that is no character"]),
    (".js", r"const __executor_id__ = '\ud83d'", ["1:25: '__executor_id__' holds NUL or half of a character pair"]),
    (".js", "let __executor_id__\n__executor_id__ = 'a'", ["2:1: '__executor_id__' is not declared here, only assigned"]),
    (".js", "const a = 1, __executor_id__ = 'a'", ["1:14: '__executor_id__' is not declared here, only assigned"]),
    (".js", "const __excutor_id__ = 'a'", ["1:7: '__excutor_id__' is not a key of a header"]),
    (".js", "// ---\n// executor_id: a\n// ---\nconst __executor_id__ = 'b'", ["2:4: 'executor_id' is set twice, again at line 4"]),
    (".js", "x = {", ["1:5: this '{' is never closed"]),
    (".js", "x = (]", ["1:6: this ']' closes nothing"]),
    (".js", "}", ["1:1: this '}' closes nothing"]),
    (".js", "x = 'a\n'", ["1:5: this string is never closed"]),
    (".js", "x = `a ${b} c", ["1:11: this template is never closed"]),
    (".js", "x = 1 /* y", ["1:7: this comment is never closed"]),
    (".ts", "const __executor_id__: string\nconst x = 'a'", ["1:1: this tool says no executor_id"]),
]  # fmt: skip


@pytest.mark.parametrize(("extension", "contents", "expected"), REFUSED)
def test_what_cannot_be_a_header_is_refused_at_its_place(
    extension: str, contents: str, expected: list[str]
) -> None:
    assert places(extension, contents) == expected


def test_an_error_inside_an_f_string_is_placed_on_its_line() -> None:
    # Python 3.11 counts the column from the placeholder: then the whole line is shown.
    [place] = places(".py", "__executor_id__ = 'a'\nxx = f'{a b}'")
    assert place.split(": ")[0] in ("2:1", "2:9")


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_bytes_that_are_no_text_are_refused_at_their_place(extension: str) -> None:
    assert refusal(extension, b"# \xc3\xa9\n# \xe9\n") == (
        f"/p/t{extension}:2:3: byte 7 of this file is not UTF-8\n2 | # �\n  |   ^\nfix: save the file as UTF-8"
    )


def test_a_problem_is_drawn_in_the_file_as_it_is_written() -> None:
    assert refusal(".go", "package x") == (
        "/p/t.go:1:1: this tool says no executor_id\n"
        "1 | package x\n"
        "  | ^\n"
        "fix: write // executor_id: core/primitives/subprocess (common: core/runtimes/python/script, "
        "core/primitives/subprocess, core/runtimes/bash/bash, core/runtimes/node/node); "
        "only tool_type 'primitive' needs none"
    )
    assert refusal(".sh", "# executor_id: a\n# config:\n#   a: 1\n#   a: 2") == (
        "/p/t.sh:3:5: the key 'a' stands twice in one map, again at line 4\n"
        "3 | #   a: 1\n"
        "  |     ^\n"
        "4 | #   a: 2\n"
        "  |     ^\n"
        "fix: remove or rename all but one"
    )
    assert refusal(".py", "__verison__ = '1'\n__executor_id__ = os.environ['X']") == (
        "/p/t.py:1:1: '__verison__' is not a key of a header\n"
        "1 | __verison__ = '1'\n"
        "  | ^^^^^^^^^^^\n"
        "fix: did you mean '__version__'?\n"
        "/p/t.py:2:19: '__executor_id__' is computed: a header is read, never executed\n"
        "2 | __executor_id__ = os.environ['X']\n"
        "  |                   ^^^^^^^^^^^^^^^\n"
        "fix: write the value itself: text, a number, true, false, null, a list or a map of them"
    )


@pytest.mark.parametrize(
    ("extension", "nothing", "primitive"),
    [
        (".py", "__executor_id__ = None\n", "__tool_type__ = 'primitive'"),
        (".py", "x = 1\n", "__tool_type__ = 'primitive'"),
        (".yaml", "executor_id: null\n", "tool_type: primitive"),
        (".yaml", "version: 1\n", "tool_type: primitive"),
        (".sh", "# executor_id: ''\n", "# tool_type: primitive"),
        (".js", "const __executor_id__ = null\n", "const __tool_type__ = 'primitive'"),
    ],
)
def test_only_a_primitive_names_no_executor(extension: str, nothing: str, primitive: str) -> None:
    assert not header(extension, nothing + primitive).executor_id
    with pytest.raises(DocumentError) as caught:
        header(extension, nothing + primitive.replace("primitive", "runtime"))
    assert [problem.code for problem in caught.value.problems] == ["no-executor"]


def test_a_file_that_no_reader_knows_is_refused() -> None:
    assert refusal(".exe", "executor_id: a").startswith(
        "/p/t.exe: no reader knows this kind of file\nfix: known: .py,"
    )


LIMITS = [
    (".py", "x = " + "-" * 100_000 + "1"),
    (".py", "x = " + "1+" * 20_000 + "1"),
    (".py", "x = 1\n" * (readers.MAX_PYTHON // 6 + 1)),
    (".py", "CONFIG = " + "[" * 70 + "]" * 70),
    (".js", "const CONFIG = " + "[" * 70 + "]" * 70),
    (".js", "[" * 2_000),
    (".js", "`${" * 2_000),
    (".js", "x\n" * (readers.MAX_JAVASCRIPT // 2 + 1)),
    (".js", "=/[" * 20_000),
    (".yaml", "config: " + "[" * 70 + "]" * 70),
    (".sh", "# config: " + "[" * 70 + "]" * 70),
]


@pytest.mark.parametrize(("extension", "contents"), LIMITS)
def test_a_limit_is_an_error_of_its_own(extension: str, contents: str) -> None:
    with pytest.raises(LimitError):
        item(extension, contents)


def test_the_search_for_the_end_of_a_pattern_is_bounded() -> None:
    longest = "a" * (readers.MAX_PATTERN - 3)
    assert header(".js", f"const __executor_id__ = 'a'; x = /{longest}'/").executor_id == "a"
    assert places(".js", f"x = /{longest}a'/") == [
        f"1:{readers.MAX_PATTERN + 4}: this string is never closed"
    ]


def test_a_large_script_is_read_for_its_first_lines_only() -> None:
    assert header(".sh", "# executor_id: a\n" + "echo\n" * documents.MAX_TEXT).executor_id == "a"


FRAGMENTS = [
    "__executor_id__", "CONFIG", "const ", "let ", "var ", "export ", "type ", " = ", ": ", ", ", ";", "\n", "\r", "\r\n", "'", '"', "`", "${", "{", "}",
    "[", "]", "(", ")", "/", "//", "/*", "*/", "\\", "\\u", "\\x4", "\\u{110000}", "<", ">", "=>", "as const", "...", "-", "1", "1e999", "0x", "0_1", "a", "a.b",
    "true", "null", "None", "if (x) ", "# ", "#!", "---", "# ---\n", "// ---\n", "# executor_id: a\n", "// config:", "//   a: |\n", "executor_id: a\n",
    "é", "😀", "\0", "\u2028", "\ufeff", "\t", "f'{", "'''", '"""', "&a ", "*a", "!!x ", "<<: ", "? ", "- ", "|\n", ">",
]  # fmt: skip
any_bytes = (
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(lambda parts: "".join(parts).encode())
)


@settings(max_examples=examples(600), deadline=None)
@given(extension=st.sampled_from(EXTENSIONS), data=any_bytes)
def test_any_bytes_are_an_item_or_an_error_with_a_place(extension: str, data: bytes) -> None:
    match read_or_refused(extension, data):
        case ToolFile(data=read):
            assert read == data
        case error:
            assert all(
                str(problem.where).startswith(f"/p/t{extension}") for problem in error.problems
            )
            assert str(error)


parts = st.sampled_from(
    [
        "interpreter", "env", "passes", "type", "var", "binary", "candidates", "path", "mode", "root", "lib", "env_paths",
        "PATH", "prepend", "scope", "extensions", "enabled", "min_version", "name", "local_binary", "auto", "anchor",
    ]
)  # fmt: skip
shapes = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | parts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(parts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    fields=st.dictionaries(st.sampled_from(sorted(Header.__dataclass_fields__)), shapes, max_size=4)
)
def test_a_header_of_any_shape_is_typed_or_refused(fields: dict[str, object]) -> None:
    match read_or_refused(".yaml", json.dumps(fields).encode()):
        case ToolFile(header=header):
            assert header.executor_id == fields.get("executor_id")
        case error:
            assert error.problems


def read_or_refused(extension: str, data: bytes) -> ToolFile | DocumentError | LimitError:
    try:
        return item(extension, data)
    except (DocumentError, LimitError) as error:
        return error


# ── the map ──────────────────────────────────────────────────────────────────────────────────────


def test_every_extension_has_a_reader_and_every_reader_an_extension() -> None:
    assert {kind.reader for kind in FILE_TYPES.values()} == set(READERS)


@pytest.mark.parametrize("executor", sorted({kind.executor for kind in FILE_TYPES.values()}))
def test_the_usual_executor_of_a_file_exists(executor: str) -> None:
    is_file = os.path.isfile(os.path.join(SYSTEM, "tools", f"{executor}.yaml"))
    assert is_file or executor in PRIMITIVES


def test_every_name_in_code_is_a_key_and_every_key_has_a_name() -> None:
    assert set(Header.__dataclass_fields__) <= set(NAMES.values()) <= KEYS | INFORMATIONAL


def test_a_project_cannot_change_how_headers_are_read(tmp_path: Path) -> None:
    extractor = tmp_path / ".ai/tools/core/extractors/tools.yaml"
    extractor.parent.mkdir(parents=True)
    extractor.write_text(
        "extensions: {.py: {reader: yaml, comment: '#', executor: x}}\nnames: {}\n"
    )
    parser = tmp_path / ".ai/parsers/python.py"
    parser.parent.mkdir()
    parser.write_text("raise SystemExit('a parser of the project was run')\n")
    found = tool(tmp_path, "t.py", "__executor_id__ = 'a'\nraise SystemExit('the tool was run')\n")
    assert read_item(found).header.executor_id == "a"


@pytest.mark.parametrize(
    "module", sorted(Path(readers.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_nothing_in_a_reader_can_run_what_it_reads(module: Path) -> None:
    tree = ast.parse(module.read_text("utf-8"))
    calls = [
        (node.func.id, [ast.unparse(given) for given in node.args])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not {name for name, _ in calls} & {"eval", "exec", "__import__"}
    # A tree, and nothing that could run.
    assert all("ast.PyCF_ONLY_AST" in given for name, given in calls if name == "compile")
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not imported & {"importlib", "runpy", "subprocess"}


# ── the cache ────────────────────────────────────────────────────────────────────────────────────

LATER = 1 << 62
"""A time at which every file of a test was written long ago."""


def tool(project: Path, name: str, contents: str) -> ToolLocation:
    path = project / ".ai" / "tools" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contents, "utf-8")
    found = Spaces((Space("project", str(project / ".ai")),)).find(os.path.splitext(name)[0])
    assert found is not None
    return found


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    found = tool(tmp_path, "t.yaml", "executor_id: a\n")
    cache = ItemCache(clock=lambda: LATER)
    first = cache.get(found)
    os.remove(found.path)  # what is gone cannot be read
    assert cache.get(found) is first
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    cache = ItemCache(clock=lambda: LATER)
    before = cache.get(tool(tmp_path, "t.yaml", "executor_id: a\n"))
    after = cache.get(tool(tmp_path, "t.yaml", "executor_id: longer\n"))
    assert (before.header.executor_id, after.header.executor_id) == ("a", "longer")
    assert before.digest != after.digest
    assert (cache.hits, cache.misses, len(cache)) == (0, 2, 1)


def test_a_file_just_written_is_not_believed_to_stay(tmp_path: Path) -> None:
    # Within the grain of the clock a second change would leave the same stamp.
    found = tool(tmp_path, "t.yaml", "executor_id: a\n")
    now = found.stamp.changed
    cache = ItemCache(clock=lambda: now)
    cache.get(found)
    cache.get(found)
    assert (cache.hits, cache.misses, len(cache)) == (0, 2, 0)
    now += 1_000_000_000
    cache.get(found)
    cache.get(found)
    assert (cache.hits, cache.misses, len(cache)) == (1, 3, 1)


def test_an_item_is_cached_under_the_stamp_of_what_was_read() -> None:
    found = InMemory("t", Space("project", "/p"), "t.yaml", STAMP, b"executor_id: a\n")
    stale = replace(found, stamp=replace(STAMP, inode=99))
    cache = ItemCache(clock=lambda: LATER)
    cache.get(found)
    cache.get(stale)  # found before the file was replaced: read again, as it is now
    assert (cache.hits, cache.misses) == (0, 2)


def test_a_file_with_an_error_is_read_each_time(tmp_path: Path) -> None:
    found = tool(tmp_path, "t.yaml", "versoin: 1\n")
    cache = ItemCache(clock=lambda: LATER)
    for _ in range(2):
        with pytest.raises(DocumentError):
            cache.get(found)
    assert (cache.hits, cache.misses, len(cache)) == (0, 2, 0)


def test_one_file_in_two_spaces_is_two_items(tmp_path: Path) -> None:
    found = tool(tmp_path, "t.yaml", "executor_id: a\n")
    cache = ItemCache(clock=lambda: LATER)
    as_user = replace(found, space=Space("user", found.space.root))
    assert [cache.get(each).space.name for each in (found, as_user, found)] == [
        "project",
        "user",
        "project",
    ]


def test_the_item_used_longest_ago_goes_first(tmp_path: Path) -> None:
    a, b, c = (tool(tmp_path, f"{name}.yaml", "executor_id: a\n") for name in "abc")
    cache = ItemCache(most=2, clock=lambda: LATER)
    for found in (a, b, a, c, a, b):
        cache.get(found)
    assert (cache.hits, cache.misses, len(cache)) == (2, 4, 2)


def test_the_bytes_in_the_cache_are_bounded(tmp_path: Path) -> None:
    size = 1_000
    found = [tool(tmp_path, f"t{n}.yaml", "executor_id: a\n".ljust(size, "\n")) for n in range(5)]
    cache = ItemCache(most_bytes=2 * size, clock=lambda: LATER)
    for _ in range(3):
        for each in found:
            cache.get(each)
    assert len(cache) == 2
    cache.get(tool(tmp_path, "large.yaml", "executor_id: a\n".ljust(3 * size, "\n")))
    assert len(cache) == 0


def test_threads_share_a_cache(tmp_path: Path) -> None:
    found = [tool(tmp_path, f"t{n}.yaml", f"executor_id: e{n}\n") for n in range(8)]
    cache = ItemCache(most=4, clock=lambda: LATER)
    wrong: list[str] = []
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait(timeout=10)
        for turn in range(200):
            each = found[turn * 7 % 8]
            if cache.get(each).header.executor_id != f"e{each.id[1:]}":
                wrong.append(each.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert (wrong, cache.hits + cache.misses, len(cache)) == ([], 800, 4)
