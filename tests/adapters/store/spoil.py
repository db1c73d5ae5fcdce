"""Ways to damage the folder of a run: bytes of its files, rows and facts of its journal."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

TABLES = ("records", "properties", "strings", "marks")
DEEP = "[" * 100_000
WRONG: tuple[Any, ...] = (
    None, -1, 0, 1, 7, 99, 2**31, 2**62, 1.5, float("inf"), "", "x", "map", "map/", "item:a", "{", "null", "[]",
    "{}", '"text"', "[1,2]", '{"message": 1}', '{"message": "m", "more": 1}', '{"a": {"b": [1]}}', DEEP,
    "[" * 400 + "]" * 400, b"", b"\xff\xfe", b"x" * 32, b"[[],[]]", b"[1]", "\\u12", "\ud7ff", "a" * 70_000,
)  # fmt: skip


def spoil(folder: Path, chance: random.Random) -> str:
    """Damage one thing; return a description for a failing test."""
    how = chance.choice(
        (_spoil_bytes, _spoil_file, _spoil_row, _spoil_row, _spoil_row, _spoil_fact, _spoil_table)
    )
    try:
        return how(folder, chance)
    except (sqlite3.Error, ValueError, IndexError, TypeError, OSError) as error:
        return f"nothing more: {error}"  # what was done before went too far for that


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _spoil_bytes(folder: Path, chance: random.Random) -> str:
    file = chance.choice(_files(folder))
    data = bytearray(file.read_bytes())
    at = chance.randrange(len(data) + 1)
    match chance.choice(("cut", "flip", "flip", "zero", "insert", "remove", "noise")):
        case "cut":
            del data[at:]
        case "flip" if data:
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case "zero":
            data[at : at + 500] = bytes(len(data[at : at + 500]))
        case "insert":
            data[at:at] = chance.randbytes(chance.randrange(1, 100))
        case "remove":
            del data[at : at + chance.randrange(1, 2000)]
        case _:
            data = bytearray(chance.randbytes(chance.randrange(0, 5000)))
    file.write_bytes(data)
    return f"bytes of {file.name} at {at}"


def _spoil_file(folder: Path, chance: random.Random) -> str:
    file = chance.choice(_files(folder))
    file.unlink()
    how = chance.choice(("gone", "empty", "a folder", "a link to nowhere", "a link to itself"))
    match how:
        case "empty":
            file.touch()
        case "a folder":
            file.mkdir()
        case "a link to nowhere":
            file.symlink_to("/nowhere/at/all")
        case "a link to itself":
            file.symlink_to(file)
    return f"{file.name} is {how}"


def _spoil_row(folder: Path, chance: random.Random) -> str:
    with closing(_journal(folder)) as journal:
        table = chance.choice((*TABLES, "records", "records", "records"))
        columns = [row[1] for row in journal.execute(f"PRAGMA table_info({table})")]
        rows = journal.execute(
            f"SELECT {'name' if table == 'properties' else columns[0]} FROM {table}"
        ).fetchall()
        if not rows:
            return "nothing"
        column, (key,) = chance.choice(columns), chance.choice(rows)
        where = f"WHERE {'name' if table == 'properties' else columns[0]} = ?"
        if chance.random() < 0.1:
            journal.execute(f"DELETE FROM {table} {where}", (key,))
            return f"{table} without {key}"
        value = _like(
            journal.execute(f"SELECT {column} FROM {table} {where}", (key,)).fetchone()[0], chance
        )
        with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
            journal.execute(f"UPDATE {table} SET {column} = ? {where}", (value, key))
        return f"{table}.{column} of {key} is {str(value)[:60]!r}"


def _like(known: object, chance: random.Random) -> object:
    """A wrong value in the place of this one; of JSON, with one thing in it that is another."""
    if isinstance(known, str) and known[:1] in "[{" and chance.random() < 0.7:
        with suppress(ValueError):
            return json.dumps(changed(json.loads(known), chance))
    return chance.choice(WRONG)


def changed(value: Any, chance: random.Random) -> Any:
    """A JSON value with one part gone or of another type."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    if not keys or chance.random() < 0.2:
        return chance.choice((None, 1, -1, "x", [], {}, [1], {"a": 1}, True, 1.5))
    key = chance.choice(keys)
    if chance.random() < 0.3:
        del value[key]
    else:
        value[key] = changed(value[key], chance)
    return value


def _spoil_fact(folder: Path, chance: random.Random) -> str:
    with closing(_journal(folder)) as journal:
        found = journal.execute("SELECT value FROM properties WHERE name = 'facts'").fetchone()
        facts = changed(json.loads(found[0]), chance)
        journal.execute(
            "UPDATE properties SET value = ? WHERE name = 'facts'", (json.dumps(facts),)
        )
    return f"facts are {facts}"


def _spoil_table(folder: Path, chance: random.Random) -> str:
    table = chance.choice(TABLES)
    how = chance.choice(("DROP TABLE {0}", "DELETE FROM {0}", "ALTER TABLE {0} RENAME TO other",
                         "PRAGMA user_version=0", "PRAGMA user_version=3", "PRAGMA user_version=-1"))  # fmt: skip
    with closing(_journal(folder)) as journal, suppress(sqlite3.Error):
        journal.execute("DROP VIEW events")
        journal.execute("DROP VIEW steps")
        journal.execute(how.format(table))
    return how.format(table)


def _journal(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(os.path.join(folder, "journal.db"), isolation_level=None)


def copy_of(folder: Path, to: Path) -> None:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(folder, to, symlinks=True)
