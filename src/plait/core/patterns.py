"""Regular expressions that are compiled when they are first used.

The modules of a command hold some hundred patterns, and one call uses a few of them. `re` takes
longer to compile a pattern than Python to load a small module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import compile as lazy_pattern

    def import_with_lazy_patterns(package: str) -> None: ...
else:
    import re
    import sys
    from _thread import allocate_lock

    class _LazyPattern:
        """Has the attributes of `re.Pattern`; the first use of one compiles the pattern."""

        def __init__(self, text, flags):
            self.pattern, self._flags = text, flags

        def __getattr__(self, name):
            # `re` caches the compiled pattern, until it has compiled hundreds of others.
            value = getattr(re.compile(self.pattern, self._flags), name)
            setattr(self, name, value)
            return value

    def lazy_pattern(text, flags=0):
        return _LazyPattern(text, flags)

    _IMPORT = allocate_lock()

    def import_with_lazy_patterns(package):
        """Import a package of others; the patterns of its modules become lazy.

        PyYAML compiles patterns for its reader in Python, which libyaml replaces: half of its
        import. Modules of other packages that are imported meanwhile get ordinary patterns.
        """
        with _IMPORT:
            if package in sys.modules:
                return
            eager = re.compile

            def compile_pattern(text, flags=0):
                module = sys._getframe(1).f_globals.get("__name__", "")
                make = lazy_pattern if module.startswith(f"{package}.") else eager
                return make(text, flags)

            re.compile = compile_pattern
            try:
                __import__(package)
            finally:
                re.compile = eager


__all__ = ["import_with_lazy_patterns", "lazy_pattern"]
