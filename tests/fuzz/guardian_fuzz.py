"""Random bytes at the sockets of the compiled guardian, built with sanitizers where a compiler is.

    python tests/fuzz/guardian_fuzz.py [--runs 20000] [--seed 1]

Each case is a channel with some good orders and commands, some of them damaged: other bytes, cut,
repeated, huge sizes, descriptors that are missing or too many, an end that closes early.  After each
case a good order on a new channel must work; the guardian must live, and at the end no process is
left.  The guardian is compiled with the address and the undefined-behaviour sanitizer, which end it
at the first fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from plait.adapters.process import guardian as wire  # noqa: E402
from plait.adapters.process import guardian_client  # noqa: E402

SOURCE = Path(wire.__file__).with_name("guardian.c")
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=c11"]
LIMIT = 20.0


def build(folder: Path) -> Path | None:
    """The guardian with sanitizers; None: there is no compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    program = folder / "guardian"
    subprocess.run([compiler, *SANITIZED, "-o", str(program), str(SOURCE)], check=True)
    return program


def texts(random_: random.Random) -> list[bytes]:
    scripts = [
        "true",
        "echo a",
        "echo b >&2; exit 3",
        "head -c 100000 /dev/zero",
        "sleep 0.01 & echo c",
    ]
    argv = random_.choice([["true"], ["sh", "-c", random_.choice(scripts)], ["/no/program"], [""]])
    env = [
        "PATH=/usr/bin:/bin",
        *(f"V{n}={'x' * random_.randrange(50)}" for n in range(random_.randrange(5))),
    ]
    more = [f"V{random_.randrange(8)}=y" for _ in range(random_.randrange(3))]
    directory = random_.choice(["/", "/tmp", "/no/directory"])
    return [
        b"".join(os.fsencode(one) + b"\0" for one in part)
        for part in (argv, env, more, [directory])
    ]


def order(random_: random.Random, id_: int) -> bytes:
    parts = texts(random_)
    head = wire.HEAD.pack(wire.JOB, wire.NO_INPUT | wire.CAPTURE, 0, id_, *map(len, parts), 0)
    return head + b"".join(parts)


def message(random_: random.Random) -> bytes:
    id_ = random_.randrange(6)
    if random_.random() < 0.6:
        return order(random_, id_)
    kind = random_.choice([wire.END, wire.SIGNAL])
    # 0 only asks whether there is somebody; a number that is no signal is refused by the kernel.
    return wire.COMMAND.pack(
        kind, id_, random_.choice([0, 15, 9, 70, -1]), random_.choice([0.0, 0.01, -1.0, 1e300])
    )


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


def one_case(keeper: guardian_client._Guardian, random_: random.Random) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT)
    socket.send_fds(keeper.request, [wire.CHANNEL], [theirs.fileno()])
    theirs.close()
    with ours, contextlib.suppress(OSError):  # it was closed: the last message was none
        send_some(ours, random_)


def send_some(ours: socket.socket, random_: random.Random) -> None:
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


def require_service(keeper: guardian_client._Guardian) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT)
    socket.send_fds(keeper.request, [wire.CHANNEL], [theirs.fileno()])
    theirs.close()
    parts = [b"echo\0good\0", b"PATH=/usr/bin:/bin\0", b"", b"/\0"]
    head = wire.HEAD.pack(wire.JOB, wire.NO_INPUT | wire.CAPTURE, 0, 9, *map(len, parts), 0)
    ours.sendall(head + b"".join(parts))
    came, printed = b"", b""
    while True:
        data = ours.recv(1 << 16)
        if not data:
            raise SystemExit("guardian_fuzz: the guardian has closed a good channel, or has ended")
        reports, came = guardian_client.split_reports(came + data)
        printed += b"".join(one.stdout for one in reports)
        if any(one.kind == wire.EXITED for one in reports):
            break
    ours.close()
    if printed != b"good\n":
        raise SystemExit(f"guardian_fuzz: a good order printed {printed!r}")


def main() -> int:
    options = argparse.ArgumentParser(description="Random bytes at the sockets of the guardian.")
    options.add_argument("--runs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--program", type=Path, help="a guardian to try instead of a new one")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = given.program or build(Path(folder))
        if program is None:
            print(
                "guardian_fuzz: not tried: there is no C compiler (Debian: apt install gcc libc6-dev)"
            )
            return 0
        os.environ["PLAIT_GRACE"] = "0.2"
        os.environ["ASAN_OPTIONS"] = f"log_path={folder}/fault:detect_leaks=1"
        # The guardian's standard error is /dev/null; the undefined-behaviour sanitizer writes there.
        wrapper = Path(folder) / "wrapper"
        wrapper.write_text(f'#!/bin/sh\nexec "{program}" "$@" 2>>{folder}/faults\n')
        wrapper.chmod(0o755)
        os.environ[guardian_client.NO_WARM] = (
            "1"  # a shell with a preloaded library has no sanitizer
        )
        keeper = guardian_client._start_guardian(False, command=[str(wrapper)])
        for number in range(given.runs):
            random_ = random.Random(given.seed * 1_000_003 + number)
            try:
                one_case(keeper, random_)
                if number % 20 == 0:
                    require_service(keeper)
            except (OSError, SystemExit) as error:
                time.sleep(1)  # until the sanitizers have written what they found
                ended = os.waitpid(keeper.pid, os.WNOHANG)
                print(f"guardian_fuzz: case {number}, seed {given.seed}: {error}; ended: {ended}")
                for file in Path(folder).glob("fault*"):
                    print(file.read_text()[:4000])
                return 1
            if number % 1000 == 0:
                print(f"guardian_fuzz: {number:,} of {given.runs:,}", flush=True)
        keeper.request.close()
        end = time.monotonic() + LIMIT
        status: tuple[int, int] = (0, 0)
        while status[0] == 0 and time.monotonic() < end:
            status = os.waitpid(keeper.pid, os.WNOHANG)
            time.sleep(0.01)
        faults = [file.read_text()[:4000] for file in Path(folder).glob("fault*")]
        faults = [fault for fault in faults if fault]
        print(*faults, sep="\n")
        if status != (keeper.pid, 0) or faults:
            print(f"guardian_fuzz: the guardian ended with {status}")
            return 1
    print(
        f"guardian_fuzz: {given.runs:,} cases, seed {given.seed}: no fault, the guardian ended well"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
