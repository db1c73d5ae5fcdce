"""`plait export`: send a recorded run to another system."""

from __future__ import annotations

from plait.cli.project import add_project, require_folder
from plait.core.errors import InputError, RequestError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait export otel 7f3a",
    "plait export otel 7f3a --rest",
)
FORMATS: Final = ("otel",)


def configure(parser: Parser) -> None:
    parser.add_argument("format", metavar="FORMAT", help="otel: spans and logs, by OTLP over HTTP")
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "--rest", action="store_true", help="only what the collector did not take while it ran"
    )
    parser.add_argument("--json", action="store_true", help="what was sent, for programs")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.telemetry import export_run
    from plait.views.format import json_line

    if options.format not in FORMATS:
        raise InputError(
            f"no run can be exported as '{options.format}'",
            fix=f"known: {', '.join(FORMATS)}",
            code="arguments",
        )
    require_folder(options.project)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        delivery = export_run(opened, opened.project, rest=options.rest)
    if not delivery.has_all_spans:
        raise RequestError(
            f"after {delivery.sent} spans of run {name}, the collector took no more: {delivery.why}",
            fix="look at the collector and at OTEL_EXPORTER_OTLP_ENDPOINT, then try again",
            code="collector",
        )
    if options.json:
        record = {"run": name, "sent": delivery.sent, "rejected": delivery.rejected}
        print(json_line({**record, "problem": delivery.why or delivery.refusal or None}))
        return int(delivery.rejected > 0)
    many = "1 span" if delivery.sent == 1 else f"{delivery.sent:,} spans"
    why = f": {delivery.refusal}" if delivery.refusal else ""
    refused = f", {delivery.rejected} refused{why}" if delivery.rejected else ""
    print(f"run {name}: {many} sent{refused}")
    if delivery.why:
        print(f"not sent: {delivery.why}")
    return int(delivery.rejected > 0)
