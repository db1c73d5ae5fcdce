"""For all tests: a property holds on a slow machine as on a fast one, so no example has a deadline, and
`make fuzz` tries more of them than `make test`; Ctrl-C reaches the processes of a test, also when
the tests run in the background; and a share of all tests can be selected."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from share import SMOKE, examples

# A shell starts what is in the background with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("plait", deadline=None, max_examples=examples(100))
settings.load_profile("plait")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items[::SMOKE]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(
            items=[item for number, item in enumerate(items) if number % SMOKE]
        )
        items[:] = chosen
