"""What pyproject.toml promises about Python and about packages, and what is used of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import interpreters

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = tomllib.loads(TEXT)["project"]

# Modules below a package that its documentation names; everything else is imported from the package itself.
DOCUMENTED = {
    "cryptography.hazmat.primitives",
    "cryptography.hazmat.primitives.asymmetric",
    "dask.distributed",
    "mcp.client.streamable_http",
    "mcp.shared.message",
    "mcp.types",
    "nacl.bindings",
    "opentelemetry.proto.collector.logs.v1.logs_service_pb2",
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    "opentelemetry.proto.common.v1.common_pb2",
    "opentelemetry.proto.logs.v1.logs_pb2",
    "opentelemetry.proto.metrics.v1.metrics_pb2",
    "opentelemetry.proto.resource.v1.resource_pb2",
    "opentelemetry.proto.trace.v1.trace_pb2",
    "opentelemetry.sdk.resources",
    "opentelemetry.sdk.trace.sampling",
    "opentelemetry.trace",
    "opentelemetry.trace.propagation.tracecontext",
    "oteltest.sink",
    "nacl.exceptions",
    "nacl.pwhash",
    "nacl.secret",
    "nacl.utils",
    "packaging.requirements",
    "packaging.utils",
    "packaging.version",
    "rich.cells",
    "rich.console",
    "rich.live",
    "rich.text",
    "starlette.applications",
    "starlette.concurrency",
    "starlette.requests",
    "starlette.responses",
    "starlette.routing",
    "starlette.types",
    "tornado.gen",
}
# Not documented, and there is no other way; `make check` tries them with the lowest and the highest version.
UNDOCUMENTED = {
    "cryptography.hazmat.primitives",
    "cryptography.hazmat.primitives.asymmetric",
    "distributed.comm",  # check whether a server listens, before a client waits for it
    "distributed.comm.core",
    "distributed.protocol",  # a call as a worker reads it
    "dotenv.parser",  # the lines of a file with their numbers
    "dotenv.variables",  # its values without the environment of this process
    "uvicorn.protocols.http.h11_impl",  # a connection, to bound how slow it may be
}


DISTRIBUTIONS = packages_distributions()
IMPORT = re.compile(r"^[ \t]*(?:from|import) ([A-Za-z_][\w.]*)", re.MULTILINE)


def foreign_modules(*folders: str) -> Iterator[tuple[str, str]]:
    """Every imported module of an installed package that is not ours, with the file that imports it."""
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for module in set(IMPORT.findall(file.read_text("utf-8"))):
            package = module.split(".")[0]
            if (
                package not in sys.stdlib_module_names
                and package in DISTRIBUTIONS
                and package != "plait"
            ):
                yield str(file.relative_to(ROOT)), module


def requirements(*extras: str) -> list[Requirement]:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


def test_only_public_names_of_dependencies_are_imported() -> None:
    private = [
        f"{file} imports {module}"
        for file, module in foreign_modules("src", "tests", "bench")
        if "._" in module
        or module.startswith("_")
        or (
            "." in module
            and module not in DOCUMENTED | UNDOCUMENTED
            and not file.startswith("tests/data/")
        )
    ]
    assert private == []


FOR_USERS = ("mcp", "dask", "otel", "web")
"""The extras that are a part of Plait."""


@pytest.mark.parametrize(("folder", "extras"), [("src", FOR_USERS), ("tests", (*FOR_USERS, "dev"))])
def test_everything_that_is_imported_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    declared = {canonicalize_name(one.name) for one in requirements(*extras)}
    undeclared = {
        f"{file} imports {module}"
        for file, module in foreign_modules(folder)
        if not declared & {canonicalize_name(name) for name in DISTRIBUTIONS[module.split(".")[0]]}
    }
    assert undeclared == set()


def test_every_dependency_has_a_lower_bound_and_a_reason_for_an_upper_one() -> None:
    everything = requirements(*PROJECT["optional-dependencies"])
    for one in everything:
        operators = {part.operator for part in one.specifier}
        assert one.name == PROJECT["name"] or ">=" in operators, one
        for part in one.specifier:
            if part.operator != ">=":
                written = rf'"{re.escape(str(one.name))}>=[^"]*{re.escape(str(part))}[^"]*",\s+#.*{re.escape(str(part))}: \S'
                assert re.search(written, TEXT), f"why {one}?  # …; {part}: the reason"


def test_the_oldest_interpreter_is_the_one_that_is_required() -> None:
    named = interpreters.named_versions(PROJECT["classifiers"])
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert named == sorted(named, key=Version)


PLANS: list[tuple[list[str], list[str]]] = [
    (["3.11"], ["3.11 lowest-direct all", "3.11 highest all"]),
    (["3.11", "3.12"], ["3.11 lowest-direct all", "3.12 highest all"]),
    (
        ["3.11", "3.12", "3.13"],
        ["3.12 highest share", "3.11 lowest-direct all", "3.13 highest all"],
    ),
]


@pytest.mark.parametrize(("versions", "runs"), PLANS)
def test_all_tests_run_on_the_oldest_and_the_newest_interpreter(
    versions: list[str], runs: list[str]
) -> None:
    planned = interpreters.plan(versions)
    assert [
        f"{run.version} {run.resolution} {'all' if run.whole else 'share'}" for run in planned
    ] == runs


def test_make_check_and_so_ci_runs_the_tests_on_every_interpreter() -> None:
    printed = subprocess.run(
        ["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "tests/interpreters.py" in printed.stdout
    assert re.search(r"\bmake .*\bcheck$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("target", "installed"), [("demo", "."), ("test", "'.[dev]'")])
def test_only_the_tests_install_the_tools_of_the_tests(target: str, installed: str) -> None:
    printed = subprocess.run(
        ["make", "-n", target, "VENV=nowhere"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.findall(r"install .*--editable (\S+)", printed.stdout) == [installed]


def test_a_bound_that_was_not_tried_is_reported() -> None:
    bounds = {"a": Version("1"), "b": Version("2"), "c": None}
    installed = {"a": Version("1.0"), "b": Version("2.1"), "c": Version("3")}
    assert list(interpreters.untried_bounds(bounds, installed)) == [
        "pyproject.toml allows b 2, but 2.1 was tried; write that",
        "pyproject.toml gives c no lower bound; write one that was tried",
    ]


def test_an_interpreter_that_does_not_start_is_none(tmp_path: Path) -> None:
    here = "{}.{}".format(*sys.version_info[:2])
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\necho command not found >&2\nexit 127\n")
    shim.chmod(0o755)
    assert not interpreters.is_python(str(shim), here)
    assert not interpreters.is_python(str(tmp_path / "nowhere"), here)
    assert not interpreters.is_python(sys.executable, "3.10")
    assert interpreters.is_python(sys.executable, here)
