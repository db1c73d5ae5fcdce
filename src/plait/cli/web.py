"""`plait web`: show runs in a browser, and start, stop and resume them there."""

from __future__ import annotations

import sys

from plait.cli.project import require_folder
from plait.cli.serving import add_serving
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait web",
    "plait web --project ~/one --project ~/two --listen 8000",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        default="0",
        help="PORT, or HOST:PORT; default: a free port of 127.0.0.1",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--project",
        metavar="DIR",
        action="append",
        help="show this project (may be repeated); default: this one and those that you trust",
    )
    add_serving(parser)


def run(options: argparse.Namespace) -> int:
    from plait.app.toolbox import project_root
    from plait.cli.crash_report import report
    from plait.cli.serving import read_serving, serve
    from plait.httpd.listen import parse_address
    from plait.httpd.serve import HttpServer, require_web
    from plait.web.projects import Projects, known_projects

    for folder in options.project or ():
        require_folder(folder)
    require_web()
    from plait.web.server import STYLESHEET, make_app

    listen = read_serving(options, *parse_address(options.listen))
    projects = Projects(known_projects(options.project, project_root(None)))
    server = HttpServer(
        make_app(projects), listen, public=[STYLESHEET], stylesheet=STYLESHEET, report_bug=report
    )
    try:
        serve(server, lambda: _announce(server.make_link(), browser=not options.no_browser))
    finally:
        projects.close()
    return 0


def _announce(link: str, *, browser: bool) -> None:
    """Print where the pages are, and open them."""
    print(f"runs in a browser: {link}", flush=True)
    print("Ctrl-C ends it; runs that it started go on", file=sys.stderr, flush=True)
    if browser:
        from threading import Thread

        # a browser in a terminal does not return at once
        Thread(target=_open, args=(link,), daemon=True).start()


def _open(link: str) -> None:
    import webbrowser

    try:
        was_opened = webbrowser.open(link)
    except (webbrowser.Error, OSError):
        was_opened = False
    if not was_opened:
        print("no browser could be opened: open the address above", file=sys.stderr, flush=True)
