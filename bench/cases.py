"""The texts and values that are rendered: a command, a prompt, a tree."""

# ruff: noqa: E501 - the lines of the prompt are as long as they are

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dialects import PLACEHOLDER, Tree, strings


@dataclass(frozen=True)
class Case:
    key: str
    title: str
    tree: Tree
    values: dict[str, Any]
    profile: str = "workflow"

    @property
    def has_default(self) -> bool:
        return any(
            found[2] is not None
            for text in strings(self.tree)
            for found in PLACEHOLDER.finditer(text)
        )

    @property
    def nested(self) -> bool:
        """Whether its placeholders name paths, and not only names."""
        return any(
            "." in found[1] for text in strings(self.tree) for found in PLACEHOLDER.finditer(text)
        )


def cases() -> list[Case]:
    """The first three differ in the value at the placeholder with a default."""
    return [
        Case("T1 int", "a command, default not used (integer)", COMMAND, _item({"priority": 7})),
        Case("T1 text", "a command, default not used (text)", COMMAND, _item({"priority": "high"})),
        Case("T1 missing", "a command, default used", COMMAND, _item({})),
        Case("T2 prompt", "a 4 KB prompt, 30 variables, `{name}`", PROMPT, PROMPT_VALUES, "prompt"),
        Case("T2 workflow", "the same prompt, `${name}`", PROMPT, PROMPT_VALUES),
        Case("T3", "a tree of 40 strings with 60 placeholders", TREE, TREE_VALUES),
    ]


# ── T1 ───────────────────────────────────────────────────────────────────

COMMAND = "<<item.path>> --priority <<item.metadata.priority:5>>"


def _item(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"item": {"path": "src/plait/template/grammar.py", "metadata": metadata}}


# ── T2 ───────────────────────────────────────────────────────────────────

PROMPT_VALUES: dict[str, Any] = {
    "role": "release engineer", "team": "platform", "product": "the billing service", "language": "Python",
    "goal": "find what could break in production", "branch": "release-4.2", "base": "main", "author": "R. Okafor",
    "reviewer": "M. Lindqvist", "ticket": "BILL-2291", "files": 14, "added": 512, "removed": 187,
    "summary": "Moves the retry loop of the invoice writer into the queue and drops the nightly repair job.",
    "owner": "payments", "service": "invoice-writer", "database": "PostgreSQL 16", "queue": "NATS",
    "region": "eu-north-1", "deadline": "Thursday, 17:00", "audience": "the engineer on call",
    "tone": "plain and short", "format": "Markdown", "first_section": "Risks", "second_section": "Questions",
    "third_section": "Checks before the release", "example": "orders whose invoice was already sent",
    "incident": "the double charge of March", "dashboard": "billing/latency", "contact": "#billing-oncall",
}  # fmt: skip

PROMPT = """\
You are a <<role>> of the <<team>> team, and you know <<product>> well. Your task today is to <<goal>>.

The change under review is on the branch <<branch>>, to be merged into <<base>>. It was written by <<author>> and
will be read by <<reviewer>> after you. The ticket is <<ticket>>. The change touches <<files>> files; it adds <<added>>
lines and removes <<removed>>. It is written in <<language>>. Its author describes it so:

    <<summary>>

Read the whole change before you write anything. A reviewer who comments line by line while reading for the first
time finds the small things and misses the large one. Ask yourself what the code did before, what it does now, and
who relies on the difference. Look for callers that are not part of the change. Look for state that outlives a
request: caches, files, rows, messages that were sent and cannot be taken back. Look for two things that used to
happen together and now may happen one without the other. Be suspicious of a retry around something that is not
idempotent, of a timeout that is longer than that of the caller, and of a default that was right for the old code.

What you need to know about the place where it runs. The service <<service>> is owned by <<owner>>. It keeps its data
in <<database>> and talks to the others through <<queue>>, in the region <<region>>. Requests come in bursts at the end
of each month; the load of an ordinary day says little about them. Two versions run side by side for about half an
hour whenever a release goes out, so a new version must read what an old one wrote and an old one must survive what a
new one writes. A migration that takes a lock on a large table is not acceptable during the day. Feature switches
exist, and a risky change without one is a finding of its own. The last serious failure was <<incident>>; it came from
a repeated message whose effect had already been recorded elsewhere. Think of <<example>> in particular, and say in
one sentence what happens to them under the new code.

How to write. Your reader is <<audience>>, who has ten minutes and was not part of the discussion. The tone is <<tone>>.
Write <<format>> with exactly three sections: "<<first_section>>", "<<second_section>>" and "<<third_section>>". In the
first, put at most five findings, the worst first; each names the file and line, says what can go wrong and under which
circumstances, and proposes the smallest change that prevents it. Do not list matters of taste. In the second, ask only
what you could not find out by reading, and say why the answer matters. In the third, name the commands to run and what
they should print; refer to the dashboard <<dashboard>> where a number has to be watched after the release, and say which
number, for how long, and at which value somebody has to act.

A word on tests. A test that was changed together with the code it checks proves little; say which tests were changed,
and whether the old ones would still pass. Where a behaviour is new, name the one test that would fail if somebody took
the change out again, or say that there is none. Where time, order or randomness decide, ask how the test holds them
still. A test that sleeps is a finding. A test that was removed without a reason is a finding too, and so is a check that
was made weaker to let the change pass: a wider tolerance, a shorter list, a caught exception, a skipped platform.

If you find nothing that deserves the first section, say so in one sentence and do not invent something to fill it. If
the change is too large to be reviewed in one piece, say where you would cut it, and review the first piece only. When
two readings of the code are possible, describe both and say which one you followed. Never claim to have run anything
that you have not run. Keep to what the text in front of you shows; an honest gap is worth more than a confident guess.

Your answer is expected by <<deadline>>. Questions that cannot wait go to <<contact>>. Thank you.
"""

# ── T3 ───────────────────────────────────────────────────────────────────

SERVICES = (
    "orders",
    "stock",
    "prices",
    "search",
    "mail",
    "login",
    "images",
    "audit",
    "export",
    "import_",
)

TREE: Tree = {
    "services": [
        {
            "name": f"<<service.{name}>>",
            "run": {
                "command": [f"--listen=<<host.{name}>>:<<port.{name}>>"],
                "directory": f"<<project.root>>/<<path.{name}>>",
            },
            "note": f"started by <<owner.{name}>>",
        }
        for name in SERVICES
    ],
}
"""Ten services of four strings with six placeholders."""

TREE_VALUES: dict[str, Any] = {
    "project": {"root": "/srv/shop"},
    "service": {name: f"shop-{name}" for name in SERVICES},
    "host": {name: f"{name}.internal" for name in SERVICES},
    "port": {name: 8000 + at for at, name in enumerate(SERVICES)},
    "path": {name: f"services/{name}" for name in SERVICES},
    "owner": {name: f"team-{name}" for name in SERVICES},
}
