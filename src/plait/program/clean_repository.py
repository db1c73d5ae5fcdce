"""A stand-in for a git repository without its configuration, so git runs no program of it.

git can switch off hooks, monitors and transports, but not filters and merge drivers. A list of
drivers to switch off is not safe: another branch, another folder or an earlier step may add new
ones. So whenever git touches file content, it works in our own folder. Objects, refs and, where
needed, ignored names are links to the repository, but the configuration is ours. It contains only
those settings of the repository that are known not to name a program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass

SAFE: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    # Some messages of git are parsed here.
    "LANGUAGE": "C",
}
SETTINGS: Final = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.splitIndex", "false"),
    ("core.safecrlf", "false"),
    # Settings for speed must not hide a changed file.
    ("core.ignoreStat", "false"),
    ("core.trustCtime", "true"),
    ("core.checkStat", "default"),
)
LISTING: Final = ("config", "--includes", "--show-scope", "--list", "-z")
OWN_SCOPES: Final = frozenset({"system", "global"})
"""The scopes with the settings of the user."""
HARMLESS: Final = lazy_pattern(
    r"core\.(repositoryformatversion|sharedrepository|logallrefupdates|filemode|symlinks|ignorecase"
    r"|precomposeunicode|protecthfs|protectntfs|longpaths|autocrlf|eol|checkroundtripencoding"
    r"|excludesfile|attributesfile|sparsecheckout|sparsecheckoutcone|bigfilethreshold|compression"
    r"|loosecompression|abbrev|commitgraph|multipackindex)"
    r"|extensions\.(objectformat|compatobjectformat|refstorage|preciousobjects|noop)"
    r"|index\.(sparse|version|threads)|checkout\.(workers|thresholdforparallelism)"
    r"|(user|author|committer)\.(name|email)|i18n\.commitencoding"
    r"|merge\.(renames|renamelimit|directoryrenames|renormalize|default)"
    r"|diff\.(renames|renamelimit|algorithm)"
    # The user's large file filter needs these to find the files.
    r"|remote\..*\.url|lfs\.url",
    re.DOTALL,
)
LINKED: Final = ("objects", "refs", "reftable", "packed-refs", "shallow", "logs", "lfs")
INFO: Final = "info"
KEPT_INFO: Final = ("attributes", "grafts")
"""The files in `info` besides `exclude`."""
OPTIONAL_TARGETS: Final = frozenset({"packed-refs", "shallow"})
"""git creates these files through the link, so the target need not exist."""
DRIVER: Final = lazy_pattern(r"merge\..*\.driver", re.DOTALL)
FILTER: Final = lazy_pattern(r"filter\..*\.(clean|smudge|process)", re.DOTALL)
ALWAYS_CONFLICT: Final = "exit 1"
"""A merge driver that always reports a conflict. Without one, git would merge line by line."""


@dataclass(frozen=True, slots=True)
class GitSetting:
    scope: str
    name: str
    value: str

    @property
    def is_of_repository(self) -> bool:
        return self.scope not in OWN_SCOPES


def read_settings(listed: bytes) -> list[GitSetting]:
    """Parse the output of `LISTING`. Later settings win."""
    parts = [os.fsdecode(part) for part in listed.split(b"\0")[:-1]]
    return [_setting(scope, entry) for scope, entry in zip(parts[::2], parts[1::2], strict=False)]


def _setting(scope: str, entry: str) -> GitSetting:
    name, equals, value = entry.partition("\n")
    return GitSetting(scope, name, value if equals else "true")


def make_clean_repository(
    folder: str,
    common: str,
    settings: Sequence[GitSetting],
    *,
    with_user_settings: bool,
    excludes: bool = True,
) -> None:
    """Create or update the stand-in for a repository in a folder.

    `with_user_settings`: include the settings of the user, for a git that does not read them
    itself. `excludes`: include the names that only this repository ignores (`info/exclude`).
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if any(one.name.startswith("filter.lfs.") for one in settings if not one.is_of_repository):
        # The user's filter stores large files there, and they must outlive the run.
        os.makedirs(os.path.join(common, "lfs"), exist_ok=True)
    for name in LINKED:
        target = os.path.join(common, name)
        if name in OPTIONAL_TARGETS or os.path.lexists(target):
            _link(os.path.join(folder, name), target)
    _link_info(os.path.join(folder, INFO), os.path.join(common, INFO), excludes=excludes)
    _write_file(os.path.join(folder, "HEAD"), "ref: refs/heads/none\n")
    kept = [one for one in settings if with_user_settings or one.is_of_repository]
    _write_file(os.path.join(folder, "config"), "".join(_lines(kept)))


def _link_info(info: str, target: str, *, excludes: bool) -> None:
    if excludes:
        if os.path.lexists(target):
            _link(info, target)
        return
    os.makedirs(info, mode=0o700, exist_ok=True)
    for name in KEPT_INFO:  # even if the target does not exist: a step may create it
        _link(os.path.join(info, name), os.path.join(target, name))


def _link(link: str, target: str) -> None:
    """Create or update a link. A file that git has put there stays."""
    if os.path.islink(link) and os.readlink(link) != target:
        os.unlink(link)
    with suppress(FileExistsError):
        os.symlink(target, link)


def _write_file(path: str, text: str) -> None:
    """Write atomically: another git may be reading the file."""
    with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def _lines(settings: Iterable[GitSetting]) -> Iterator[str]:
    for one in settings:
        is_driver = DRIVER.fullmatch(one.name) is not None
        if is_driver or HARMLESS.fullmatch(one.name):
            section, _, rest = one.name.partition(".")
            middle, _, key = rest.rpartition(".")
            yield f"[{section} {_quote(middle)}]\n" if middle else f"[{section}]\n"
            yield f"\t{key} = {_quote(ALWAYS_CONFLICT if is_driver else one.value)}\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def settings_env(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Environment variables with settings that override those of the repository."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def clean_repository_env(folder: str, administration: str, tree: str) -> Mapping[str, str]:
    """Environment variables that let git work in a tree with a stand-in.

    `administration` is the folder with the index and HEAD of that tree.
    """
    apart = {} if administration == folder else {"GIT_COMMON_DIR": folder}
    return {"GIT_DIR": administration, "GIT_WORK_TREE": tree, **apart}
