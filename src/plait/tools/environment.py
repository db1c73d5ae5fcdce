"""The environment of a tool: a fixed list, what its chain declares, and the project's `.env`.

Tool over runtime over primitive. A chain with an `env_config` gets the `.env` of a trusted project,
except its secrets: those reach only a tool that names them. A variable is a secret if a header
declares it, or by its name or the form of its value. A `.env` can never choose an interpreter,
`PATH`, or a variable that makes a loader run code.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache

from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field, replace
from plait.core.secret_names import is_secret
from plait.core.values import MASK, Secret
from plait.template.sinks import is_unresolved
from plait.template.template import Template, compile_template
from plait.tools.chain import Chain
from plait.tools.interpreters import SearchPaths, locate
from plait.tools.tool_file import EnvConfig

FIXED: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TERM",
)

_LOADERS: Final = (
    "PATH", "IFS", "ENV", "BASH_ENV", "BASH_FUNC_*", "SHELLOPTS", "LD_*", "DYLD_*", "GLIBC_TUNABLES",
    "PYTHON*", "NODE_OPTIONS", "NODE_PATH", "RUBYOPT", "RUBYLIB", "PERL5*", "PERLLIB", "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS", "CLASSPATH", "GIT_*", "GCONV_PATH", "HOSTALIASES", "LOCPATH", "PROMPT_COMMAND", "PS4",
    "PLAIT_CLAUDE",
)  # fmt: skip

_NAME: Final = lazy_pattern(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class EnvValue:
    value: str = field(repr=False)
    origin: str
    secret: bool = False

    @property
    def display_value(self) -> str:
        return MASK if self.secret else self.value


@dataclass(frozen=True, slots=True)
class DotEnv:
    """A project's `.env`, minus what it may not set."""

    written: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and their values in the order of the file, before they refer to each other."""
    refused: tuple[str, ...] = ()
    unread: tuple[int, ...] = ()
    """Lines that are not a variable, by number only: they may hold a secret."""

    def expand(self, host: Mapping[str, str]) -> dict[str, str]:
        """Return the values; one may refer to variables above it and to `host`, and to
        nothing else.
        """
        if not self.written:
            return {}
        from dotenv.variables import parse_variables

        values: dict[str, str] = {}
        for name, value in self.written:
            # `dotenv_values` is not used: it reads the environment of this process.
            seen = {**host, **values}
            values[name] = "".join(part.resolve(seen) for part in parse_variables(value))
        return values


@dataclass(frozen=True, slots=True)
class Environment:
    """`child` is what the tool sees; `lookup` is what `${NAME}` of its author's config reads."""

    child: Mapping[str, EnvValue]
    lookup: Mapping[str, str] = field(repr=False)
    refused: tuple[str, ...] = ()
    unread: tuple[int, ...] = ()
    """Lines of the project's `.env` that are not a variable."""
    secrets: frozenset[str] = frozenset()
    """Names of `lookup` with secret values."""

    @property
    def plain(self) -> dict[str, str]:
        return {name: value.value for name, value in self.child.items()}


def read_dotenv(
    text: str, interpreters: Iterable[str], *, allowed: frozenset[str] = frozenset()
) -> DotEnv:
    """Read names and values by the rules of python-dotenv."""
    from io import StringIO

    from dotenv.parser import parse_stream

    parsed = list(parse_stream(StringIO(text)))
    written = [
        (one.key, one.value) for one in parsed if one.key is not None and one.value is not None
    ]
    protected = {*interpreters} - allowed
    refused = dict.fromkeys(
        name
        for name, _ in written
        if name not in allowed
        and (name in protected or any(fnmatch.fnmatchcase(name, one) for one in _LOADERS))
    )
    unread = tuple(
        one.original.line
        for one in parsed
        if one.error
        or (one.key is not None and (one.value is None or not _NAME.fullmatch(one.key)))
    )
    return DotEnv(tuple(pair for pair in written if pair[0] not in refused), tuple(refused), unread)


def resolve_environment(
    chain: Chain,
    *,
    host: Mapping[str, str],
    dotenv: DotEnv,
    around: SearchPaths,
    context: Mapping[str, str],
) -> Environment:
    """Build the environment: primitive first, tool last; later elements override."""
    child = {name: EnvValue(host[name], "fixed") for name in FIXED if name in host}
    from_file = dotenv.expand(host)
    lookup = {**from_file, **host}
    declared = frozenset(name for item in chain.elements for name in item.header.secrets)
    secrets = {name for name, value in lookup.items() if name in declared or is_secret(name, value)}
    if any(item.header.env_config is not None for item in chain.elements):
        for name in from_file:
            if name not in secrets and name not in child and _NAME.fullmatch(name):
                child[name] = EnvValue(lookup[name], "your environment" if name in host else ".env")
    for item in reversed(chain.elements):
        config = item.header.env_config
        if config is None:
            continue
        role = "tool" if item is chain.tool else "runtime"
        for name, value in _config_values(
            config, lookup, secrets, around, context, role, item.path, from_file, host
        ):
            if name in declared or is_secret(name, value.value):
                value = replace(value, secret=True)
            child[name] = value
            lookup[name] = value.value
            secrets -= {name}
            secrets |= {name} if value.secret else set()
    return Environment(child, lookup, dotenv.refused, dotenv.unread, frozenset(secrets))


def interpreter_names(chain: Chain) -> list[str]:
    """The variables that hold interpreters along a chain."""
    configs = [item.header.env_config for item in chain.elements]
    return [config.interpreter.var for config in configs if config and config.interpreter]


def _config_values(
    config: EnvConfig,
    lookup: Mapping[str, str],
    secrets: Set[str],
    around: SearchPaths,
    context: Mapping[str, str],
    role: str,
    where: str,
    from_file: Mapping[str, str],
    host: Mapping[str, str],
) -> Iterable[tuple[str, EnvValue]]:
    seen = dict(lookup)
    if config.interpreter is not None:
        roots = (author_template(root).render(context) for root in config.interpreter.search_roots)
        filled = replace(config.interpreter, search_roots=tuple(str(root) for root in roots))
        located = locate(filled, around, where=where)
        seen[config.interpreter.var] = located.path
        yield config.interpreter.var, EnvValue(located.path, f"{role}: {located.how}")
    for name in config.passes:
        if name in lookup:
            origin = ".env" if name in from_file and name not in host else "your environment"
            yield name, EnvValue(lookup[name], origin, name in secrets)
    for name, template in config.env.items():
        compiled = author_template(template)
        if is_unresolved(compiled.leaf.compiled.parts, context, seen):
            continue  # as everywhere in a config, a `{name}` without a value is left out
        value = compiled.render(context, env=seen)
        text = value.reveal() if isinstance(value, Secret) else str(value)
        sources = [
            placeholder for placeholder in compiled.placeholders if placeholder.kind == "env"
        ]
        of_file = any(
            placeholder in from_file and placeholder not in host for placeholder in sources
        )
        seen[name] = text
        origin = ".env" if of_file else role
        # A value made from a secret is a secret under any name.
        yield name, EnvValue(text, origin, any(placeholder in secrets for placeholder in sources))


@lru_cache(maxsize=1024)
def author_template(text: str) -> Template:
    """The template of a text from a header, compiled once for all calls."""
    return compile_template(text, "config")
