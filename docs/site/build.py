"""Build the documentation site: `make docs`, or `python docs/site/build.py`.

docs/README.md is the navigation: each heading is a part, each entry of its list a page.  The pages are
copied, their links to files outside of docs/ lead to copies of those files, and Zensical makes the site.
Each example is a page with its picture and its flow.  The button beside a console block copies what is typed.
Then every link and anchor of the site is followed, and nothing may be loaded from another host.

    build/docs      what Zensical reads
    build/site      the site; `python -m http.server -d build/site` shows it, with search
    build/site/llms.txt     the pages as a list for language models, which read the Markdown beside it
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from plait.app.examples import all_examples
from plait.cli.schema import FORMATS
from plait.schema.json_schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOT_PUBLISHED = {DOCS / "site", DOCS / "pictures" / "make.py", DOCS / "pictures" / "make_web.py"}
EXAMPLES = ROOT / "examples"
FLOWS = {Path(one.folder, "README.md"): Path(one.folder, one.flow) for one in all_examples()}
"""The flow of each example, by its page."""
EXAMPLE_PAGES = {page: f"examples/{page.parent.name}.md" for page in FLOWS}
PAGES_OUTSIDE = {
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    EXAMPLES / "README.md": "examples/README.md",
} | EXAMPLE_PAGES
"""Pages that the site has, and docs/ has not: where each is put."""
PICTURES = {".png", ".svg"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
ROW = re.compile(r"\| *\d+ \| \[([^\]]+)\]\(([^)#\s]+)\) \| (.+) \|")
ENTRY = re.compile(r"- \[([^\]]+)\]\(([^)#\s]+)\)(?:: (.*))?")
SUMMARY = (
    "Run shell commands, tools and AI agents over many items from one YAML file. A run is recorded, "
    "so it resumes after a crash; values never become shell code."
)


# ── the navigation ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Page:
    title: str
    path: str
    """Below docs/ or above it, as a link of docs/README.md names it."""
    what: str
    below: list[Part] = field(default_factory=list)
    """The parts of the index of a folder."""


@dataclass(frozen=True)
class Part:
    title: str
    pages: list[Page]


def parts(index: Path) -> list[Part]:
    """The parts of a navigation: the headings of an index, and the entries of the lists below them.

    The examples are the numbered rows of a table.
    """
    found: list[Part] = []
    for line in index.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## (.+)", line):
            found.append(Part(heading[1], []))
        elif (entry := ENTRY.fullmatch(line) or ROW.fullmatch(line)) and found:
            found[-1].pages.append(_page(index.parent, *entry.groups(default="")))
    return [part for part in found if part.pages]


def _page(folder: Path, title: str, target: str, what: str) -> Page:
    file = (folder / target).resolve()
    path = os.path.relpath(file, DOCS)
    is_index = file.name == "README.md" and file not in EXAMPLE_PAGES
    return Page(title, path, what, parts(file) if is_index else [])


def navigation(found: list[Part]) -> str:
    """The parts as the value of `nav` in TOML, whose strings and lists are those of JSON."""
    return _list([_table("Home", '"README.md"'), *map(_part, found)])


def _part(part: Part) -> str:
    first, *others = part.pages
    # The index of a folder that comes first is the page of the whole part.
    if first.below:
        folder = [json.dumps(published_path(first.path)), *map(_part, first.below)]
        return _table(part.title, _list([*folder, *map(_line, others)]))
    return _table(part.title, _list([_line(page) for page in part.pages]))


def _line(page: Page) -> str:
    path = json.dumps(published_path(page.path))
    below = [_line(one) for part in page.below for one in part.pages]
    return _table(page.title, _list([path, *below]) if below else path)


def _table(key: str, value: str) -> str:
    return f"{{{json.dumps(key, ensure_ascii=False)} = {value}}}"


def _list(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


def published_path(path: str) -> str:
    return PAGES_OUTSIDE.get((DOCS / path).resolve(), path)


# ── the pages ────────────────────────────────────────────────────────────────────────────────────


def copy_pages(target: Path) -> None:
    """Copy docs/, and every file outside of it to which a page leads."""
    shutil.rmtree(target, ignore_errors=True)
    files = [path for path in sorted(DOCS.rglob("*")) if path.is_file() and _is_published(path)]
    places = {path: str(path.relative_to(DOCS)) for path in files} | PAGES_OUTSIDE
    for path, place in places.items():
        made = target / place
        made.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, made)
            continue
        text = relink(path.read_text(encoding="utf-8"), path, place, target)
        if flow := FLOWS.get(path):
            text += f"\n## {flow.name}\n\n~~~~{flow.suffix[1:]}\n{flow.read_text('utf-8')}~~~~\n"
        made.write_text(text, encoding="utf-8")


def _is_published(path: Path) -> bool:
    return not NOT_PUBLISHED.intersection([path, *path.parents]) and "__pycache__" not in path.parts


def relink(text: str, path: Path, place: str, target: Path) -> str:
    """The page with links that hold where it is put; files outside of the site are copied to it."""

    def lead(found: re.Match[str]) -> str:
        link, hash_sign, anchor = found[2].partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return found[0]
        file = (path.parent / link).resolve()
        published = _publish(file, target)
        leads = os.path.relpath(published, Path(place).parent) if published else link
        return f"{found[1]}{leads}{hash_sign}{anchor}{found[3]}"

    return "".join(
        piece if piece.startswith("```") else LINK.sub(lead, piece)
        for piece in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    )


def _publish(file: Path, target: Path) -> str | None:
    """The place of a file in the site, below it; None if there is no such file."""
    if file.is_relative_to(DOCS) and file.is_file():
        return str(file.relative_to(DOCS))
    if file in PAGES_OUTSIDE:
        return PAGES_OUTSIDE[file]
    if FLOWS.get(page := file.parent / "README.md") == file:
        return EXAMPLE_PAGES[page]
    if file.is_dir() and (file / "README.md").is_file():
        return _publish(file / "README.md", target)
    if not file.is_relative_to(ROOT) or not file.is_file():
        return None
    # A browser shows it, whatever it is.
    place = f"files/{file.relative_to(ROOT)}{'' if file.suffix in PICTURES else '.txt'}"
    (target / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target / place)
    return place


def write_llms(found: list[Part], target: Path) -> None:
    """List the pages for language models, as https://llmstxt.org asks; their Markdown lies beside them."""
    lines = ["# Plait", "", f"> {SUMMARY}"]
    for part in found:
        lines += ["", f"## {part.title}", "", *map(_entry, _flat(part.pages))]
    (target / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _flat(pages: list[Page]) -> Iterator[Page]:
    for page in pages:
        yield page
        for part in page.below:
            yield from _flat(part.pages)


def _entry(page: Page) -> str:
    about = f": {page.what}" if page.what else ""
    return f"- [{page.title}]({published_path(page.path)}){about}"


def write_schemas(target: Path) -> None:
    """Write the JSON Schemas of the file formats, for editors."""
    (target / "schema").mkdir(exist_ok=True)
    for name in FORMATS:
        text = json.dumps(json_schema(name), indent=2, ensure_ascii=False)
        (target / "schema" / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


# ── the site as it was built ─────────────────────────────────────────────────────────────────────

CONSOLE = re.compile(
    r'<div class="highlight">(?=<pre><span></span><code>(<span class="gp">.*?)</code>)', re.S
)


def write_commands(site: Path) -> None:
    """Let the button beside a console block copy the commands, without prompts and output."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(CONSOLE.sub(_with_commands, text), encoding="utf-8")


def _with_commands(found: re.Match[str]) -> str:
    typed = commands(html.unescape(re.sub(r"<[^>]+>", "", found[1])))
    return f'<div class="highlight" data-copy="{html.escape(typed)}">'


def commands(console: str) -> str:
    """What a person types: the lines after `$ `, and those after `> ` that continue them."""
    typed: list[str] = []
    goes_on = False
    for line in console.splitlines():
        goes_on = line.startswith("$ ") or (goes_on and (line == ">" or line.startswith("> ")))
        if goes_on:
            typed.append(line[2:])
    return "\n".join(typed)


class Html(HTMLParser):
    """The ids of a page, the places to which it leads, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


def site_problems(site: Path) -> Iterator[str]:
    """Every link that leads nowhere, and all that would be loaded from another host."""
    pages = {path: Html(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for load in page.loads:
            if re.match(r"(https?:)?//", load):
                yield f"{name}: loads {load} from another host"
        for lead in page.leads + page.loads:
            if lead and not re.match(r"[a-z]+:|//", lead) and (problem := _lost(path, lead, pages)):
                yield f"{name}: {lead}: {problem}"
    for style in sorted(site.rglob("*.css")):
        for load in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", style.read_text("utf-8")):
            yield f"{style.relative_to(site)}: loads {load} from another host"


def _lost(path: Path, lead: str, pages: dict[Path, Html]) -> str | None:
    link, _, anchor = lead.partition("#")
    file = (path.parent / unquote(link.partition("?")[0])).resolve() if link else path
    if file.is_dir():
        file /= "index.html"
    if path.name == "404.html" or file.is_file():
        known = pages.get(file)
        missing = anchor and known is not None and unquote(anchor) not in known.ids
        return "there is no such anchor" if missing and not anchor.startswith("__") else None
    return "there is no such file"


def main() -> int:
    source, site = ROOT / "build" / "docs", ROOT / "build" / "site"
    found = parts(DOCS / "README.md")
    copy_pages(source)
    write_llms(found, source)
    write_schemas(source)
    shutil.rmtree(site, ignore_errors=True)
    config = (DOCS / "site" / "zensical.toml").read_text(encoding="utf-8")
    folders = f'[project]\ndocs_dir = "docs"\nsite_dir = "site"\nnav = {navigation(found)}\n'
    made = ROOT / "build" / "zensical.toml"
    made.write_text(config.replace("[project]\n", folders, 1), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(made)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        return 1
    for path in source.rglob("*.md"):  # what llms.txt names
        shutil.copyfile(path, site / path.relative_to(source))
    write_commands(site)
    problems = list(site_problems(site))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{len(problems)} problems in the site", file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
