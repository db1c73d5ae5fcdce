"""An unexpected exception is a bug of Plait: write its traceback to a file and ask for it."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from plait.core.hints import Final

OUR_BUG: Final = 4


def report(error: BaseException) -> int:
    kept = _keep("".join(traceback.format_exception(error)))
    where = f"its traceback is in {kept}" if kept else "its traceback could not be written anywhere"
    print(
        f"plait: this is a bug of Plait, not yours ({type(error).__name__}); {where}; please send "
        "it to us",
        file=sys.stderr,
    )
    return OUR_BUG


def _keep(text: str) -> str | None:
    """Write a file that only this user can read, since a traceback may quote values."""
    for folder in (_state_folder(), tempfile.gettempdir()):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="plait-bug-", suffix=".txt", dir=folder)
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return None


def _state_folder() -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(home, "plait")
