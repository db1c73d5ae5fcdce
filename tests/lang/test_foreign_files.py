"""A file that is not a flow: the message says what it is, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import InputError
from plait.lang.analysis.explain_file import read_document
from plait.lang.check import check_file
from plait.lang.flow_text import FlowText
from plait.lang.foreign_files import NEW_FLOW
from plait.lang.load import read_flow
from plait.views.diagram.files import file_diagram

ACTIONS = "name: ci\non: [push]\njobs: {build: {steps: [{run: make}]}}\n"
FOREIGN: list[tuple[str, str | bytes, str]] = [
    ("ci.yml", ACTIONS, "this is a GitHub Actions workflow, not a flow of Plait"),
    (
        ".gitlab-ci.yml",
        "build: {script: [make]}\n",
        "this is a GitLab CI file, not a flow of Plait",
    ),
    ("Makefile", "all: x\n\techo hi\n", "this is a Makefile, not a flow of Plait"),
    ("rules", ".PHONY: all\nall: x y\n\techo hi\n", "this is a Makefile, not a flow of Plait"),
    ("justfile", "default:\n  echo hi\n", "this is a justfile, not a flow of Plait"),
    ("rules", "rule sort:\n    input: 'a'\n", "this is a Snakefile, not a flow of Plait"),
    (
        "compose.yaml",
        "services: {web: {image: x}}\n",
        "this is a Compose file, not a flow of Plait",
    ),
    ("pod.yaml", "apiVersion: v1\nkind: Pod\n", "this is a Kubernetes file, not a flow of Plait"),
    ("empty.yaml", "", "this file is empty, not a flow"),
    ("blank.yaml", "\n  \n", "this file is empty, not a flow"),
    ("notes.yaml", "# later\n\n  # more\n", "this file is empty but for comments, not a flow"),
    ("start.yml", "---\n# later\n...\n", "this file is empty but for comments, not a flow"),
    ("true", b"\x7fELF\x02\x01\x01\0\0\xff\xfe", "this is a binary file, not text"),
    ("wide.yaml", "steps: []".encode("utf-16"), "this file is UTF-16, not UTF-8"),
]


@pytest.mark.parametrize(("name", "content", "what"), FOREIGN)
def test_the_error_of_a_foreign_file_names_its_format(
    tmp_path: Path, name: str, content: str | bytes, what: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        read_flow(FlowText.read(str(file)))
    [problem] = caught.value.problems
    assert (problem.what, problem.where) == (what, str(file))
    assert problem.fix is not None
    if problem.code == "no-flow":
        assert problem.fix.endswith(NEW_FLOW)
    [finding] = check_file(str(file), must_be_flow=True)
    assert finding.problem == problem
    for read in (file_diagram, read_document):  # of plait graph and plait explain
        with pytest.raises(InputError) as caught:
            read(str(file))
        assert list(caught.value.problems) == [problem]


FLOWS = [
    ("Makefile", "steps: [{shell: make}]\n"),  # a name alone makes nothing foreign
    ("flow.yaml", "name: x\nservices: {a: 1}\nsteps: [{shell: make}]\n"),
    ("latin.yaml", b"steps: [{shell: echo \xe9}]\n"),  # a place in a text helps
    ("flow.yaml", "steps:\n\t- shell: make\n"),
]


@pytest.mark.parametrize(("name", "content"), FLOWS)
def test_a_flow_with_a_mistake_is_no_foreign_file(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    for finding in check_file(str(file), must_be_flow=True):
        assert isinstance(finding.problem.where, str) is (name == "latin.yaml")
        assert finding.problem.code != "no-flow"


WORDS = [
    ("steps: [{run: make}]", "'run' is not a field of a step", "did you mean 'shell'?"),
    ("steps: [{script: make}]", "'script' is not a field of a step", "did you mean 'shell'?"),
    ("steps: [{uses: a/b}]", "'uses' is not a field of a step", "did you mean 'tool'?"),
    ("steps: [{shell: a, if: b}]", "'if' is not a field of a step", "did you mean 'when'?"),
    ("map: {items: [1], steps: [{shell: a}]}", "'items' is not a field of a map", "did you mean 'input'?"),
    ("environment: {A: 1}\nsteps: [{shell: a}]", "'environment' is not a field of a flow", "did you mean 'env'?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "fix"), WORDS)
def test_a_word_of_another_system_leads_to_ours(
    tmp_path: Path, text: str, what: str, fix: str
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(text)
    first = check_file(str(file), must_be_flow=True)[0].problem
    assert (first.what, first.fix) == (what, fix)
    if "run:" in text:  # one mistake, one problem
        assert len(check_file(str(file))) == 1
