"""The documentation site: every page has its place, every link holds, nothing comes from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def load_builder() -> Any:
    spec = importlib.util.spec_from_file_location("site_builder", DOCS / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["site_builder"] = module  # its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


build = load_builder()
PARTS = build.parts(DOCS / "README.md")


def test_the_navigation_has_four_parts_and_the_decisions_apart() -> None:
    titles = [part.title for part in PARTS]
    assert titles == ["Tutorial", "Guides", "Reference", "Explanation", "Decisions"]
    nav = tomllib.loads(f"nav = {build.navigation(PARTS)}")["nav"]
    assert [title for entry in nav for title in entry] == ["Home", *titles]


def test_every_page_stands_in_the_navigation_once() -> None:
    nav = build.navigation(PARTS)
    placed = re.findall(r'"([^"]+\.md)"', nav)
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(placed) == sorted([*pages, *build.PAGES_OUTSIDE.values()])


LINKS = [
    # in the file             written                            in the site
    ("docs/runs.md",          "[a](tools.md#python)",            "[a](tools.md#python)"),
    ("docs/runs.md",          "[a](#stop)",                      "[a](#stop)"),
    ("docs/runs.md",          "[a](https://example.org/x.md)",   "[a](https://example.org/x.md)"),
    ("docs/runs.md",          "[a](../CONTRIBUTING.md#tests)",   "[a](contributing.md#tests)"),
    ("docs/runs.md",          "[a](../examples/)",               "[a](examples/README.md)"),
    ("docs/graphs.md",        "[a](../examples/hello/flow.yaml)", "[a](examples/hello.md)"),
    ("docs/runs.md",          "[a](../Makefile)",                "[a](files/Makefile.txt)"),
    ("docs/guides/README.md", "[a](../../Makefile)",             "[a](../files/Makefile.txt)"),
    ("examples/README.md",    "[a](../docs/runs.md)",            "[a](../runs.md)"),
    ("examples/README.md",    "[a](hello/README.md)",            "[a](hello.md)"),
    ("examples/README.md",    "[a](greet.yaml)",                 "[a](../files/examples/greet.yaml.txt)"),
    ("examples/hello/README.md", "![a](picture.svg)",            "![a](../files/examples/hello/picture.svg)"),
    ("docs/runs.md",          "[a](nowhere.md)",                 "[a](nowhere.md)"),
    ("docs/runs.md",          "```text\n[a](../Makefile)\n```",  "```text\n[a](../Makefile)\n```"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "written", "site"), LINKS)
def test_a_link_holds_where_the_page_is_put(
    file: str, written: str, site: str, tmp_path: Path
) -> None:
    path = ROOT / file
    place = build.PAGES_OUTSIDE.get(path) or str(path.relative_to(DOCS))
    assert build.relink(written, path, place, tmp_path) == site


TYPED = [
    # in the console block                        what the button copies
    ("$ ls\na  b\n",                              "ls"),
    ("$ cd a\n$ plait run f.yaml\n…\n",           "cd a\nplait run f.yaml"),
    ("$ cat > f <<'E'\n> a:\n>   b\n>\n> E\n",     "cat > f <<'E'\na:\n  b\n\nE"),
    ("$ ls\nout\n> not typed\n$ echo $a\n",      "ls\necho $a"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "typed"), TYPED)
def test_the_copy_button_gives_what_a_person_types(block: str, typed: str) -> None:
    assert build.commands(block) == typed


def test_the_copy_button_gets_the_commands_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<div class="highlight"><pre><span></span><code><span class="gp">$ </span>'
        'echo<span class="w"> </span>&quot;a &lt; b&quot;\n<span class="go">a</span></code></pre></div>'
        '<div class="highlight"><pre><span></span><code>steps: []</code></pre></div>'
    )
    build.write_commands(tmp_path)
    assert re.findall(r"<div[^>]*>", (tmp_path / "a.html").read_text()) == [
        '<div class="highlight" data-copy="echo &quot;a &lt; b&quot;">',
        '<div class="highlight">',
    ]


def test_the_page_of_an_example_has_its_flow_and_its_picture(tmp_path: Path) -> None:
    build.copy_pages(tmp_path)
    page = (tmp_path / "examples/review-directive.md").read_text("utf-8")
    flow = (ROOT / "examples/review-directive/review.md").read_text("utf-8")
    assert page.endswith(f"\n## review.md\n\n~~~~md\n{flow}~~~~\n")
    assert "](../files/examples/review-directive/picture.svg)" in page
    assert (tmp_path / "files/examples/review-directive/picture.svg").is_file()


def test_problems_of_a_site_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
        '<a href="#top">4</a><a href="https://example.org">5</a><img src="https://example.org/x.png">'
        '<link rel="stylesheet" href="s.css"><script src="//example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "s.css").write_text(
        "@import url(https://fonts.example/x); b {background: url(x.png)}"
    )
    assert list(build.site_problems(tmp_path)) == [
        "a.html: loads https://example.org/x.png from another host",
        "a.html: loads //example.org/x.js from another host",
        "a.html: b.html#gone: there is no such anchor",
        "a.html: c.html: there is no such file",
        "s.css: loads https://fonts.example/x from another host",
    ]


def test_the_list_for_language_models_names_every_page(tmp_path: Path) -> None:
    build.copy_pages(tmp_path)
    build.write_llms(PARTS, tmp_path)
    text = (tmp_path / "llms.txt").read_text("utf-8")
    listed = re.findall(r"\]\(([^)]+)\)", text)
    assert text.startswith("# Plait\n\n> Run shell commands")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")} == {
        *listed,
        "README.md",
    }


@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None,
    reason="the generator is not installed; `make docs` installs it and builds the site",
)
def test_the_site_is_built_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main() == 0, capsys.readouterr().err
