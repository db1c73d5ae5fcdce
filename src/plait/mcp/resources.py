"""Runs, their logs and their outputs as resources, read from the journals.

Only runs that this user made, of flows that are offered, can be read.
"""

from __future__ import annotations

import time
from functools import partial
from urllib.parse import unquote

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.values import Json, json_text
from plait.mcp.catalog import Catalog
from plait.mcp.protocol import INVALID_PARAMS, RESOURCE_NOT_FOUND, ProtocolError, Request
from plait.mcp.run_jobs import RunJobs

BEGIN: Final = "plait://runs/"
MOST_LISTED: Final = 50
"""Runs that a listing names; older ones can be read by their ids."""
MAX_LOG: Final = 1 << 20
"""Characters of a log; a step or item can be read alone."""
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"


def list_resources(catalog: Catalog) -> list[Json]:
    """The newest runs."""
    from plait.app import runs as flows

    catalog.entries()
    return [
        {
            "uri": BEGIN + one.id,
            "name": one.id,
            "title": f"{one.flow}: {one.status}",
            "description": f"run {one.id} of {one.flow}",
            "mimeType": _JSON,
        }
        for one in flows.flow_runs(catalog.project, MOST_LISTED)
        if not one.foreign and catalog.has_run(one.file)
    ]


def list_templates() -> list[Json]:
    return [
        _template("{run}", "run", "What happened in a run: its parts, steps and failures", _JSON),
        _template("{run}/output", "output", "The output of a run", _TEXT),
        _template("{run}/log", "log", "What the steps of a run printed", _TEXT),
        _template("{run}/log/{step}", "log of a step", "The same of one step or item", _TEXT),
    ]


def _template(path: str, name: str, what: str, form: str) -> Json:
    return {"uriTemplate": BEGIN + path, "name": name, "description": what, "mimeType": form}


def read_resource(runs: RunJobs, request: Request) -> dict[str, Json]:
    uri = request.text("uri")
    missing = INVALID_PARAMS if request.is_stateless else RESOURCE_NOT_FOUND
    try:
        form, contents = _read(runs, uri)
    except PlaitError as error:
        raise ProtocolError(missing, str(error), {"uri": uri}) from None
    except LookupError:
        what = f"there is no resource '{uri[:200]}'; resources begin with {BEGIN}RUN"
        raise ProtocolError(missing, what, {"uri": uri}) from None
    return {"contents": [{"uri": uri, "mimeType": form, "text": contents}]}


def _read(runs: RunJobs, uri: str) -> tuple[str, str]:
    """The form and the text of a resource; LookupError: the uri names none."""
    if not uri.startswith(BEGIN):
        raise LookupError
    match [unquote(part) for part in uri.removeprefix(BEGIN).split("/", 2)]:
        case [run] if run:
            return _JSON, _report(runs, run)
        case [run, "output"] if run:
            output = runs.state(run).output
            return (_TEXT, output) if isinstance(output, str) else (_JSON, json_text(output))
        case [run, "log"] if run:
            return _TEXT, _log(runs, run, None)
        case [run, "log", step] if run and step:
            return _TEXT, _log(runs, run, step)
    raise LookupError


def _report(runs: RunJobs, run: str) -> str:
    from plait.views.format import json_line
    from plait.views.report import read_report, report_json

    with runs.opened(run) as (store, opened):
        is_running = partial(store.is_running, opened.id)
        report = read_report(opened.id, opened.journal, is_running=is_running, short=True)
        return json_line(report_json(report, now=time.time()))


def _log(runs: RunJobs, run: str, step: str | None) -> str:
    from plait.views.log import log_lines, read_log

    lines: list[str] = []
    size = 0
    with runs.opened(run) as (_, opened):
        for line, _colour in log_lines(read_log(opened.journal, opened.id, step)):
            size += len(line) + 1
            if size > MAX_LOG:
                lines.append("[cut: read the log of one step or item]")
                break
            lines.append(line)
    return "\n".join(lines) + "\n"
