"""For all tests: a property holds on a slow machine as on a fast one, so no example has a deadline, and
`make fuzz` tries more of them than `make test`; and Ctrl-C reaches what a test starts, also if whoever
started the tests in the background does not hear it."""

from __future__ import annotations

import signal

from hypothesis import settings

from share import examples

# A shell starts what is in the background with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("plait", deadline=None, max_examples=examples(100))
settings.load_profile("plait")
