"""What crosses the wire: it comes back as it was, and shows nothing on its way."""

from __future__ import annotations

import pickle
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lang.loading import load_file
from plait.adapters.dask import protocol
from plait.adapters.dask.replies import mask_reply, require_same_versions, to_error
from plait.app.remote.pack import FlowPacker
from plait.app.remote.payload import ItemTask, pack_items, seal, unseal
from plait.core.errors import InputError, TrustError
from plait.core.values import Json, Secret
from plait.engine.backend import WorkItem
from plait.engine.events import StepFinished, StepStarted
from plait.engine.outcome import Failure, Succeeded
from plait.engine.perform import StepContext
from plait.program.map import remote_map_run
from program.fakes import new_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON, secret=st.text(min_size=1))
def test_a_value_with_a_secret_arrives_as_it_was(value: Json, secret: str) -> None:
    sent = seal({"plain": value, "hidden": [Secret(secret)]})
    arrived = unseal(pickle.loads(pickle.dumps(sent)))
    assert arrived == {"plain": value, "hidden": [Secret(secret)]}


def test_a_secret_on_its_way_is_not_shown() -> None:
    assert repr(seal({"token": Secret("hunter22")})) == "{'token': ***}"


@given(item=JSON)
def test_an_item_arrives_as_it_was(item: Json) -> None:
    task = ItemTask(WorkItem(3, "k", item), 1.5, can_replay=True)
    versions, digest, data = protocol.unpack_message(pack_items("d", [task]))
    assert (versions, digest, pickle.loads(data)) == (protocol.own_versions(), "d", (task,))


REPLIES: list[protocol.Reply] = [
    protocol.ItemCompleted(
        Succeeded({"output": "x"}), (StepFinished("a", "k", "t", "f", Succeeded(1), 0.5),)
    ),
    protocol.ItemStopped(),
    protocol.ItemStopped(out_of_time=True),
    protocol.RunLimitReached(Failure("enough"), "map", ()),
    protocol.ItemRefused("InputError", "what", "fix", "code"),
    protocol.JobMissing("tcp://w"),
    protocol.BatchReply((protocol.ItemCompleted(Succeeded(), ()), protocol.ItemStopped()), 1.5),
    protocol.VersionMismatch(protocol.Versions("9.9", "3.99", 7), "tcp://w"),
]


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_arrives_as_it_was(reply: protocol.Reply) -> None:
    assert protocol.unpack_reply(protocol.pack_reply(reply)) == reply


def test_the_versions_of_a_foreign_worker_can_be_read_without_knowing_our_classes() -> None:
    data = protocol.pack_reply(
        protocol.VersionMismatch(protocol.Versions("9.9", "3.99", 7), "tcp://w")
    )
    assert pickle.loads(data) == ("9.9", "3.99", 7, "tcp://w")


def test_a_start_whose_end_is_there_is_not_recorded_and_that_of_a_second_attempt_is() -> None:
    first, second = StepStarted("a", "k", "t"), StepStarted("a", "k", "t", attempt=2)
    alone, end = StepStarted("b", "k", "t"), StepFinished("a", "k", "t", "f", Succeeded(), 0.0)
    assert protocol.events_to_record([first, second, alone, end]) == (second, alone, end)


# ── what is sent ─────────────────────────────────────────────────────────

FLOW = """\
secrets: {TOKEN: MY_TOKEN, OTHER: MY_OTHER}
env: {PLAIN: "1", BOTH: "x-${OTHER}"}
map:
  input: {items: [1]}
  steps: [{shell: 'curl -H "$TOKEN" ${env.CITY}'}]
reduce: [{shell: 'echo "$OTHER" ${env.STREET}'}]
"""
ENVIRON = {
    "MY_TOKEN": "needed-secret",
    "MY_OTHER": "other-secret",
    "CITY": "Ulm",
    "STREET": "Allee 7",
}


def packed_job(folder: Path, flow: str, **files: str) -> bytes:
    for name, text in {"flow.yaml": flow, **files}.items():
        (folder / name).write_text(text)
    loaded = load_file(str(folder / "flow.yaml"), project=str(folder), environ=ENVIRON)
    run = new_run(folder=str(folder))
    try:
        assert loaded.program.map is not None
        turn = StepContext(run, "map", loaded.scope("r"), directory=str(folder))
        map_run = remote_map_run(loaded.program.map, turn, 1)
        packer = FlowPacker(loaded, run, profile=None)
        assert packer.takes(map_run)
        return packer.pack_job(map_run, shared=False)[1]
    finally:
        run.events.close()


def test_only_those_variables_are_sent_that_a_step_of_the_items_names_and_all_secrets(
    tmp_path: Path,
) -> None:
    sent = packed_job(tmp_path, FLOW)
    assert b"needed-secret" in sent
    assert b"Ulm" in sent
    assert b"other-secret" in sent
    assert b"Allee 7" not in sent


def test_files_that_are_shipped_are_sent_and_others_are_not(tmp_path: Path) -> None:
    flow = "map: {input: {items: [1]}, ship: ['a*.txt'], steps: [{shell: cat a1.txt}]}"
    sent = packed_job(tmp_path, flow, **{"a1.txt": "first", "a2.txt": "second", "b.txt": "third"})
    assert b"first" in sent
    assert b"second" in sent
    assert b"third" not in sent


REFUSED = [
    # flow                                                       the message
    ("map: {input: {items: [1]}, steps: [{shell: x, once: true}]}",
     "step 'x' (map/item:*/0) may run at most once, and a worker that dies is replaced\n"
     "fix: run the flow with --backend local, or let the step run in reduce"),
    ("limits: {turns: 3}\nmap: {input: {items: [1]}, steps: [{shell: x}]}",
     "a flow with hooks or limits cannot run on a cluster: they are kept in one process\n"
     "fix: run the flow with --backend local"),
    ("map: {input: {items: [1]}, isolation: worktree, steps: [{shell: x}]}",
     "a map with isolation cannot run on a cluster\nfix: run the flow with --backend local"),
    ("map: {input: {items: [1]}, steps: [{shell: 'echo ${step.files_changed}'}]}",
     "a flow that tracks changes (such as step.files_*, git.* or commit_required) cannot run on a cluster: they are tracked in one process\n"
     "fix: run the flow with --backend local"),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "message"), REFUSED)
def test_what_only_one_process_can_do_is_refused_before_anything_is_sent(
    tmp_path: Path, flow: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        packed_job(tmp_path, flow)
    assert str(caught.value) == message


def test_a_pattern_that_ships_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        packed_job(tmp_path, "map: {input: {items: [1]}, ship: [data/*], steps: [{shell: x}]}")
    assert caught.value.what == "no file is called 'data/*', which is to be shipped"


# ── versions ─────────────────────────────────────────────────────────────


def raised(error: Exception) -> object:
    return mask_reply(error, str)


def test_the_same_versions_are_accepted_whatever_the_last_number_of_python_is() -> None:
    mine = protocol.own_versions()
    require_same_versions({"tcp://w": f"{mine.python}.99"}, {"tcp://w": mine.plait}, str)


def test_a_worker_that_came_or_went_between_two_questions_is_no_mismatch() -> None:
    mine = protocol.own_versions()
    require_same_versions({"tcp://gone": "3.99.1"}, {"tcp://new": mine.plait}, str)
    require_same_versions({"tcp://w": raised(OSError())}, {"tcp://w": mine.plait}, str)


def test_another_version_is_reported_with_both_and_what_to_do() -> None:
    mine = protocol.own_versions()
    with pytest.raises(InputError) as caught:
        require_same_versions({"tcp://w": "3.99.1"}, {"tcp://w": "9.9"}, str)
    assert str(caught.value) == (
        f"here is Plait {mine.plait} with Python {mine.python}, and on the cluster it is another: "
        "tcp://w has Plait 9.9 with Python 3.99\n"
        f"fix: install Plait {mine.plait} for Python {mine.python} there, or start the run with what is there"
    )


def test_a_worker_without_plait_is_named() -> None:
    with pytest.raises(InputError) as caught:
        require_same_versions(
            {"tcp://w": "3.11.1"}, {"tcp://w": raised(ModuleNotFoundError("plait"))}, str
        )
    assert str(caught.value) == (
        "Plait is not installed on workers: tcp://w\n"
        f"fix: install Plait {protocol.own_versions().plait} there, for the Python that runs the worker"
    )


BROKEN = [
    # what a worker reports of Plait                    how it is shown
    (RuntimeError("no licence"),                        "RuntimeError: no licence"),
    (Exception("a fault that does not travel"),         "Exception: a fault that does not travel"),
    (AttributeError("no attribute '__version__'"),      "AttributeError: no attribute '__version__'"),
    (ModuleNotFoundError("No module named 'attrs'", name="attrs"), "ModuleNotFoundError: No module named 'attrs'"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "reported"), BROKEN)
def test_a_worker_whose_plait_cannot_be_loaded_is_named_with_the_reason(
    error: Exception, reported: str
) -> None:
    with pytest.raises(InputError) as caught:
        require_same_versions({"tcp://w": "3.11.1"}, {"tcp://w": raised(error)}, str)
    assert str(caught.value) == (
        f"Plait cannot be loaded on workers: tcp://w: {reported}\n"
        "fix: python -c 'import plait' there, with the Python that runs the worker, says more"
    )


def test_a_worker_that_is_lost_while_it_is_asked_is_no_reason_to_refuse() -> None:
    require_same_versions({"tcp://w": raised(OSError())}, {"tcp://w": raised(OSError())}, str)


def test_the_version_is_that_of_the_code_and_not_of_what_was_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.__version__", "0.9.9")
    protocol.own_versions.cache_clear()
    try:
        assert protocol.own_versions().plait == "0.9.9"
        assert resolve_name(protocol.VERSION) == "0.9.9", "as workers are asked"
    finally:
        protocol.own_versions.cache_clear()


def test_what_a_worker_does_not_trust_is_to_be_trusted_there() -> None:
    refused = protocol.ItemRefused(
        "TrustError", "nobody you trust has signed hello.py", "type: plait trust /p", "trust"
    )
    error = to_error(refused)
    assert isinstance(error, TrustError)
    assert str(error) == (
        "on a worker: nobody you trust has signed hello.py\n"
        "fix: there, as the user who runs the worker: type: plait trust /p"
    )


def test_what_earlier_attempts_used_in_an_item_is_known_where_it_is_performed_and_ends_nothing() -> (
    None
):
    from plait.app.remote.worker import _usage_event
    from plait.engine.journal import MemoryJournal
    from plait.engine.limits import PriorUsage

    journal = MemoryJournal()
    question = "map/item:1/0/agent/turn:1"
    journal.append(_usage_event((question, {"turns": 2, "tokens": 30})))
    assert PriorUsage(journal.reopen()).inside("map/item:1/0/agent") == {"turns": 2, "tokens": 30}
    assert journal.step(question) is None
