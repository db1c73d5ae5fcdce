"""Options of the commands that serve over HTTP, and what they print when they are ready."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from plait.core.hints import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.httpd.listen import Listen
    from plait.httpd.serve import HttpServer


OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--name": {
        "metavar": "HOST",
        "action": "append",
        "help": "a name by which clients reach the server",
    },
    "--tls-cert": {"metavar": "FILE", "help": "serve over TLS: certificate (PEM)"},
    "--tls-key": {"metavar": "FILE", "help": "and its key"},
    "--password-file": {
        "metavar": "FILE",
        "help": "a password instead of a token of this start; also from PLAIT_PASSWORD",
    },
    "--insecure": {
        "action": "store_true",
        "help": "listen at an address of the network without TLS: others can read everything",
    },
}
"""All options of a server except its address."""


def add_serving(parser: Parser) -> None:
    for option, settings in OPTIONS.items():
        parser.add_argument(option, **settings)


def first_serving_option(options: argparse.Namespace) -> str | None:
    """Return an option of a server that was given; None if there is none."""
    given = (one for one in OPTIONS if getattr(options, one[2:].replace("-", "_")))
    return next(given, None)


def read_serving(options: argparse.Namespace, host: str, port: int) -> Listen:
    """Return where to listen; InputError names everything that is missing."""
    from plait.httpd.listen import make_listen

    return make_listen(
        host,
        port,
        tls_certificate=options.tls_cert,
        tls_key=options.tls_key,
        insecure=options.insecure,
        password_file=options.password_file,
        names=options.name or (),
    )


def serve(server: HttpServer, announce: Callable[[], object], path: str = "/") -> None:
    """Serve until Ctrl-C; `announce` prints when it is ready, Enter prints a new link."""

    def ready() -> None:
        announce()
        if server.token is not None and sys.stdin is not None and sys.stdin.isatty():
            from threading import Thread

            Thread(target=_print_links, args=(server, path), daemon=True).start()

    server.run(ready)


def _print_links(server: HttpServer, path: str) -> None:
    for _line in sys.stdin:
        print(server.make_link(path), flush=True)
