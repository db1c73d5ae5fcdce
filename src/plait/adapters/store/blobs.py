"""Large data beside the journal: one file each, named by its SHA-256.

A file is complete before a record refers to it, and is checked against its name when it is read, so
torn or changed data is refused.
"""

from __future__ import annotations

import os

from plait.adapters.store.faults import map_storage_errors
from plait.adapters.store.files import make_own_folder, write_whole
from plait.core.digests import sha256_hex
from plait.core.errors import JournalError
from plait.core.safe_files import open_at_once


class Blobs:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        """Store data; `get_blob` returns it for the name that this returns."""
        name = sha256_hex(data)
        make_own_folder(self._folder)
        if not os.path.exists(os.path.join(self._folder, name)):
            write_whole(self._folder, name, data)
        return name

    def get_blob(self, name: str) -> bytes:
        path = os.path.join(self._folder, os.path.basename(name))
        try:
            with map_storage_errors(path), open(path, "rb", opener=open_at_once) as file:
                data = file.read()
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _blob_error(path, "is missing") from None
            raise
        if sha256_hex(data) != name:
            raise _blob_error(path, "is not what was written there")
        return data


def _blob_error(path: str, why: str) -> JournalError:
    return JournalError(
        f"data that belongs to the journal {why}",
        path,
        "restore the file from a backup, or remove the run's folder and run the flow again",
        code="damaged",
    )
