"""The addresses of the pages: the one place that writes them."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from plait.core.digests import sha256_hex
from plait.core.hints import Final, Protocol

RUNS: Final = "/"
START: Final = "/start"
STATIC: Final = "/static"


def project_key(folder: str) -> str:
    """A short name of a project in addresses."""
    return sha256_hex(folder.encode("utf-8", "surrogatepass"))[:10]


def element_id(kind: str, path: str) -> str:
    """The id of an element about a step, which is the same at each update."""
    return f"{kind}-{sha256_hex(path.encode('utf-8', 'surrogatepass'))[:10]}"


def _query(values: dict[str, str]) -> str:
    chosen = {
        name: value.encode("utf-8", "surrogatepass") for name, value in values.items() if value
    }
    return f"?{urlencode(chosen, quote_via=quote)}" if chosen else ""


def runs_address(**values: str) -> str:
    """`q`, `state` and `project` select."""
    return RUNS + _query(values)


def start_address(**values: str) -> str:
    return START + _query(values)


class Links(Protocol):
    """Where the links of a run lead: to pages, or to places in an exported file."""

    def page(self, view: str = "", step: str = "") -> str: ...


class RunAddresses:
    """The addresses of one run."""

    def __init__(self, project: str, run: str) -> None:
        self._top = f"/run/{project}/{quote(run, safe='')}"

    def page(self, view: str = "", step: str = "", map: str = "") -> str:
        return self._top + _query({"view": view, "step": step, "map": map})

    def live(self, view: str = "", step: str = "", map: str = "") -> str:
        return f"{self._top}/live" + _query({"view": view, "step": step, "map": map})

    def items(self, map: str) -> str:
        return f"{self._top}/items" + _query({"map": map})

    @property
    def act(self) -> str:
        return f"{self._top}/act"
