"""Write values to their destination: one rule per sink.

    value    typed, nothing converted          json     the tree is filled, then serialised once
    text     the text form                     url      percent-encoded for its part of the URL
    argv     one value, one argument           header   CR, LF and NUL refused
    shell    bound, not quoted (shell/)        env      NUL refused

The author's text passes unchanged; the rules apply to values only. Sinks for a process or a server
reveal secrets; `value` and `text` never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import InputError, ValueRefusedError, closest_name
from plait.core.hints import Final, Literal
from plait.core.source import Source, Span
from plait.core.values import Json, Secret, Unknown, json_text, reveal_text, text
from plait.template.compiled import (
    Budget,
    Lookup,
    Piece,
    PlacedValue,
    require_bounded,
    unknown_text,
)
from plait.template.filters import holds_secret
from plait.template.nodes import (
    ContextPlaceholder,
    EnvPlaceholder,
    FilledPlaceholder,
    ParamPlaceholder,
    Parts,
    Placeholder,
    Text,
    placeholders,
)
from plait.template.template import Branch, Constant, Leaf, Node, Template, compile_template

Values = Mapping[str, Json] | Lookup
Env = Mapping[str, str] | None
UrlPart = Literal["origin", "path", "query", "fragment"]

NAMES: Final = ("value", "text", "argv", "shell", "json", "url", "header", "env")


def sink_named(name: str) -> str:
    if name in NAMES:
        return name
    guess = closest_name(str(name), NAMES)
    raise InputError(
        f"there is no sink '{name}'",
        fix=(f"did you mean '{guess}'? " if guess else "") + f"sinks: {', '.join(NAMES)}",
        code="unknown-sink",
    )


def render_text(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> str:
    return text(template.render(values, strict=strict, env=env))


def render_words(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> list[str]:
    """One argument; a whole-value list spreads only as `${files...}`."""
    pieces = template.pieces(values, strict=strict, env=env)
    match pieces:
        case [PlacedValue(list() as items, placeholder)] if _spreads(placeholder):
            pieces = [PlacedValue(item, placeholder) for item in items]
            words = [reveal_text(item) for item in items]
        case _:
            words = ["".join(map(_reveal_piece, pieces))]
    source = template.leaf.source
    for word in words:
        _refuse_characters(word, "\0", "an argument", source, pieces)
    return words


def render_argv(
    templates: Sequence[Template], values: Values, *, strict: bool = False, env: Env = None
) -> list[str]:
    return [
        word
        for template in templates
        for word in render_words(template, values, strict=strict, env=env)
    ]


def render_json_value(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> Json:
    """Fill a tree; map entries whose value is one unresolved `{name}` are removed, at any depth."""
    whole = template.render_checked(values, strict=strict, env=env, sealing=True)
    if template.profile.braces != "param":
        return whole
    stripped = _strip_unresolved(
        template.root, whole, template.lookup(values, env).names, env or {}
    )
    return None if stripped is _GONE else stripped


def render_json(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> str:
    value = render_json_value(template, values, strict=strict, env=env)
    if template.counted:
        require_bounded(value)
    return json_text(value, reveal=True)


def render_header(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> str:
    return _render_checked(template, values, "\r\n\0", "a header", strict=strict, env=env)


def render_env(template: Template, values: Values, *, strict: bool = False, env: Env = None) -> str:
    return _render_checked(
        template, values, "\0", "an environment variable", strict=strict, env=env
    )


def render_secret_env(
    template: Template, values: Values, *, strict: bool = False, env: Env = None
) -> tuple[str | Secret | Unknown, list[str]]:
    """Like `render_env`, but text with a secret in it is a secret; also returns these texts."""
    pieces = template.pieces(values, strict=strict, env=env)
    if any(map(_is_unknown, pieces)):
        return unknown_text(pieces), []
    whole = "".join(map(_reveal_piece, pieces))
    _refuse_characters(whole, "\0", "an environment variable", template.leaf.source, pieces)
    secrets = [
        _reveal_piece(one)
        for one in pieces
        if isinstance(one, PlacedValue) and holds_secret(one.value)
    ]
    return Secret(whole) if secrets else whole, secrets


def as_sealed_envs(
    templates: Mapping[str, Template], values: Values, *, strict: bool = False
) -> dict[str, tuple[str | Secret | Unknown, list[str]]]:
    """All variables of one place, which have one budget."""
    filled: dict[str, tuple[str | Secret | Unknown, list[str]]] = {}
    budget = Budget()
    for name, template in templates.items():
        filled[name] = render_secret_env(template, values, strict=strict)
        source = template.leaf.source
        budget.spend(filled[name][0], Span(source, 0, len(source.text)))
    return filled


def render_url(
    template: Template,
    values: Values,
    *,
    strict: bool = False,
    env: Env = None,
    host_from_value: bool = False,
) -> str:
    """A URL whose scheme and host the author wrote; values are encoded for the part they land
    in.
    """
    pieces = template.pieces(values, strict=strict, env=env)
    source = template.leaf.source
    written: list[str] = []
    place: UrlPart = "origin"
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            written.append(piece)
            # The text before decides the origin; the text added since decides later parts.
            place = (
                _url_part("".join(written)) if place == "origin" else _later_url_part(place, piece)
            )
        elif _is_unknown(piece) and (place != "origin" or (host_from_value and index == 0)):
            written.append(_reveal_piece(piece))
            place = "query" if place == "origin" else place  # a query refuses no value
        elif place != "origin":
            written.append(
                _url_encoded(piece, place, written[-1], pieces[index + 1 : index + 2], source)
            )
        elif host_from_value and index == 0:
            written.append(_require_origin(reveal_text(piece.value), piece, source))
            place = _url_part(written[0])
        else:
            raise _refusal_error(
                "the scheme and host of a URL may not come from a value", piece, source,
                "write them in the template, or declare that this URL may be given", "url-origin",
            )  # fmt: skip
    return "".join(written)


def is_own_text(template: Template, values: Values, *, of_author: bool = False) -> bool:
    """Do all its values come from trusted sources, and none from outside?"""
    lookup = template.lookup(values, None)
    every = (
        placeholder
        for leaf in template.leaves()
        for placeholder in placeholders(leaf.compiled.parts)
    )
    return all(
        is_author_placeholder(placeholder, lookup, of_author=of_author) for placeholder in every
    )


# ── helpers, in order of use ─────────────────────────────────────────────


def _reveal_piece(piece: Piece) -> str:
    return piece if isinstance(piece, str) else reveal_text(piece.value)


def _is_unknown(piece: Piece) -> bool:
    return isinstance(piece, PlacedValue) and isinstance(piece.value, Unknown)


def _render_checked(
    template: Template, values: Values, refused: str, what: str, *, strict: bool, env: Env
) -> str:
    pieces = template.pieces(values, strict=strict, env=env)
    whole = "".join(map(_reveal_piece, pieces))
    _refuse_characters(whole, refused, what, template.leaf.source, pieces)
    return whole


def _refuse_characters(
    whole: str, refused: str, what: str, source: Source, pieces: Sequence[Piece]
) -> None:
    if not any(char in whole for char in refused):
        return
    shown = {"\0": "NUL", "\r": "CR", "\n": "LF"}
    placeholders = [piece for piece in pieces if isinstance(piece, PlacedValue)]
    for piece in placeholders:
        value = reveal_text(piece.value)
        for char in refused:
            if char in value:
                fix = "remove it from the value, or pass the value through a file or stdin"
                raise _refusal_error(
                    f"{what} cannot hold {shown[char]}", piece, source, fix, "forbidden-character"
                )
    raise ValueRefusedError(
        f"{what} cannot hold {' or '.join(shown[c] for c in refused if c in whole)}",
        Span(source, 0, len(source.text)),
        "remove it from the text",
        code="forbidden-character",
    )


def _refusal_error(
    what: str, piece: PlacedValue, source: Source, fix: str, code: str
) -> ValueRefusedError:
    return ValueRefusedError(
        what, Span(source, piece.placeholder.start, piece.placeholder.end), fix, code=code
    )


_GONE: Final = object()


def _strip_unresolved(
    node: Node, value: Json, names: Mapping[str, Json], env: Mapping[str, str]
) -> Json:
    match node:
        case Leaf(compiled):
            return _GONE if is_unresolved(compiled.parts, names, env) else value
        case Branch(items, None):
            kept = [
                _strip_unresolved(item, inner, names, env)
                for item, inner in zip(items, value, strict=True)
            ]
            return [item for item in kept if item is not _GONE]
        case Branch(items, keys):
            entries = zip(keys or (), items, value.values(), strict=True)
            tree = {key: _strip_unresolved(item, inner, names, env) for key, item, inner in entries}
            return {key: item for key, item in tree.items() if item is not _GONE}
        case Constant():
            return value


def drop_unanswered(template: Template, values: Values) -> Template | None:
    """The template without the entries that are one placeholder without a value; None: nothing is
    left.

    A request leaves such an entry out, instead of sending the placeholder as text.
    """
    rendering = template.rendering(values, strict=False, env=None)

    def prune(node: Node) -> Node | None:
        match node:
            case Leaf(compiled, source) if [type(part) for part in compiled.parts] == [
                ContextPlaceholder
            ]:
                rendering.source = source
                return None if isinstance(compiled.pieces(rendering)[0], str) else node
            case Branch(items, keys):
                kept = [
                    (at, one) for at, item in enumerate(items) if (one := prune(item)) is not None
                ]
                names = None if keys is None else tuple(keys[at] for at, _ in kept)
                return Branch(tuple(one for _, one in kept), names)
        return node

    root = prune(template.root)
    return None if root is None else template.with_root(root)


def is_unresolved(parts: Parts, names: Mapping[str, Json], env: Mapping[str, str]) -> bool:
    """Is it only one `{name}`, also as the default in use, that the caller did not set?"""
    match parts:
        case (ParamPlaceholder(name=name),):
            return name not in names
        case (EnvPlaceholder(name=name, default=default),) if (
            default is not None and name not in env
        ):
            return is_unresolved(default, names, env)
    return False


def _url_part(written: str) -> UrlPart:
    """The part of the URL that follows the text before it."""
    if written.startswith(("//", "/\\")):  # a host follows, and some clients read '\' as '/'
        rest = written[2:]
    elif written.startswith("/"):
        return _later_url_part("path", written)
    else:
        _, _, rest = written.partition("://")
    return _later_url_part("path", rest) if any(char in rest for char in "/?#") else "origin"


def _later_url_part(place: UrlPart, added: str) -> UrlPart:
    if place == "fragment" or "#" in added:
        return "fragment"
    return "query" if place == "query" or "?" in added else "path"


def _url_encoded(
    piece: PlacedValue, place: UrlPart, before: str, after: Sequence[Piece], source: Source
) -> str:
    value = reveal_text(piece.value)
    if place == "path":
        next_text = after[0] if after and isinstance(after[0], str) else ""
        fills_segment = before.endswith("/") and (not next_text or next_text[0] in "/?#")
        if value in (".", "..") or (fills_segment and not value):
            raise _refusal_error(
                "a path segment of a URL may not be empty, '.' or '..'", piece, source,
                "give it another value", "url-segment",
            )  # fmt: skip
    from urllib.parse import quote  # only URLs need it, and it is slow to import

    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise _refusal_error(
            "a URL holds text, not bytes", piece, source, "encode it first", "url-bytes"
        ) from None


def _require_origin(value: str, piece: PlacedValue, source: Source) -> str:
    scheme, separator, rest = value.partition("://")
    authority = rest.split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
    printable = all(33 <= ord(char) < 127 for char in value)
    if (
        scheme not in ("http", "https")
        or not separator
        or "@" in authority
        or not authority
        or not printable
    ):
        raise _refusal_error(
            "this value is not an http or https URL without user name", piece, source,
            "give it the form https://host/path", "url-origin",
        )  # fmt: skip
    return value


def _spreads(placeholder: Placeholder | FilledPlaceholder) -> bool:
    asked = original_placeholder(placeholder)
    return isinstance(asked, ContextPlaceholder) and asked.spread


def original_placeholder(placeholder: Placeholder | FilledPlaceholder) -> Placeholder | None:
    """The placeholder of the author, also if an earlier stage has filled it."""
    return placeholder.placeholder if isinstance(placeholder, FilledPlaceholder) else placeholder


def is_author_placeholder(
    placeholder: Placeholder | FilledPlaceholder, lookup: Lookup | None, *, of_author: bool = False
) -> bool:
    """Does every name in the placeholder come from a trusted source?

    `of_author`: only from the author, so that it may be an option.
    """
    find_origin = getattr(lookup, "origin", None)
    if not isinstance(placeholder, ContextPlaceholder) or find_origin is None:
        return False
    roots = [getattr(alternative.origin, "root", None) for alternative in placeholder.alternatives]
    origins = [find_origin(root) if root else None for root in roots]
    if placeholder.default is not None and not any(origins):
        return all(
            isinstance(part, Text) for part in placeholder.default
        )  # the author's default is used
    if of_author:
        return all(origin is not None and origin.of_author for origin in origins)
    return all(origin is not None and origin.is_trusted for origin in origins)


def resolve(template: str | None, inputs: Mapping[str, Json] | None) -> str | None:
    """Replace `{name}`; `{{name}}` is a literal `{name}`; null and blank text stay as they are."""
    if template is None:
        return None
    if not isinstance(template, str):
        raise InputError(
            f"a prompt is text, not {type(template).__name__}",
            fix="pass a string or None",
            code="wrong-type",
        )
    if not template.strip():
        return template
    import logging  # slow to import, and nothing else of the engine needs it

    log = logging.getLogger("plait.template")
    values = {} if inputs is None else inputs
    if not isinstance(values, Mapping):
        raise InputError(
            "inputs are a map of names", fix='pass {"name": "value"}', code="wrong-type"
        )
    compiled = compile_template(template, "prompt")
    log.debug("Resolving template (%d chars) with %d variables", len(template), len(values))
    resolved: str = compiled.render(values)
    log.debug("Resolved %d variables in template", len(compiled.placeholders))
    return resolved


def quote_for_display(value: Json) -> str:
    """A value as one shell word, quoted where necessary, to show a command to a person.

    This is not how Plait passes values to a shell: see `shell`.
    """
    from shlex import quote

    return quote(text(value))
