"""Decode response bodies within limits, and make headers that are safe to show.

Everything here comes from an untrusted server. A body is decompressed in small pieces and counted,
so a small file that would grow to gigabytes stops at the limit.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping

from plait.core.errors import RequestError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.values import MASK, Json, json_error, json_value
from plait.tools.invocation import display_header

PIECE: Final = 64 << 10

_JSON_TYPE = lazy_pattern(r"(?:application|text)/(?:json|[\w.+-]+\+json)")
_BINARY_TYPE = lazy_pattern(
    r"(?:image|audio|video|font)/(?!svg\+xml)"
    r"|application/(?:octet-stream|pdf|zip|gzip|x-tar|wasm|vnd\.(?!.*(?:xml|json|yaml)))"
)
_CHARSET = lazy_pattern(r";\s*charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
# Not all of Python's codecs: some are not charsets, some are slow.
_CHARSETS: Final = lazy_pattern(
    r"utf-?8|utf-?16(?:le|be)?|us-ascii|ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d|koi8-[ru]"
    r"|shift_jis|euc-jp|iso-2022-jp|gbk|gb2312|gb18030|big5|euc-kr",
    re.IGNORECASE,
)
_USER_INFO = lazy_pattern(r"//[^/]*@")


@dataclass(frozen=True, slots=True)
class Content:
    data: Json
    base64: bool = False
    broken: str | None = None
    """Why the body does not match its content type."""


def decode_body(pieces: Iterable[bytes], encoding: str) -> Iterable[bytes]:
    """The body without its content encoding."""
    match encoding.strip().lower():
        case "" | "identity":
            return pieces
        case "gzip" | "x-gzip":
            return _gunzip(pieces)
    raise RequestError(
        "the answer is compressed in a way that was not asked for",
        fix="remove the 'accept-encoding' header from the request, or have the server send gzip",
        code="encoding",
    )


def limit_bytes(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield the pieces; raise a RequestError after `limit` bytes."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise RequestError(
                f"the answer is larger than {limit:,} bytes",
                fix="raise `max_output`, or ask the server for less",
                code="too-large",
            )
        yield piece


def content(body: bytes, content_type: str) -> Content:
    """The body as JSON data, as text, or in base64 if it is neither."""
    kind = content_type.partition(";")[0].strip().lower()
    if _JSON_TYPE.fullmatch(kind):
        if not body:
            return Content(None)
        try:
            return Content(json_value(body.decode("utf-8-sig")))
        except (ValueError, RecursionError) as error:
            text = _decode_text(body, "utf-8")
            data = b64encode(body).decode("ascii") if text is None else text
            return Content(data, base64=text is None, broken=_json_reason(error))
    if (
        not _BINARY_TYPE.match(kind)
        and (text := _decode_text(body, _charset(content_type))) is not None
    ):
        return Content(text)
    return Content(b64encode(body).decode("ascii"), base64=True)


def display_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers for metadata: credentials masked, also those in the URL of a redirect."""
    return {name: _display_value(name, value) for name, value in headers.items()}


def display_url(url: str) -> str:
    """A URL for people: values in its query may be secret, so they are masked."""
    base, _, query = url.partition("#")[0].partition("?")
    base = _USER_INFO.sub(f"//{MASK}@", base)
    masked = (
        f"{part.partition('=')[0]}={MASK}" if "=" in part else MASK for part in query.split("&")
    )
    return f"{base}?{'&'.join(masked)}" if query else base


def _gunzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    engine, has_data = _gzip(), False
    try:
        for piece in pieces:
            has_data = has_data or bool(piece)
            rest = piece
            while True:
                out = engine.decompress(rest, PIECE)
                if out:
                    yield out
                rest = engine.unconsumed_tail
                if engine.eof and engine.unused_data:
                    rest, engine = (
                        engine.unused_data,
                        _gzip(),
                    )  # a gzip body may have several members
                elif engine.eof or not (out or rest):
                    break
    except zlib.error:
        raise _encoding_error() from None
    if has_data and not engine.eof:
        raise _encoding_error()


def _gzip() -> zlib._Decompress:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


def _encoding_error() -> RequestError:
    return RequestError(
        "the compressed answer is damaged or incomplete",
        fix="try again, or see the log of the server",
        code="encoding",
    )


def _json_reason(error: Exception) -> str:
    # Not the exception's own text, which may quote the body.
    if isinstance(error, json.JSONDecodeError):
        error = json_error(error)
        return (
            f"the answer says it is JSON and is not, from line {error.lineno}, column {error.colno}"
        )
    if isinstance(error, RecursionError):
        return "the answer is JSON that is nested too deeply"
    return "the answer says it is JSON and holds what JSON does not allow"


def _charset(content_type: str) -> str:
    found = _CHARSET.search(content_type)
    return found[1] if found and _CHARSETS.fullmatch(found[1]) else "utf-8"


def _decode_text(body: bytes, charset: str) -> str | None:
    try:
        text = body.decode(charset)
    except (UnicodeError, LookupError):
        return None
    return None if "\0" in text else text


def _display_value(name: str, value: str) -> str:
    return (
        display_url(value)
        if name in ("location", "content-location")
        else display_header(name, value)
    )
