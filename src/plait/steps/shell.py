"""A step that runs shell text; its values are bound, never pasted."""

from __future__ import annotations

from plait.engine.outcome import Failure, StepError
from plait.engine.perform import Turn
from plait.hints import Literal
from plait.records import dataclass
from plait.steps.capture import CUT
from plait.steps.hands import Ended, working
from plait.template.sinks import as_shell
from plait.template.template import Template
from plait.values import Json

LAST_LINES = 5
MOST_SAID = 2000


@dataclass(frozen=True, slots=True)
class Shell:
    """The action of a `shell:` step."""

    script: Template
    shell: Literal["sh", "dash", "bash"] = "sh"
    strict: bool = False

    def run(self, turn: Turn) -> dict[str, Json]:
        run = working(turn.run)
        dialect: Literal["sh", "bash"] = "bash" if self.shell == "bash" else "sh"
        bound = as_shell(self.script, turn.scope, strict=self.strict, dialect=dialect)
        if run.rehearsal is not None:
            run.rehearse(turn, "shell", bound.shown)
            return {}
        ended = run.hands.shell(
            bound,
            shell=self.shell,
            cwd=turn.directory,
            env={
                **turn.env,
                "PLAIT_RUN": run.id,
                "PLAIT_ATTEMPT": str(turn.attempt),
                "PLAIT_IDEMPOTENCY_KEY": f"{run.id}/{turn.path}",
            },
            stdin=b"",
            timeout=turn.time_left(),
            stop=run.stop,
        )
        return expect_success(ended_record(ended, turn), ended.signal)


def ended_record(ended: Ended, turn: Turn) -> dict[str, Json]:
    """How a process ended, as a step gives it; secrets are masked before anybody sees it."""
    mask = turn.run.mask
    record: dict[str, Json] = {
        "output": mask(ended.stdout.decode("utf-8", "surrogateescape")),
        "stderr": mask(ended.stderr.decode("utf-8", "surrogateescape")),
        "exit_code": ended.exit_code,
        "duration": round(ended.duration, 6),
    }
    if ended.truncated:
        record["truncated"] = True
        record[CUT] = _cut(ended)
        record |= {
            name: path
            for name, path in (("output_file", ended.stdout_file), ("stderr_file", ended.stderr_file))
            if path
        }
    return record


def _cut(ended: Ended) -> dict[str, Json]:
    """How many bytes are there of each stream that had more."""
    out = {"output": len(ended.stdout)} if ended.stdout_truncated else {}
    # Both have the same limit, so a stream that was cut is as long as any.
    err = {} if out and len(ended.stderr) < len(ended.stdout) else {"stderr": len(ended.stderr)}
    return {**out, **err}


def expect_success(record: dict[str, Json], signal: int | None = None) -> dict[str, Json]:
    code = record["exit_code"]
    if code == 0:
        return record
    said = last_lines(str(record["stderr"])) or last_lines(str(record["output"]))
    how = f"ended by signal {signal}" if signal is not None else f"exit code {code}"
    raise StepError(
        Failure(
            f"{how}: {said}" if said else how,
            "signal" if signal is not None else "exit",
            exit_code=code if isinstance(code, int) else None,
            output=record,
        )
    )


def last_lines(text: str) -> str:
    lines = text[-MOST_SAID:].strip().splitlines()
    return "\n".join(lines[-LAST_LINES:])
