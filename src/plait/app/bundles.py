"""Tools that other installed packages bring: their system spaces, by their entry points."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from plait.core.hints import Final
from plait.tools.spaces import Space

GROUP: Final = "plait.bundles"


@lru_cache(maxsize=1)
def find_bundles() -> tuple[Space, ...]:
    if not _may_have_some():
        return ()
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(Space("system", str(point.load()()), bundle=point.name) for point in found)


def _may_have_some() -> bool:
    """Does an installed package name the group?  Loading `importlib.metadata` takes 40 ms."""
    for place in sys.path:
        try:
            names = os.listdir(place or os.curdir)
        except NotADirectoryError:
            return True  # packages in an archive
        except OSError:
            continue
        for name in names:
            if not name.lower().endswith((".dist-info", "egg-info")):
                continue
            try:
                with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                    if GROUP.encode() in file.read():
                        return True
            except OSError:
                continue
    return False
