"""What was measured last of each part, in files: a run that is cut loses one part and not all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tables import Row, Table

FOLDER = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Measured:
    """The tables of a part, and when and where they were made."""

    day: str
    machine: str
    tables: list[Table]


def keep(part: str, measured: Measured) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(asdict(measured), ensure_ascii=False, indent=1)
    (FOLDER / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def kept(part: str) -> Measured | None:
    file = FOLDER / f"{part}.json"
    if not file.exists():
        return None
    data = json.loads(file.read_text(encoding="utf-8"))
    return Measured(data["day"], data["machine"], [_table(one) for one in data["tables"]])


def _table(data: dict[str, Any]) -> Table:
    rows = tuple(
        Row(one["name"], tuple(one["cells"]), one["bar"], one["passed"]) for one in data["rows"]
    )
    return Table(data["title"], data["meaning"], tuple(data["columns"]), rows)
