"""For all tests: a property holds on a slow machine as on a fast one, so no example has a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("plait", deadline=None)
settings.load_profile("plait")
