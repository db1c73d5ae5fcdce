"""Tell somebody what a run came to: a web hook, a chat, a desktop, a mail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Any, NoReturn

__executor_id__ = "core/runtimes/python/script"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core"
__tool_description__ = (
    "Send a message about a run, from a hook: to a web hook (http), a chat that understands Slack's "
    "(slack), the desktop, or by mail. PLAIT_NOTIFY_URL holds the address for http and slack; it is "
    "never printed."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["to"],
    "properties": {
        "to": {
            "enum": ["http", "slack", "desktop", "mail"],
            "description": "How: POST of the facts as JSON, Slack's JSON, notify-send, sendmail",
        },
        "address": {
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9][A-Za-z0-9.-]*$",
            "description": "Of mail: who gets it",
        },
        "text": {"type": "string", "description": "The message; otherwise made of the facts"},
        "event": {"type": "string", "description": "The event of the hook: ${event}"},
        "run": {"type": ["object", "null"], "description": "The run: ${run}"},
        "error": {"type": ["object", "null"], "description": "Why it failed: ${error}"},
        "data": {"description": "Of http: more facts, as they are"},
    },
}
CONFIG = {"timeout": 30}
ENV_CONFIG = {
    "passes": [
        "PLAIT_NOTIFY_URL",
        "HTTPS_PROXY",
        "NO_PROXY",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
    ],
}
URL = "PLAIT_NOTIFY_URL"
SECONDS = 10
"""How long a server may take to answer."""
MOST_TEXT = 4000
"""Characters of a message; a chat refuses long ones."""
ENDS = {"run_failed": "failed", "run_finished": "is done", "run_started": "has started"}
PROGRAMS = {"desktop": ("notify-send",), "mail": ("sendmail", "mail")}


def main(params: dict[str, Any]) -> None:
    # A local program takes neither NUL nor half a character.
    text = (params.get("text") or message(params)).replace("\0", "�")
    text = text.encode("utf-8", "replace").decode()
    text = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
    match params["to"]:
        case "http":
            facts: dict[str, Any] = {
                name: params[name] for name in ("event", "run", "error", "data") if name in params
            }
            post({"text": text, **facts})
        case "slack":
            post({"text": for_slack(text)})
        case "desktop":
            run(["--app-name=plait", "--", title(params), text], "desktop")
        case "mail":
            mail(params, text)
    print(json.dumps({"success": True, "data": {"to": params["to"], "text": text}}))


def message(params: dict[str, Any]) -> str:
    """One sentence of the facts: `nightly failed: exit code 2 (run 7f3a)`."""
    run, error = params.get("run") or {}, params.get("error") or {}
    end = ENDS.get(params.get("event", ""), "failed" if error else params.get("event", "is done"))
    why = f": {error['message']}" if error.get("message") else ""
    number = f" (run {run['id']})" if run.get("id") else ""
    return f"{title(params)} {end}{why}{number}"


def title(params: dict[str, Any]) -> str:
    return str((params.get("run") or {}).get("flow") or "a flow")


def for_slack(text: str) -> str:
    """Slack reads these three signs as markup: links, and mentions of everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ── web hooks ────────────────────────────────────────────────────────────


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The facts go to the address that was configured, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(body: dict[str, Any]) -> None:
    address = os.environ.get(URL, "")
    if not address:
        refuse(f"{URL} is not set: put the address of the web hook there")
    if not address.startswith(("https://", "http://")):
        refuse(f"{URL} must start with https:// or http://")
    try:
        request = urllib.request.Request(
            address,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "User-Agent": "plait-notify/1"},
            method="POST",
        )
        with urllib.request.build_opener(NoRedirect).open(request, timeout=SECONDS) as answer:
            answer.read(1000)
    # No text of these errors is shown: it may hold the address.
    except urllib.error.HTTPError as error:
        refuse(f"the server behind {URL} answered with status {error.code}")
    except TimeoutError:
        refuse(f"the server behind {URL} did not answer within {SECONDS} s")
    except urllib.error.URLError as error:
        why = error.reason
        if isinstance(why, TimeoutError):
            refuse(f"the server behind {URL} did not answer within {SECONDS} s")
        known = why.strerror if isinstance(why, OSError) and why.strerror else type(why).__name__
        refuse(f"the server behind {URL} cannot be reached: {known}")
    except Exception as error:
        refuse(f"the address in {URL} cannot be used ({type(error).__name__})")


# ── local programs ───────────────────────────────────────────────────────


def mail(params: dict[str, Any], text: str) -> None:
    address = params.get("address")
    if not address:
        refuse("a mail needs an address: write address: ops@example.org beside to: mail")
    letter = EmailMessage()
    letter["To"] = address
    letter["Subject"] = " ".join(text.split())[:100]
    letter.set_content(text)
    if os.path.basename(program("mail")) == "sendmail":
        run(["-i", "--", address], "mail", letter.as_bytes())
    else:
        run(["-s", str(letter["Subject"]), "--", address], "mail", without_commands(text).encode())


def without_commands(text: str) -> str:
    """A line that begins with ~ is a command for some programs named `mail`: `~!` runs another one."""
    return "\n".join(f" {line}" if line[:1] == "~" else line for line in text.splitlines())


def program(how: str) -> str:
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/lib"))
    found = [place for name in PROGRAMS[how] if (place := shutil.which(name, path=places))]
    if not found:
        names = " or ".join(PROGRAMS[how])
        refuse(f"there is no program {names} on this machine: install it, or choose another 'to'")
    return found[0]


def run(arguments: list[str], how: str, stdin: bytes = b"") -> None:
    found = program(how)
    try:
        ended = subprocess.run(
            [found, *arguments], input=stdin, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        refuse(f"{os.path.basename(found)} did not end within {SECONDS} s")
    except OSError as error:
        refuse(f"{os.path.basename(found)} cannot be started: {error.strerror}")
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        why = f": {lines[-1][:200]}" if lines else ""
        refuse(f"{os.path.basename(found)} ended with exit code {ended.returncode}{why}")


def refuse(why: str) -> NoReturn:
    print(json.dumps({"success": False, "error": f"the message was not sent: {why}"}))
    sys.exit(1)


if __name__ == "__main__":
    main(json.load(sys.stdin))
