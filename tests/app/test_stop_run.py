"""`plait stop` reaches a process whatever started it."""

from __future__ import annotations

import signal
import subprocess

from plait.app.stop_run import is_signal_ignored


def test_a_process_that_a_script_put_into_the_background_ignores_ctrl_c() -> None:
    command = ["sh", "-c", "trap '' INT; echo ready; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = [is_signal_ignored(process.pid, one) for one in (signal.SIGINT, signal.SIGTERM)]
        process.communicate()
    assert found == [True, False]
    assert not is_signal_ignored(process.pid, signal.SIGINT)  # it has ended
