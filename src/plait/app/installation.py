"""What this installation consists of, for a person who asks why it is slow or what to report."""

from __future__ import annotations

import os
import platform
import sys

import plait
from plait.adapters.process import guardian_process


def facts() -> str:
    """Its facts, one a line. The guardian is started for this, so the fact is what serves."""
    lines = {
        "package": os.path.dirname(os.path.abspath(plait.__file__)),
        "python": f"{platform.python_version()} ({sys.executable})",
        "guardian": guardian_process.describe(),
    }
    return "".join(f"{name}: {fact}\n" for name, fact in lines.items())
