"""Functions in this process: fresh each time, heard one by one, and never the end of Plait."""

from __future__ import annotations

import io
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.adapters import function
from plait.adapters.function import call_function
from plait.core.errors import InputError
from plait.core.values import Json
from plait.tools.invocation import CallLimits, FunctionCall, PrimitiveResult

PATH = "/project/.ai/tools/sample.py"


def run(code: str, params: dict[str, Json] | None = None, **changed: Json) -> PrimitiveResult:
    data = code.encode()
    given = {
        "path": PATH,
        "function": "execute",
        "project_path": "/project",
        "limits": CallLimits(20.0),
        **changed,
    }
    return call_function(
        FunctionCall(code=data, digest=sha256(data).hexdigest(), params=params or {}, **given)
    )


def body(*lines: str) -> str:
    return "import sys\ndef execute(params, project_path):\n" + "".join(
        f"    {line}\n" for line in lines
    )


RESULTS = [
    # what the function returns        what arrives
    ("{'a': [1, 2.5, None, True]}",    {"a": [1, 2.5, None, True]}),
    ("[]",                             []),
    ("'text'",                         "text"),
    ("None",                           None),
    ("0",                              0),
    ("(1, 2)",                         [1, 2]),
    ("project_path",                   "/project"),
    ("__file__",                       PATH),
    ("__name__ == '__main__'",         False),
    ("params.get('${HOME}')",          None),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "expected"), RESULTS)
def test_any_json_is_a_result(returned: str, expected: Json) -> None:
    result = run(body(f"return {returned}"))
    assert (result.success, result.data, result.error) == (True, expected, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values)
def test_a_parameter_arrives_as_it_was_given(value: Json) -> None:
    assert run(body("return [params['x']]"), {"x": value}).data == [value]


FAILURES = [
    # what the function does                    the error, whole
    ("raise ValueError('no such page')",        f"ValueError: no such page\n  at {PATH}:3 in execute"),
    ("raise KeyError",                          f"KeyError\n  at {PATH}:3 in execute"),
    ("sys.exit(3)",                             f"sys.exit: 3\n  at {PATH}:3 in execute"),
    ("sys.exit()",                              f"sys.exit\n  at {PATH}:3 in execute"),
    ("raise BaseException('odd')",              f"BaseException: odd\n  at {PATH}:3 in execute"),
    ("raise GeneratorExit",                     f"GeneratorExit\n  at {PATH}:3 in execute"),
    ("return {1, 2}",                           "the function returned something that is not JSON: a value of type set is not JSON data"),
    ("return float('nan')",                     "the function returned something that is not JSON: a value has no JSON form: NaN and Infinity do not exist in JSON"),
    ("return {'success': False, 'error': 'e'}", "e"),
    ("return {'success': False}",               "the tool reports that it failed"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "error"), FAILURES)
def test_a_failure_is_a_result_that_says_where(line: str, error: str) -> None:
    result = run(body(line))
    assert (result.success, result.error) == (False, error)


def test_a_failure_further_in_names_the_tools_line_and_the_place_that_raised() -> None:
    result = run(
        "import json\ndef execute(p, _):\n    return inner()\ndef inner():\n    return json.loads('{')\n"
    )
    assert result.error is not None
    lines = result.error.splitlines()
    assert lines[0].startswith("JSONDecodeError: ")
    assert lines[1:3] == [f"  at {PATH}:3 in execute", f"  at {PATH}:5 in inner"]
    assert lines[3].endswith(" in raw_decode")


def test_an_error_whose_message_raises_is_reported_without_it() -> None:
    code = (
        "class E(Exception):\n    def __str__(self): raise SystemExit\ndef execute(p, _): raise E\n"
    )
    assert run(code).error == f"E\n  at {PATH}:3 in execute"


def test_a_file_that_is_no_python_is_a_failure_at_its_line() -> None:
    assert run("x = 1\ndef execute(:\n").error == f"SyntaxError: invalid syntax\n  at {PATH}:2"


def test_an_error_of_plait_in_a_tool_keeps_its_words() -> None:
    code = "from plait.core.errors import InputError\ndef execute(p, _): raise InputError('what', 'where', 'do this')\n"
    assert run(code).error == "where: what\nfix: do this"


def test_a_missing_function_is_named() -> None:
    result = run("def other(): pass\n")
    assert result.error == str(
        InputError(
            "the file defines no function 'execute'",
            PATH,
            "define execute(params, project_path), or name another in config.function",
        )
    )


def test_another_function_can_be_named() -> None:
    assert run("def main(params, project_path): return 7\n", function="main").data == 7


def test_an_asynchronous_function_is_run_to_its_end() -> None:
    code = "import asyncio\nasync def execute(p, _):\n    await asyncio.sleep(0)\n    print('in')\n    return p['n']\n"
    result = run(code, {"n": 4})
    assert (result.data, result.stderr) == (4, "in\n")


def test_an_interrupt_of_the_tool_interrupts_plait() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(body("raise KeyboardInterrupt"))


def test_no_call_sees_what_another_left() -> None:
    code = (
        "seen = []\ndef execute(params, project_path):\n    seen.append(1)\n    return len(seen)\n"
    )
    assert [run(code).data for _ in range(3)] == [1, 1, 1]
    assert not [name for name in sys.modules if name.startswith("plait_tool_")]


def test_a_changed_file_with_a_stale_digest_runs_its_own_bytes() -> None:
    one, two = (f"def execute(p, _): return {n}\n".encode() for n in (1, 2))
    calls = [FunctionCall(PATH, code, "same", "execute", {}, None) for code in (one, two)]
    assert [call_function(each).data for each in calls] == [1, 2]


def test_the_callers_parameters_stay_as_they_are() -> None:
    params: dict[str, Json] = {"list": [1], "map": {"a": 1}}
    run(
        body("params['list'].append(2)", "params['map'].clear()", "params['new'] = 1", "return 0"),
        params,
    )
    assert params == {"list": [1], "map": {"a": 1}}


def test_a_tool_that_takes_another_name_takes_nothing_away() -> None:
    before = set(sys.modules)
    assert run("__name__ = 'json'\ndef execute(p, _): return __name__\n").data == "json"
    assert "json" in sys.modules
    assert not {name for name in set(sys.modules) - before if name.startswith("plait_tool_")}


def test_dataclasses_with_text_annotations_work() -> None:
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    assert run(code + "def execute(p, _): return A(3).x\n").data == 3


# ── what is printed ──────────────────────────────────────────────────────


def test_what_is_printed_is_a_log_and_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    result = run(
        body(
            "print('{\"data\": 1}')",
            "print('warned', file=sys.stderr)",
            "sys.stdout.buffer.write(b'raw')",
            "return 5",
        )
    )
    assert (result.data, result.stderr) == (5, '{"data": 1}\nwarned\nraw')
    assert capfd.readouterr() == ("", "")


def test_a_failed_call_keeps_its_log() -> None:
    result = run(body("print('before')", "raise ValueError('x')"))
    assert (result.success, result.stderr) == (False, "before\n")


def test_a_log_beyond_the_limit_is_cut_with_a_count() -> None:
    result = run(body("print('x' * 1000, end='')", "return 1"), limits=CallLimits(20.0, 10))
    assert result.stderr == "x" * 10 + "\n[990 bytes more]"


def test_a_tool_that_closes_its_stdout_or_asks_for_input_does_no_harm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(body("sys.stdout.close()", "return 1")).data == 1
    assert (run(body("return input()")).error or "").startswith("EOFError")
    print("still here")
    assert capsys.readouterr().out == "still here\n"


TAKEN = [
    # what a tool does to the streams of Plait itself                       what is shown
    ("sys.stdout = None",                                                   "sys.stdout"),
    ("sys.stderr = io.StringIO()",                                          "sys.stderr"),
    ("os.close(1)",                                                         "descriptor 1"),
    ("os.close(0); os.close(2)",                                            "descriptor 0 and descriptor 2"),
    ("os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",                       "descriptor 1"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "taken"), TAKEN)
def test_a_stream_that_a_tool_takes_from_plait_is_put_back_and_the_tool_has_failed(
    line: str, taken: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A function of another test whose time was up may still run; until it ends, ours stand over all streams.
    monkeypatch.setattr(function, "_STREAMS", function._Streams())
    before = (sys.stdin, sys.stdout, sys.stderr, *(os.fstat(fd).st_ino for fd in (0, 1, 2)))
    returned = run(body("import io, os", line, "return 1"))
    assert (
        returned.error == f"while the function ran, {taken} of Plait itself was replaced or closed"
    )
    assert (sys.stdin, sys.stdout, sys.stderr, *(os.fstat(fd).st_ino for fd in (0, 1, 2))) == before
    os.write(1, b"still here")
    assert capfd.readouterr().out == "still here"


def test_a_tool_that_exits_has_failed_whatever_its_code() -> None:
    real = os._exit
    returned = run(body("import os", "os._exit(0)"))
    assert not returned.success
    assert returned.error == f"os._exit: 0\n  at {PATH}:4 in execute"
    assert os._exit is real


def test_a_child_of_a_tool_exits_as_it_wants() -> None:
    lines = (
        "import os",
        "child = os.fork()",
        "if child == 0: os._exit(7)",
        "return os.waitpid(child, 0)[1]",
    )
    assert run(body(*lines)).data == 7 << 8


def test_streams_stand_as_before_after_the_last_call() -> None:
    before = (sys.stdin, sys.stdout, sys.stderr)
    run(body("print(1)"))
    assert (sys.stdin, sys.stdout, sys.stderr) == before


def test_two_hundred_calls_at_once_keep_their_logs_apart_and_leave_no_thread() -> None:
    code = body("for i in range(20): print(params['n'], i)", "return params['n']")
    before = threading.active_count()
    with ThreadPoolExecutor(200) as pool:
        results = list(pool.map(lambda n: run(code, {"n": n}), range(200)))
    assert [result.data for result in results] == list(range(200))
    assert all(r.stderr == "".join(f"{n} {i}\n" for i in range(20)) for n, r in enumerate(results))
    for worker in [thread for thread in threading.enumerate() if thread.name == "plait-function"]:
        worker.join(20)  # those that wait for another call give up soon
    assert threading.active_count() <= before


def test_other_threads_print_where_they_always_did(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inside, go_on = tmp_path / "inside", tmp_path / "go_on"
    wait = "while not os.path.exists(params['go_on']): time.sleep(0.001)"
    code = "import os, time\n" + body("print('tool')", "open(params['inside'], 'w').close()", wait)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, code, {"inside": str(inside), "go_on": str(go_on)})
        while not inside.exists() and not running.done():
            threading.Event().wait(0.001)
        print("ours")
        go_on.touch()
        assert running.result(20).stderr == "tool\n"
    assert capsys.readouterr().out == "ours\n"


# ── time ─────────────────────────────────────────────────────────────────


def test_an_abandoned_call_does_not_touch_the_streams_of_later_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = tmp_path / "end"
    wait = "while not os.path.exists(params['end']): time.sleep(0.001)"
    slow = "import os, time\n" + body(wait, "print('unseen')", "sys.stdout.flush()")
    run(slow, {"end": str(end)}, limits=CallLimits(0.05))
    later = io.StringIO()
    monkeypatch.setattr(sys, "stdout", later)  # as a test, a notebook or a server does
    with (tmp_path / "elsewhere").open("w") as elsewhere:
        os.dup2(elsewhere.fileno(), 1)
    assert run(body("print('caught')", "return 1")).stderr == "caught\n"
    workers = [thread for thread in threading.enumerate() if thread.name == "plait-function"]
    end.touch()
    for worker in workers:
        worker.join(20)
    print("ours")
    os.write(1, b"ours")
    assert later.getvalue() == "ours\n"
    assert (tmp_path / "elsewhere").read_text() == "ours"
    assert capfd.readouterr() == ("", "")


def test_a_call_whose_time_is_up_is_given_up_with_what_it_printed(tmp_path: Path) -> None:
    end = tmp_path / "end"
    code = "import os, time\n" + body(
        "print('started', flush=True)", "while not os.path.exists(params['end']): time.sleep(0.001)"
    )
    result = run(code, {"end": str(end)}, limits=CallLimits(0.3))
    end.touch()
    assert (result.success, result.data, result.stderr) == (False, None, "started\n")
    assert result.error == (
        "sample.py did not return within 0.3 seconds; it is no longer waited for "
        "(raise config.timeout, or use core/runtimes/python/script)"
    )
    assert result.metadata == {"timed_out": True}
    assert run(body("return 1")).data == 1
