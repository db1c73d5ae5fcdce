"""A repository without its configuration, by which git reads and writes files.

git has a switch for hooks, monitors and transports, but none for filters and merge drivers; and a
list of those to be switched off can be outrun: another branch, another folder or the step before
may bring new ones.  So wherever git touches the content of files it works in a folder of our own
that stands in for the repository's: objects, refs and, where they are wanted, ignored names lead
there, but the configuration is ours.  It has the settings of the repository that are known to name
no program, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from plait.core.hints import Final
from plait.core.records import dataclass

SAFE: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    # What git says is read here and there.
    "LANGUAGE": "C",
}
SETTINGS: Final = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.splitIndex", "false"),
    ("core.safecrlf", "false"),
    # A file that has changed is seen, whatever somebody said for the sake of speed.
    ("core.ignoreStat", "false"),
    ("core.trustCtime", "true"),
    ("core.checkStat", "default"),
)
LISTING: Final = ("config", "--includes", "--show-scope", "--list", "-z")
OWN_SCOPES: Final = frozenset({"system", "global"})
"""Where the user's own settings stand."""
HARMLESS: Final = re.compile(
    r"core\.(repositoryformatversion|sharedrepository|logallrefupdates|filemode|symlinks|ignorecase"
    r"|precomposeunicode|protecthfs|protectntfs|longpaths|autocrlf|eol|checkroundtripencoding"
    r"|excludesfile|attributesfile|sparsecheckout|sparsecheckoutcone|bigfilethreshold|compression"
    r"|loosecompression|abbrev|commitgraph|multipackindex)"
    r"|extensions\.(objectformat|compatobjectformat|refstorage|preciousobjects|noop)"
    r"|index\.(sparse|version|threads)|checkout\.(workers|thresholdforparallelism)"
    r"|(user|author|committer)\.(name|email)|i18n\.commitencoding"
    r"|merge\.(renames|renamelimit|directoryrenames|renormalize|default)"
    r"|diff\.(renames|renamelimit|algorithm)"
    # Where the filter of the user that keeps large files elsewhere may find them.
    r"|remote\..*\.url|lfs\.url",
    re.DOTALL,
)
LINKED: Final = ("objects", "refs", "reftable", "packed-refs", "shallow", "logs", "lfs")
INFO: Final = "info"
KEPT_INFO: Final = ("attributes", "grafts")
"""What a repository says about its files besides what it excludes."""
ABSENT_IS_FINE: Final = frozenset({"packed-refs", "shallow"})
"""git writes these where the link leads, also if there was none before."""
DRIVER: Final = re.compile(r"merge\..*\.driver", re.DOTALL)
FILTER: Final = re.compile(r"filter\..*\.(clean|smudge|process)", re.DOTALL)
IN_VAIN: Final = "exit 1"
"""A merge driver that always says: conflict.  Without one, git would merge line by line."""


@dataclass(frozen=True, slots=True)
class GitSetting:
    scope: str
    name: str
    value: str

    @property
    def is_of_repository(self) -> bool:
        return self.scope not in OWN_SCOPES


def read_settings(listed: bytes) -> list[GitSetting]:
    """What git prints for `LISTING`, in the order in which later ones win."""
    parts = [os.fsdecode(part) for part in listed.split(b"\0")[:-1]]
    return [_setting(scope, said) for scope, said in zip(parts[::2], parts[1::2], strict=False)]


def _setting(scope: str, said: str) -> GitSetting:
    name, equals, value = said.partition("\n")
    return GitSetting(scope, name, value if equals else "true")


def make_clean_repository(
    folder: str, common: str, settings: Sequence[GitSetting], *, alone: bool, excludes: bool = True
) -> None:
    """Make a folder that stands in for a repository, or bring it up to date.

    `alone`: with the settings of the user, too, for a git that does not read those itself.
    `excludes`: with the names that only this repository ignores (`info/exclude`).
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if any(one.name.startswith("filter.lfs.") for one in settings if not one.is_of_repository):
        # The user's filter puts large files there, and they have to outlive the run.
        os.makedirs(os.path.join(common, "lfs"), exist_ok=True)
    for name in LINKED:
        target = os.path.join(common, name)
        if name in ABSENT_IS_FINE or os.path.lexists(target):
            _lead(os.path.join(folder, name), target)
    _lead_to_info(os.path.join(folder, INFO), os.path.join(common, INFO), excludes=excludes)
    _put(os.path.join(folder, "HEAD"), "ref: refs/heads/none\n")
    kept = [one for one in settings if alone or one.is_of_repository]
    _put(os.path.join(folder, "config"), "".join(_lines(kept)))


def _lead_to_info(info: str, target: str, *, excludes: bool) -> None:
    if excludes:
        if os.path.lexists(target):
            _lead(info, target)
        return
    os.makedirs(info, mode=0o700, exist_ok=True)
    for name in KEPT_INFO:  # also if there is none: a step may write it
        _lead(os.path.join(info, name), os.path.join(target, name))


def _lead(link: str, target: str) -> None:
    """Let a link lead somewhere; what git itself has put in its place stays."""
    if os.path.islink(link) and os.readlink(link) != target:
        os.unlink(link)
    with suppress(FileExistsError):
        os.symlink(target, link)


def _put(path: str, text: str) -> None:
    """At once: another git may be reading it."""
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
            yield f"\t{key} = {_quote(IN_VAIN if is_driver else one.value)}\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def settings_env(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings that win over those of the repository, whatever stands in their names."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def clean_repository_env(folder: str, administration: str, tree: str) -> Mapping[str, str]:
    """The variables by which git works in a tree with a stand-in.

    `administration` is where the repository keeps the index and the HEAD of that tree.
    """
    apart = {} if administration == folder else {"GIT_COMMON_DIR": folder}
    return {"GIT_DIR": administration, "GIT_WORK_TREE": tree, **apart}
