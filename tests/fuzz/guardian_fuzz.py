"""Random bytes at the sockets of a guardian; the compiled one is built with sanitizers for this.

    python tests/fuzz/guardian_fuzz.py [--runs 20000 | --seconds 3600] [--seed 1] [--python]

Each case is a channel with some good orders and commands, some of them damaged: other bytes, cut,
repeated, huge sizes and counts, descriptors that are missing, too many or no channel, orders in
pieces or hundreds in one message, commands for jobs that are not there, the end of all jobs, an end
that closes early or is never read.  Some jobs are hostile: they ignore SIGTERM and leave their
session.  After each twentieth case a good order on a new channel must work; at rest the guardian
must have no descriptor more than at its start and for its prestarted shells; it must live to the
end, and then no process of its jobs is left.  The compiled guardian and the library of its
prestarted shells have the address and the undefined-behaviour sanitizer, which end them at the
first fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from plait.adapters.process import guardian as wire  # noqa: E402
from plait.adapters.process import guardian_process  # noqa: E402

SOURCE = Path(wire.__file__).with_name("guardian.c")
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=c11"]
# A shell gets no variables, so its sanitizer takes its options from the library.
SHELL_OPTIONS = """
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0:detect_leaks=0";
}
"""
IN_PYTHON = [sys.executable, "-I", "-S", "-c", guardian_process._BOOT, str(SOURCE.parent)]
LIMIT = 60.0
GRACE = 0.2
TOKEN = f"PLAIT_FUZZ={uuid.uuid4().hex}"
MOST_ORDERS = 500
MOST_SHELLS = 8
"""Prestarted shells, each with a socket; the same as in guardian.c."""
MOST_MEMORY = 1 << 20
"""KiB; the sanitizers keep some freed memory."""


class Fault(Exception):
    """The guardian broke a rule."""


def build(folder: Path) -> tuple[Path, Path] | None:
    """The guardian and the library of its shells, with sanitizers; None: there is no compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    program, library, options = folder / "guardian", folder / "libwarm.so", folder / "options.c"
    options.write_text(SHELL_OPTIONS)
    subprocess.run([compiler, *SANITIZED, "-o", program, SOURCE], check=True)
    parts = [SOURCE.with_name("warm.c"), options]
    subprocess.run([compiler, *SANITIZED, "-shared", "-fPIC", "-o", library, *parts], check=True)
    return program, library


# ── messages ─────────────────────────────────────────────────────────────

SCRIPTS = [
    "true",
    "echo a",
    "echo b >&2; exit 3",
    "head -c 100000 /dev/zero",
    "sleep 0.01 & echo c",
    "sleep 60",
    "trap '' TERM; setsid sleep 60 & echo d; sleep 60",
]


def texts(random_: random.Random) -> list[bytes]:
    argv = random_.choice([["true"], ["sh", "-c", random_.choice(SCRIPTS)], ["/no/program"], [""]])
    env = [
        "PATH=/usr/bin:/bin",
        TOKEN,
        *(f"V{n}={'x' * random_.randrange(50)}" for n in range(random_.randrange(5))),
    ]
    more = [f"V{random_.randrange(8)}=y" for _ in range(random_.randrange(3))]
    directory = random_.choice(["/", "/tmp", "/no/directory"])
    return [join(part) for part in (argv, env, more, [directory])]


def join(words: list[str]) -> bytes:
    return b"".join(os.fsencode(one) + b"\0" for one in words)


def pack(parts: list[bytes], id_: int, *, descriptors: int = 0, group: int = 0) -> bytes:
    sizes = map(len, parts)
    flags = wire.NO_INPUT | wire.CAPTURE
    return wire.HEAD.pack(wire.JOB, flags, descriptors, id_, *sizes, group) + b"".join(parts)


def order(random_: random.Random, id_: int) -> bytes:
    return pack(
        texts(random_),
        id_,
        descriptors=random_.choice([0] * 8 + [1, 253, 255]),
        group=random_.choice([0] * 12 + [-1, 1, 2**31 - 1]),
    )


def huge(random_: random.Random, id_: int) -> bytes:
    """Sizes or counts far beyond what a program can get."""
    parts = texts(random_)
    match random_.randrange(3):
        case 0:  # more words or variables than Linux executes
            parts[random_.randrange(3)] = b"\0" * random_.choice([1 << 16, 1 << 20])
        case 1:  # one that is too long
            parts[0] = b"true\0" + b"x" * random_.choice([1 << 17, 1 << 21]) + b"\0"
        case 2:  # announces more than it sends
            sizes = [random_.choice([0, 1, 2**20, 2**31, 2**32 - 1]) for _ in range(4)]
            return wire.HEAD.pack(wire.JOB, 3, 0, id_, *sizes, 0) + b"x" * random_.randrange(1000)
    return pack(parts, id_)


def command(random_: random.Random, id_: int) -> bytes:
    kind = random_.choice([wire.END, wire.SIGNAL])
    # 0 only checks that the process exists; the kernel refuses a number that is no signal.
    number = random_.choice([0, 15, 9, 70, -1, 2**31 - 1])
    grace = random_.choice([0.0, 0.01, -1.0, -1e300, 1e300, float("inf"), float("nan")])
    return wire.COMMAND.pack(kind, id_, number, grace)


def message(random_: random.Random) -> bytes:
    id_ = random_.choice([0, 1, 2, 3, 4, 5, 2**32 - 1])
    chance = random_.random()
    if chance < 0.02:
        return huge(random_, id_)
    return order(random_, id_) if chance < 0.6 else command(random_, id_)


def damage(random_: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randrange(1, 4)):
        if not changed:
            break
        at = random_.randrange(len(changed))
        match random_.randrange(5):
            case 0:
                changed[at] = random_.randrange(256)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = bytes(random_.randrange(256) for _ in range(random_.randrange(9)))
            case 3:
                changed[at : at + 4] = random_.choice(
                    [b"\xff" * 4, b"\0" * 4, b"\0\0\0\x80", b"\0\0\1\0"]
                )
            case 4:
                changed += changed[: random_.randrange(len(changed) + 1)]
    return bytes(changed)


# ── cases ────────────────────────────────────────────────────────────────


class Guardian:
    """A guardian under attack, and its resources at the start."""

    def __init__(self, command: list[str]) -> None:
        self.client = guardian_process.start_guardian(False, command=command)
        self.pid = self.client.pid
        for _ in range(5):  # the first shells are executed, the others are prestarted
            require_service(self)
        self.descriptors = self.count_descriptors() + MOST_SHELLS

    def open_channel(self, descriptor: int | None = None) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT)
        with theirs:
            given = theirs.fileno() if descriptor is None else descriptor
            socket.send_fds(self.client.request, [wire.CHANNEL], [given])
        return ours

    def count_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)


def damaged_messages(guardian: Guardian, random_: random.Random) -> None:
    with guardian.open_channel() as ours:
        for _ in range(random_.randrange(1, 5)):
            data = message(random_)
            data = damage(random_, data) if random_.random() < 0.5 else data
            given = [0] * random_.randrange(4) if random_.random() < 0.2 else []
            socket.send_fds(ours, [data or b"?"], given)
        if random_.random() < 0.5:
            ours.shutdown(socket.SHUT_WR)
        if random_.random() < 0.3:
            ours.setblocking(False)
            ours.recv(1 << 16)


def messages_in_pieces(guardian: Guardian, random_: random.Random) -> None:
    data = b"".join(message(random_) for _ in range(5))
    with guardian.open_channel() as ours:
        while data:
            size = random_.choice([1, 3, 19, 27, 28, 29, 100])
            socket.send_fds(ours, [data[:size]], [0] * (random_.random() < 0.02))
            data = data[size:]


def unused_descriptors(guardian: Guardian, random_: random.Random) -> None:
    """An order that never becomes complete, with as many descriptors as fit."""
    with guardian.open_channel() as ours:
        ours.sendall(wire.HEAD.pack(wire.JOB, 3, 200, 1, 1 << 20, 0, 0, 0, 0))
        for _ in range(random_.randrange(1, 40)):
            socket.send_fds(ours, [b"x"], [0] * 253)


def orders_without_descriptors(guardian: Guardian, random_: random.Random) -> None:
    """Complete orders whose descriptors never arrive."""
    with guardian.open_channel() as ours:
        ours.settimeout(2)
        one = pack(texts(random_), 1, descriptors=3)
        for _ in range(random_.randrange(1, 400)):
            ours.sendall(one * 50)


def no_channels(guardian: Guardian, random_: random.Random) -> None:
    """Descriptors that are no sockets, in the place of a channel; bytes that are no request."""
    with tempfile.TemporaryFile() as file:
        read, write = os.pipe()
        for fd in random_.sample([file.fileno(), read, write, 0], 2):
            guardian.open_channel(fd).close()
        socket.send_fds(guardian.client.request, [b"?"], [read] * random_.randrange(5))
        os.close(read)
        os.close(write)


def commands_without_jobs(guardian: Guardian, random_: random.Random) -> None:
    """Send requests, and never read the answers."""
    with guardian.open_channel() as ours:
        ours.settimeout(0.2)
        for _ in range(random_.randrange(1, 100)):
            ours.sendall(
                b"".join(
                    wire.COMMAND.pack(wire.END, random_.randrange(9), 0, 0.0) for _ in range(500)
                )
            )


def many_orders(guardian: Guardian, random_: random.Random) -> None:
    """Hundreds of orders at once; some are ended, and the channel closes in the middle."""
    count = random_.randrange(1, MOST_ORDERS)
    orders = [pack(texts(random_), id_) for id_ in range(count)]
    with guardian.open_channel() as ours:
        ours.sendall(b"".join(orders))
        ours.settimeout(0.5)  # the remaining ones may be silent
        for _ in range(random_.randrange(20)):
            ours.recv(random_.choice([1, 100, 1 << 16]))
            ours.sendall(command(random_, random_.randrange(count + 10)))


def end_of_all(guardian: Guardian, random_: random.Random) -> None:
    with guardian.open_channel() as ours:
        for id_ in range(random_.randrange(20)):
            ours.sendall(pack(texts(random_), id_))
        for _ in range(random_.randrange(1, 3)):
            guardian.client.request.send(wire.END_ALL)
        ours.sendall(command(random_, random_.randrange(20)))


CASES: list[tuple[float, Callable[[Guardian, random.Random], None]]] = [
    (84, damaged_messages),
    (8, messages_in_pieces),
    (1, unused_descriptors),
    (0.3, orders_without_descriptors),
    (2, no_channels),
    (1, commands_without_jobs),
    (0.5, many_orders),
    (0.5, end_of_all),
]


def one_case(guardian: Guardian, random_: random.Random) -> None:
    [case] = random_.choices([case for _, case in CASES], [weight for weight, _ in CASES])
    with contextlib.suppress(OSError):  # it was closed: the last message was none
        case(guardian, random_)


def require_service(guardian: Guardian) -> None:
    parts = [join(part) for part in (["sh", "-c", "echo good"], ["PATH=/usr/bin:/bin"], [], ["/"])]
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        came, printed, status = b"", b"", 0
        with guardian.open_channel() as ours:
            ours.sendall(pack(parts, 9))
            while True:
                data = ours.recv(1 << 16)
                if not data:
                    raise Fault("the guardian has closed a good channel, or has ended")
                reports, came = guardian_process.split_reports(came + data)
                printed += b"".join(one.stdout for one in reports)
                ends = [one for one in reports if one.kind in (wire.EXITED, wire.REFUSED)]
                if ends:
                    break
        if ends[0].kind == wire.EXITED and printed == b"good\n":
            return
        status = ends[0].number
        if ends[0].kind == wire.REFUSED or not os.WIFSIGNALED(status):
            raise Fault(f"a good order printed {printed!r}, {ends[0]}")
        # It was killed: the end of all jobs was ordered, and lasts.
    raise Fault("good orders are killed")


def require_rest(guardian: Guardian) -> None:
    """Close all channels; soon the guardian must have no more than at its start."""
    end = time.monotonic() + LIMIT
    while (count := guardian.count_descriptors()) > guardian.descriptors or left():
        if time.monotonic() > end:
            jobs = left()
            if (
                count <= guardian.descriptors and not jobs
            ):  # a busy machine, not a guardian at fault
                break
            raise Fault(f"{count} descriptors, {guardian.descriptors} at the start; left: {jobs}")
        time.sleep(0.05)
    if guardian.memory() > MOST_MEMORY:
        raise Fault(f"the guardian has {guardian.memory():,} KiB")


def left() -> list[int]:
    """Processes of jobs."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if TOKEN.encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
    return found


def attack(guardian: Guardian, seed: int, runs: int, seconds: float) -> int:
    """Return the number of cases."""
    began = shown = time.monotonic()
    number = 0
    while number < runs and time.monotonic() - began < seconds:
        try:
            one_case(guardian, random.Random(seed * 1_000_003 + number))
            if number % 20 == 0:
                require_service(guardian)
            if number % 500 == 499:
                require_rest(guardian)
        except (OSError, Fault) as error:
            raise Fault(f"case {number}, seed {seed}: {error!r}") from error
        number += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"guardian_fuzz: {number:,} cases in {shown - began:.0f} s", flush=True)
    require_rest(guardian)
    return number


def end(guardian: Guardian) -> None:
    guardian.client.request.close()
    limit = time.monotonic() + LIMIT
    status: tuple[int, int] = (0, 0)
    while status[0] == 0 and time.monotonic() < limit:
        status = os.waitpid(guardian.pid, os.WNOHANG)
        time.sleep(0.01)
    if status != (guardian.pid, 0):
        raise Fault(f"the guardian ended with {status}")
    if left():
        raise Fault(f"it has left {left()}")


def main() -> int:
    options = argparse.ArgumentParser(description="Random bytes at the sockets of the guardian.")
    options.add_argument("--runs", type=int, help="cases (default: 20000, or what the time allows)")
    options.add_argument("--seconds", type=float, default=float("inf"))
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--python", action="store_true", help="try guardian.py")
    options.add_argument("--program", type=Path, help="a guardian to try instead of a new one")
    given = options.parse_args()
    runs = given.runs or (20_000 if given.seconds == float("inf") else sys.maxsize)
    with tempfile.TemporaryDirectory() as folder:
        built = None if given.python else build(Path(folder))
        if built is None and not given.python:
            print(
                "guardian_fuzz: not tried: there is no C compiler (Debian: apt install gcc libc6-dev)"
            )
            return 0
        program = given.program or (built and built[0])
        os.environ["PLAIT_GRACE"] = str(GRACE)
        os.environ["ASAN_OPTIONS"] = f"log_path={folder}/fault:detect_leaks=1:quarantine_size_mb=16"
        # The guardian's standard error is /dev/null; the undefined-behaviour sanitizer writes there.
        words = " ".join(f"'{word}'" for word in (IN_PYTHON if given.python else [str(program)]))
        wrapper = Path(folder) / "wrapper"
        arguments = '"$@"'
        if built is not None:  # the fifth of five is the library of prestarted shells
            arguments = f'"$1" "$2" "$3" "$4" \'{built[1]}\''
        wrapper.write_text(f"#!/bin/sh\nexec {words} {arguments} 2>>{folder}/faults\n")
        wrapper.chmod(0o755)
        problem, count = None, 0
        guardian = Guardian([str(wrapper)])
        try:
            count = attack(guardian, given.seed, runs, given.seconds)
            end(guardian)
        except Fault as error:
            problem = str(error)
            time.sleep(1)  # until the sanitizers have written what they found
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                print(f"guardian_fuzz: ended: {os.waitpid(guardian.pid, os.WNOHANG)}")
                os.kill(guardian.pid, signal.SIGKILL)
            for pid in left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        faults = [file.read_text()[:4000] for file in Path(folder).glob("fault*")]
        faults = [fault for fault in faults if fault]
        if problem or faults:
            print(f"guardian_fuzz: {problem}", *faults, sep="\n")
            return 1
    print(
        f"guardian_fuzz: {count:,} cases, seed {given.seed}: no fault, the guardian ended well, "
        "no process is left"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
