"""Bind a chain and parameters to a complete invocation, by the primitive that ends the chain."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from plait.core.errors import (
    InputError,
    LimitError,
    Problem,
    ShellRefusedError,
    ValueRefusedError,
    closest_name,
)
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.core.records import dataclass, field, field_names, replace
from plait.core.values import Json, Secret, deep_copy, json_text, reveal_text, text
from plait.template import sinks
from plait.template.nodes import Text
from plait.template.program import Budget, Piece, PlacedValue
from plait.template.template import PlaceholderName, Template, compile_template
from plait.tools.chain import Chain
from plait.tools.code_params import CodeParams
from plait.tools.config import CONTEXT, EXECUTION_KEYS, Config, merge_config
from plait.tools.environment import Environment
from plait.tools.invocation import (
    DEFAULT_MAX_OUTPUT,
    CallLimits,
    FunctionCall,
    HttpRetry,
    Invocation,
    McpCall,
    McpServer,
    ProcessCall,
    RequestCall,
    Verified,
)

if TYPE_CHECKING:
    from plait.template.shell.binding import BoundScript
    from plait.template.shell.places import Dialect
    from plait.template.shell.rules import Code


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A tool, its parameters, and everything around it."""

    chain: Chain
    params: Mapping[str, Json]
    context: Mapping[str, Json]
    environment: Environment
    project: str | None
    cwd: str
    """Where a process starts unless its config says otherwise."""
    beside: Mapping[str, Verified] = field(default_factory=dict, repr=False)
    """What a function may import, by its path relative to the tool's folder."""


def bind(call: BindRequest) -> Invocation:
    """Everything the primitive needs, with no placeholder left."""
    return Binding(call.chain, call.context, call.environment, call.project, call.cwd).bind(
        call.params
    )


class Binding:
    """A chain and everything around it, waiting for parameters: what none of them decides is
    known.
    """

    def __init__(
        self,
        chain: Chain,
        context: Mapping[str, Json],
        environment: Environment,
        project: str | None,
        cwd: str,
        beside: Mapping[str, Verified] | None = None,
    ) -> None:
        self._chain, self._context, self._environment = chain, context, environment
        self._project, self._cwd, self._beside = project, cwd, beside or {}
        self._env = _lookup(environment)
        author = Config(chain, params={}, context=context, env=self._env)
        _require_known_keys(author, chain.primitive)
        require_literal_code(chain)
        self._fixed = _in_map(author, "fixed_params")
        self._fixed_in_clear = _in_map(author.in_clear(), "fixed_params") if self._fixed else {}
        self._key = author.value("params_key")
        self._as_json = author.mentions("params_json")
        self._function: FunctionCall | None = None
        if chain.primitive == "core/primitives/function" and author.is_fixed("function", *_LIMITS):
            self._function = _function(self._call({}, context), author, {})

    def in_environment(self, environment: Environment) -> Binding:
        """The same chain in another environment."""
        return Binding(
            self._chain, self._context, environment, self._project, self._cwd, self._beside
        )

    def bind(self, params: Mapping[str, Json]) -> Invocation:
        given = _tool_params(params, self._fixed_in_clear, self._key)
        plain = deep_copy(given, reveal=True)
        if (made := self._function) is not None:
            return FunctionCall(
                made.path,
                made.code,
                made.digest,
                made.function,
                plain,
                made.project_path,
                made.limits,
                made.file,
                made.beside,
            )
        context = self._context
        if self._as_json:
            context = {**context, "params_json": json_text(given, reveal=True)}
        config = Config(
            self._chain, params=params, context=context, env=self._env, fixed=self._fixed
        )
        # What is fixed is fixed on every road: as JSON, as `{name}` and as a variable.
        params = {**params, **self._fixed} if self._fixed else params
        call = self._call(params, context)
        match self._chain.primitive:
            case "core/primitives/subprocess":
                return _process(call, config)
            case "core/primitives/http_client":
                return _request(call, config)
            case "core/primitives/function":
                return _function(call, config, plain)
            case "core/primitives/mcp":
                return _mcp(call, config, plain)
            case other:
                raise InputError(
                    f"there is no primitive '{other}'",
                    call.chain.tool.path,
                    code="unknown-primitive",
                )

    def _call(self, params: Mapping[str, Json], context: Mapping[str, Json]) -> BindRequest:
        return BindRequest(
            self._chain, params, context, self._environment, self._project, self._cwd, self._beside
        )


def require_literal_code(chain: Chain) -> None:
    """A parameter that a config fixes, and that is code, is its author's text and nothing else."""
    code = CodeParams(chain.tool.id, (item.header.config_schema for item in chain.elements))
    written = merge_config(chain).get("fixed_params") if code else None
    places = [] if written is None else code.places(compile_template(written, "config"))
    if places:
        raise ShellRefusedError.together(
            Problem(
                f"config.fixed_params.{place.name} is {place.mark.language} code, "
                "and a value in it would become code",
                chain.tool.path,
                "write the code out without a placeholder",
                code="value-as-code",
            )
            for place in places
        )


_TAKES: Final = {
    "core/primitives/subprocess": frozenset(
        {
            "command",
            "args",
            "env",
            "cwd",
            "input_data",
            "timeout",
            "max_output",
            "fixed_params",
            "params_key",
        }
        | {"params_env"}
    ),
    "core/primitives/http_client": frozenset(
        {
            "method",
            "url",
            "headers",
            "body",
            "auth",
            "retry",
            "max_redirects",
            "timeout",
            "max_output",
        }
        | {"fixed_params", "params_key"}
    ),
}


def _require_known_keys(config: Config, primitive: str) -> None:
    """A key that nothing uses and that is almost one of ours was meant to be it."""
    known = _TAKES.get(primitive)
    if known is None or config.written.keys() <= EXECUTION_KEYS:
        return
    unused = config.written.keys() - EXECUTION_KEYS - config.placeholder_names
    slips = {
        key: guess
        for key in sorted(unused)
        if (guess := closest_name(key, known, cutoff=0.8)) is not None
    }
    if slips:
        raise InputError.together(
            Problem(
                f"config.{key} is used by nothing",
                config.where,
                f"did you mean '{guess}'? (a key of your own stands somewhere as {{{key}}})",
                code="bad-config",
            )
            for key, guess in slips.items()
        )


def _tool_params(
    params: Mapping[str, Json], fixed: Mapping[str, Json], key: Json
) -> dict[str, Json]:
    """The caller's parameters as the tool receives them; fixed ones win, `params_key` nests the
    rest.
    """
    return {**({key: dict(params)} if isinstance(key, str) and key else params), **fixed}


def _lookup(environment: Environment) -> dict[str, Any]:
    """`${NAME}` of the author's config; what is secret stays one."""
    secret = environment.secrets
    return {
        name: Secret(value) if name in secret else value
        for name, value in environment.lookup.items()
    }


def _in_map(config: Config, key: str) -> Mapping[str, Json]:
    """A key of the config that is a map, filled."""
    value = config.value(key, {})
    if not isinstance(value, Mapping):
        raise _bad_config(config, key, "a map", f"write {key}: {{name: value}}")
    return value


def _bad_config(config: Config, key: str, what: str, fix: str) -> InputError:
    return InputError(f"config.{key} is {what}", config.where, fix, code="bad-config")


# ── a process ────────────────────────────────────────────────────────────


def _process(call: BindRequest, config: Config) -> ProcessCall:
    command = config.written.get("command")
    if not isinstance(command, str) or not command:
        raise InputError(
            f"the chain of '{call.chain.tool.id}' names no command",
            call.chain.tool.path,
            "set config.command in the tool or its runtime",
            code="no-command",
        )
    args = config.written.get("args") or []
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise InputError(
            "config.args is a list", call.chain.tool.path, "write args: [a, b]", code="bad-config"
        )
    clear = config.in_clear()
    words = [*_command_words(command, config, has_args=bool(args)), *args]
    cwd = _directory(call, config)
    where = _Where(call.environment.plain.get("PATH", os.defpath), cwd)
    argv, bound = _argv(words, config, clear, where)
    if _OWN_FILE not in words:
        _require_no_code_input(argv, config, where)
    return ProcessCall(
        argv=tuple(argv),
        cwd=cwd,
        env={**_child_environment(call, clear), **bound},
        stdin=_stdin(clear),
        limits=_limits(call, config),
    )


def _command_words(command: str, config: Config, *, has_args: bool) -> list[str]:
    """`command: "echo ${X}"` without args is words of the author; a placeholder is never split."""
    if has_args or not any(char.isspace() for char in command):
        return [command]
    parts = config.template(command).leaf.program.parts
    # A mark stands for each placeholder, so that blanks and quotes inside it split nothing.
    marks = {
        f"\0{index}\0": command[part.start : part.end]
        for index, part in enumerate(parts)
        if not isinstance(part, Text)
    }
    marked = [
        part.text if isinstance(part, Text) else f"\0{index}\0" for index, part in enumerate(parts)
    ]
    import shlex

    try:
        words = shlex.split("".join(marked))
    except ValueError:
        raise _bad_config(
            config, "command", "words: a quote is not closed", "close it, or write args: [...]"
        ) from None
    operator = next(filter(_is_operator, shlex.split("".join(marked), posix=False)), None)
    if operator is not None:
        raise InputError(
            f"config.command starts a program, no shell: '{operator}' would be one of its "
            "arguments",
            config.where,
            "write command: sh and args: [-c, the whole line]; or args: [...], if it is to be an "
            "argument",
            code="shell-in-command",
        )
    for mark, placeholder in marks.items():
        words = [word.replace(mark, placeholder) for word in words]
    return words


_OPERATOR: Final = re.compile(
    r"[|&;<>]+|[0-9]*[<>]+(?:&[0-9-]+|[\w./~-]+)?|[^&|<>=?\\'\"]*;|\$\(.*|`.*", re.DOTALL
)


def _is_operator(word: str) -> bool:
    """Does only a shell give it a meaning, as it is written: `|`, `&&`, `2>&1`, `>file`, `cd;`,
    `$(…`?
    """
    return _OPERATOR.fullmatch(word) is not None


def _argv(
    words: Sequence[Json], config: Config, clear: Config, where: _Where
) -> tuple[list[str], dict[str, str]]:
    """The arguments; what a shell would read as a script gets its values by variables.

    What any other interpreter would read as code holds nothing but its author's text.
    """
    argv: list[str] = []
    variables: dict[str, str] = {}
    given: set[int] = set()
    begun: dict[int, str] = {}
    budget, seen = Budget(), 0
    for written in words:
        budget.spend(argv[seen:], config.where)
        seen = len(argv)
        template = config.template(written) if isinstance(written, str) else None
        if template is None or not template.placeholders:
            argv += _words(written, config, clear)
            continue
        if _surely_data(template, argv):
            if argv and config.is_gone(template):
                _require_option_value(argv, written, config)
                continue
            argv += _words(written, config, clear)
            continue
        code = _code_at(len(argv), [*argv, _UNKNOWN], where)
        if code is not None and code.dialect is not None:
            bound = _script(written, clear, code.dialect)
            argv.append(bound.script)
            variables |= bound.env
            continue
        if argv and code is None and config.is_gone(template):
            _require_option_value(argv, written, config)
            continue  # it was not given
        more = _words(written, config, clear)
        if not config.only_of_author(template):
            code = code or _code_at(len(argv), [*argv, *more], where)
            # A caller who chooses the program also chooses its input.
            if code is not None and code.program not in given and code.program < len(argv):
                raise _value_as_code(written, code, config)
            given.update(range(len(argv), len(argv) + len(more)))
        if argv and _begins_with_value(template, config, clear):
            begun |= {at: str(written) for at in range(len(argv), len(argv) + len(more))}
        argv += more
    _require_no_options(argv, begun, config)
    return argv, variables


def _require_option_value(argv: Sequence[str], written: Json, config: Config) -> None:
    """An option without its value would take the next word as its value."""
    from plait.template.options import takes_next_word

    if takes_next_word(argv):
        raise InputError(
            f"the argument '{written}' is missing, and an option before it needs it as its value",
            config.where,
            "give it, or declare the parameter as required or with a default",
            code="missing-parameter",
        )


def _begins_with_value(template: Template, config: Config, clear: Config) -> bool:
    """Does the argument begin with a value that may not be an option?"""
    pieces = template.pieces(clear.names_for(template), env=clear.env)
    first = next((piece for piece in pieces if _text(piece)), None)
    return isinstance(first, PlacedValue) and not config.may_be_option(template)


def _require_no_options(argv: Sequence[str], begun: Mapping[int, str], config: Config) -> None:
    """No value is read as an option; `begun` are the words that begin with one, as they are
    written.
    """
    # Behind the program itself `tar` reads options without a '-'.
    if not any(argv[at][:1] in ("-", "+") or at == 1 for at in begun):
        return
    from plait.template.options import Argument, option_words

    found = option_words([Argument(word) for word in argv], in_shell=False)
    problems = [
        Problem(
            f"the argument '{written}' could be taken for an option of "
            f"{os.path.basename(argv[0])}: "
            "its value begins like one",
            config.where,
            f"{found[at].fix}, or declare the parameter with x-option: true",
            code="option-like",
        )
        for at, written in begun.items()
        if at in found
    ]
    if problems:
        raise ValueRefusedError.together(problems)


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a process would look for its program."""

    path: str
    cwd: str


_UNKNOWN: Final = "\0"
"""A word with an unknown value, to test whether it would be code."""
_HARMLESS: Final = frozenset({"--project-path", "--noprofile", "--norc"})
"""Options of Plait's own runtimes: to load the tables of all others takes longer than to start a
tool.
"""


def _surely_data(template: Template, before: Sequence[str]) -> bool:
    """Is it the author's program, or a path of the call itself behind nothing that could announce
    code?
    """
    if not before and all(placeholder.kind == "env" for placeholder in template.placeholders):
        return True
    return all(placeholder in CONTEXT for placeholder in template.placeholders) and all(
        word[:1] not in ("-", "+") or word in _HARMLESS for word in before
    )


def _code_at(place: int, argv: Sequence[str], where: _Where) -> Code | None:
    """What reads the word at this place, or one behind it, as code."""
    from plait.template.shell.rules import code_in

    found = [code for code in code_in(_by_real_names(argv, where)) if code.place >= place]
    return min(found, key=lambda code: code.place, default=None)


def _by_real_names(argv: Sequence[str], where: _Where) -> list[str]:
    """The same words, with the names of programs under which we know them: a link to bash is
    bash.
    """
    from plait.template.shell.rules import is_interpreter, runs_another

    named = list(argv)
    for at, word in enumerate(argv):
        name = os.path.basename(word)
        if is_interpreter(name) or word[:1] in ("-", _UNKNOWN):
            continue
        real = os.path.basename(_real_program(word, where))
        if is_interpreter(real):
            named[at] = real
        if at == 0 and not runs_another(name) and not runs_another(real):
            break
    return named


def _real_program(word: str, where: _Where) -> str:
    places = [where.cwd] if "/" in word else where.path.split(os.pathsep)
    candidates = (os.path.join(folder or where.cwd, word) for folder in places)
    return next((os.path.realpath(path) for path in candidates if os.path.isfile(path)), word)


def _value_as_code(written: str, code: Code, config: Config) -> ShellRefusedError:
    return ShellRefusedError(
        f"the argument '{written}' is code to {code.name}, and a value in it would become code",
        config.where,
        "let the code read the value: from an argument of its own behind it, from config.env, "
        'or from standard input with input_data: "{params_json}"; '
        "a brace of the code's own is written with a blank: { x }",
        code="value-as-code",
    )


_OWN_FILE: Final = "{tool_path}"
"""A tool that is the program's own file reads data from its standard input."""


def _require_no_code_input(argv: Sequence[str], config: Config, where: _Where) -> None:
    """Raise if a caller's value is part of a program that an interpreter reads from stdin."""
    if not config.has("input_data") or config.only_of_author(
        config.template(config.written["input_data"])
    ):
        return
    from plait.template.shell.rules import reader_of_input

    name = reader_of_input(_by_real_names(argv, where))
    if name is not None:
        raise ShellRefusedError(
            f"'{name}' reads its standard input as code, and a value in config.input_data would "
            "become code",
            config.where,
            "put the code into config.args or a file, and let it read the value from an argument "
            "of its own, "
            "from config.env, or from standard input",
            code="value-as-code",
        )


def _script(written: str, clear: Config, dialect: Dialect) -> BoundScript:
    from plait.template.shell.script import bind_shell  # few tools have a script

    template = clear.template(written)
    bound = bind_shell(template, clear.names_for(template), env=clear.env, dialect=dialect)
    if bound.files:
        raise LimitError(
            f"a value is too long for the script '{written}'",
            clear.where,
            "let the script read it from standard input: input_data",
            code="too-large",
        )
    return bound


def _words(written: Json, config: Config, clear: Config) -> list[str]:
    if not isinstance(written, str):
        return [reveal_text(written)]
    template = config.template(written)
    if not template.leaf.program.placeholder_count:
        return sinks.render_words(template, {}, env={})
    names = clear.names_for(template)
    pieces = template.pieces(names, env=clear.env)
    shown = template.pieces(config.names_for(template), env=config.env)
    if "".join(map(_text, pieces)) != "".join(map(_text, shown)):
        raise _secret_argument(written, config)
    match pieces:
        case [PlacedValue(list() as items)]:
            return [reveal_text(item) for item in items]
    return sinks.render_words(template, names, env=clear.env)


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else text(piece.value)


def _secret_argument(written: str, config: Config) -> ValueRefusedError:
    return ValueRefusedError(
        f"the argument '{written}' would show a secret to every process of this machine",
        config.where,
        "hand it over in env_config.env or in input_data",
        code="secret-in-argv",
    )


def _child_environment(call: BindRequest, config: Config) -> dict[str, str]:
    own = _in_map(config, "env")
    child = {
        **_params_as_variables(call, config),
        **call.environment.plain,
        **{name: reveal_text(value) for name, value in own.items()},
    }
    for name, value in child.items():
        if "\0" in value or "\0" in name or "=" in name or not name:
            raise ValueRefusedError(
                f"the environment variable '{name}' cannot be passed",
                config.where,
                "remove NUL from it",
                code="bad-env",
            )
    return child


def _params_as_variables(call: BindRequest, config: Config) -> dict[str, str]:
    """For languages in which reading JSON is a chore: plain parameters as PREFIX_NAME."""
    prefix = config.value("params_env")
    if not isinstance(prefix, str) or not prefix:
        return {}
    plain = {
        name: value
        for name, value in call.params.items()
        if not isinstance(value, Mapping | list) and name.isidentifier() and name.isascii()
    }
    variables: dict[str, str] = {}
    for name, value in plain.items():
        if (variable := prefix + name.upper()) in variables:
            alike = sorted(other for other in plain if other.upper() == name.upper())
            raise ValueRefusedError(
                f"the parameters {' and '.join(alike)} would both be the variable {variable}",
                config.where,
                "give one of them another name, or read both from standard input",
                code="bad-env",
            )
        variables[variable] = reveal_text(value)
    return variables


def _stdin(config: Config) -> bytes:
    if not config.has("input_data"):
        return b""
    value = config.value("input_data")
    if value is None:  # one `{name}` without a value
        return b""
    written = value if isinstance(value, str) else json_text(value)
    return written.encode("utf-8", "surrogateescape")


def _directory(call: BindRequest, config: Config) -> str:
    written = config.written.get("cwd") or ""
    if not isinstance(written, str):
        raise _bad_config(config, "cwd", "text", "write cwd: some/folder")
    if not written or config.has_unresolved(
        config.template(written)
    ):  # {anchor_path} of a tool that has none
        return call.cwd
    return os.path.join(call.cwd, text(config.value("cwd")))


_LIMITS: Final = ("timeout", "max_output")


def _limits(call: BindRequest, config: Config, default: float = 300.0) -> CallLimits:
    timeout = config.value("timeout", default)
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(timeout, bool) or not 0 < seconds < float("inf"):
        raise InputError(
            "config.timeout is a number of seconds above 0",
            call.chain.tool.path,
            "write timeout: 60",
            code="bad-config",
        )
    return CallLimits(seconds, _whole(config, "max_output", DEFAULT_MAX_OUTPUT, least=1))


def _whole(config: Config, key: str, default: int, *, least: int) -> int:
    value = config.value(key, default)
    if not _is_whole(value, least=least):
        raise _bad_config(
            config, key, f"a whole number, {least} or more", f"write {key}: {default}"
        )
    return int(value)


# ── a request ────────────────────────────────────────────────────────────


def _request(call: BindRequest, config: Config) -> RequestCall:
    url = config.template(config.written.get("url") or "")
    if not config.written.get("url"):
        raise InputError(
            "an HTTP tool names a url", call.chain.tool.path, "set config.url", code="no-url"
        )
    clear = config.in_clear()
    headers = _headers(clear)
    body, content_type = _body(clear)
    if content_type and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", content_type))
    return RequestCall(
        method=str(config.value("method", "GET")).upper(),
        url=sinks.render_url(
            url, clear.names_for(url), strict=True, env=clear.env, host_from_value=True
        ),
        headers=tuple(headers),
        body=body,
        limits=_limits(call, config, 60.0),
        retry=_retry(config),
        max_redirects=_whole(config, "max_redirects", 0, least=0),
        url_from_data=any(
            placeholder.kind == "param" and config.from_caller(placeholder)
            for placeholder in _origin_placeholders(url)
        ),
    )


def _origin_placeholders(url: Template) -> list[PlaceholderName]:
    """The placeholders that decide to which host a request goes."""
    written, placeholders = url.leaf.source.text, list(url.placeholders)
    starts_with_placeholder = bool(placeholders) and written.startswith(placeholders[0].text)
    start = len(placeholders[0].text) if starts_with_placeholder else written.find("://") + 3
    ends = [place for place in (written.find(char, start) for char in "/?#") if place >= 0]
    return [
        placeholder
        for placeholder in placeholders
        if not ends or written.find(placeholder.text) < min(ends)
    ]


def _headers(config: Config) -> list[tuple[str, str]]:
    written = config.written.get("headers") or {}
    if not isinstance(written, Mapping):
        raise _bad_config(config, "headers", "a map", "write headers: {Accept: text/plain}")
    headers: list[tuple[str, str]] = []
    budget = Budget()
    for name, value in written.items():
        if not (isinstance(value, str) and config.is_gone(config.template(value))):
            headers.append((name, _header(value, config)))
            budget.spend(headers[-1][1], config.where)
    if (auth := config.written.get("auth")) is not None:
        headers.append(_authorisation(auth, config))
    return headers


_AUTH: Final = {
    # how a request says who sends it, and the keys that it takes
    "bearer": ("token", "key"),
    "api_key": ("key", "token", "header"),
    "header": ("key", "token", "header"),
    "basic": ("username", "password"),
}


def _authorisation(auth: Json, config: Config) -> tuple[str, str]:
    """The authorization header. An empty value is an error, not an anonymous request."""
    if isinstance(auth, str):
        return "Authorization", _credential(auth, "auth", config)
    kind = auth.get("type", "bearer") if isinstance(auth, Mapping) else None
    if not isinstance(auth, Mapping) or kind not in _AUTH:
        guess = closest_name(str(kind), _AUTH)
        fix = f"did you mean type: {guess}?" if guess else "write {type: bearer, token: …}"
        raise _bad_config(config, "auth", f"text, or a map whose type is {', '.join(_AUTH)}", fix)
    known = ("type", "header", *_AUTH[kind])
    for key in auth.keys() - set(known):
        raise _bad_config(config, "auth", f"not set by '{key}'", _suggest_key(key, known))
    if kind == "basic":
        from base64 import b64encode

        user, password = (_credential(auth.get(key), f"auth.{key}", config) for key in _AUTH[kind])
        pair = f"{user}:{password}".encode("utf-8", "surrogateescape")
        return "Authorization", f"Basic {b64encode(pair).decode('ascii')}"
    key = next((name for name in _AUTH[kind][:2] if name in auth), _AUTH[kind][0])
    value = _credential(auth.get(key), f"auth.{key}", config)
    return str(
        auth.get("header") or "Authorization"
    ), f"Bearer {value}" if kind == "bearer" else value


def _credential(written: Json, key: str, config: Config) -> str:
    template = config.template(written) if isinstance(written, str) else None
    missing = template is None or config.has_unresolved(template)
    if missing or not (value := _header(written, config)).strip():
        fix = "give a value to what it names, or remove config.auth to send the request without"
        raise _bad_config(config, key, "nothing: the request would go out without it", fix)
    return value


def _suggest_key(key: str, known: Sequence[str]) -> str:
    guess = closest_name(key, known)
    return f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"


def _header(value: Json, config: Config) -> str:
    template = config.template(value if isinstance(value, str) else reveal_text(value))
    return sinks.render_header(template, config.names_for(template), env=config.env)


def _body(config: Config) -> tuple[bytes | None, str | None]:
    if not config.has("body"):
        return None, None
    value = config.value("body")
    if value is None:  # one `{name}` without a value
        return None, None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape"), None
    return json_text(value).encode(), "application/json"


def _retry(config: Config) -> HttpRetry:
    given = {
        ("attempts" if key == "max_attempts" else key): value
        for key, value in _in_map(config, "retry").items()
    }
    known = field_names(HttpRetry)
    for key in given.keys() - set(known):
        raise _bad_config(config, "retry", f"not set by '{key}'", _suggest_key(key, known))
    retry = replace(HttpRetry(), **given)
    if not _is_whole(retry.attempts, least=1):
        raise _bad_config(
            config, "retry.attempts", "a whole number, 1 or more", "write attempts: 3"
        )
    if retry.backoff not in ("fixed", "linear", "exponential"):
        raise _bad_config(
            config, "retry.backoff", "fixed, linear or exponential", "write backoff: linear"
        )
    if not all(_is_delay(delay) for delay in (retry.initial_delay, retry.max_delay)):
        raise _bad_config(
            config, "retry", "given its delays in seconds", "write initial_delay: 0.5"
        )
    statuses: Json = retry.statuses
    if not isinstance(statuses, list | tuple) or not all(
        _is_whole(status, least=100) for status in statuses
    ):
        raise _bad_config(
            config, "retry.statuses", "a list of status codes", "write statuses: [429, 503]"
        )
    if not isinstance(retry.any_method, bool):
        raise _bad_config(config, "retry.any_method", "true or false", "write any_method: true")
    return replace(retry, statuses=tuple(statuses))


def _is_whole(value: Json, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_delay(value: Json) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    )


# ── a function, an MCP tool ──────────────────────────────────────────────


def _function(call: BindRequest, config: Config, params: Mapping[str, Json]) -> FunctionCall:
    return FunctionCall(
        path=call.chain.tool.path,
        code=call.chain.tool.data,
        digest=call.chain.tool.digest,
        function=str(config.value("function", "execute")),
        params=params,
        project_path=call.project,
        limits=_limits(call, config),
        file=str(call.context.get("tool_path", "")),
        beside=call.beside,
    )


def _mcp(call: BindRequest, config: Config, params: Mapping[str, Json]) -> McpCall:
    clear = config.in_clear()
    server, shown = clear.value("server"), config.value("server")
    tool = clear.value("tool_name")
    if not isinstance(server, Mapping) or not isinstance(tool, str):
        raise InputError(
            f"'{call.chain.tool.id}' names no MCP server and tool",
            call.chain.tool.path,
            "set config.server {command, args} or {url}, and config.tool_name",
            code="bad-config",
        )
    if _server_command(server, config) != _server_command(shown, config):
        raise _secret_argument("config.server.args", config)
    _require_no_server_options(_server_command(server, config), config, clear)
    env, headers = server.get("env") or {}, server.get("headers") or {}
    if not isinstance(env, Mapping) or not isinstance(headers, Mapping):
        raise _bad_config(
            config, "server", "given env and headers as maps", "write env: {NAME: value}"
        )
    return McpCall(
        McpServer(
            name=str(server.get("name") or call.chain.tool.id),
            command=_server_command(server, config),
            env={
                **call.environment.plain,
                **{name: reveal_text(value) for name, value in env.items()},
            },
            cwd=call.cwd,
            url=str(server.get("url") or ""),
            headers=tuple((name, reveal_text(value)) for name, value in headers.items()),
            url_from_data=_server_url_from_data(config),
        ),
        tool,
        params,
        _limits(call, config, 60.0),
        _server_chosen_by(config),
    )


def _require_no_server_options(argv: Sequence[str], config: Config, clear: Config) -> None:
    written = config.written.get("server")
    args = written.get("args") if isinstance(written, Mapping) else None
    if not isinstance(args, list) or len(args) + 1 != len(argv):
        return  # all of it came from somewhere else
    begun = {
        at: one
        for at, one in enumerate(args, start=1)
        if isinstance(one, str) and _begins_with_value(config.template(one), config, clear)
    }
    _require_no_options(argv, begun, config)


def _server_chosen_by(config: Config) -> tuple[str, ...]:
    written = config.written.get("server")
    if isinstance(written, Mapping):
        written = [written.get(key) for key in ("command", "args", "url")]
    return tuple(sorted(config.caller_names(written) - _in_map(config, "fixed_params").keys()))


def _server_url_from_data(config: Config) -> bool:
    written = config.written.get("server")
    url = written.get("url") if isinstance(written, Mapping) else None
    if not isinstance(url, str):
        return not isinstance(written, Mapping)  # the whole server came from somewhere else
    placeholders = _origin_placeholders(config.template(url))
    return any(
        placeholder.kind == "param" and config.from_caller(placeholder)
        for placeholder in placeholders
    )


def _server_command(server: Mapping[str, Json], config: Config) -> tuple[str, ...]:
    command, args = server.get("command"), server.get("args") or []
    if not command:
        return ()
    if not isinstance(args, list):
        raise _bad_config(config, "server.args", "a list", "write args: [a, b]")
    return (text(command), *map(text, args))
