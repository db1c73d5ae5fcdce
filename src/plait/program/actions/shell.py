"""The `shell:` action: run shell text whose values are bound, never pasted."""

from __future__ import annotations

from plait.core.errors import ProcessError
from plait.core.hints import TYPE_CHECKING, Literal
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.budgets import timeout_or_limit
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import StepContext
from plait.engine.step import Plan
from plait.program.capture import LOST, TRUNCATED
from plait.program.ports import NO_ROOM, TIMEOUT_EXIT_CODE, Processes, ProcessResult
from plait.template.shell.script import bind_shell
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.template.shell.binding import BoundScript
    from plait.template.sinks import Values

LAST_LINES = 5
MOST_SHOWN = 2000
MOST_IN_TITLE = 120
"""The maximum length of a command as a title."""
LONG_SECONDS = 1.0
"""The resources of a process are recorded if it took at least this long."""


@dataclass(frozen=True, slots=True)
class ShellAction:
    script: Template
    shell: Literal["sh", "dash", "bash"] = "sh"
    strict: bool = False
    is_title: bool = False
    """The step has no name, so its command becomes its title."""
    values: Values | None = field(default=None, repr=False)
    """The values; None: those of the scope."""
    _constant: list[BoundScript] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    """The bound script, if it has no placeholders: a map runs it for each item."""

    def plan(self, ctx: StepContext) -> Plan:
        values = ctx.scope if self.values is None else self.values
        bound = self._constant[0] if self._constant else self.bind(values)
        ctx.run.secrets.add_derived(bound.secrets)
        return Plan("shell", bound.shown, bound)

    async def execute(self, plan: Plan, ctx: StepContext) -> dict[str, Json]:
        run, bound = ctx.run, plan.data
        if self.is_title:
            run.events.set_title(ctx.path, command_title(run.secrets.mask(plan.shown)))
        own_env = {
            "PLAIT_RUN": run.id,
            "PLAIT_ATTEMPT": str(ctx.attempt),
            "PLAIT_IDEMPOTENCY_KEY": f"{run.id}/{ctx.path}",
        }
        if run.trace is not None:
            own_env |= run.trace.environment(ctx.path, ctx.retries)
        live = run.events.open_output(ctx.path, ctx.attempt)
        try:
            ended = await run.services.get(Processes).shell(
                bound,
                shell=self.shell,
                cwd=ctx.directory,
                env=ctx.env,
                more_env=own_env,
                stdin=b"",
                timeout=run.budgets.time_left(ctx),
                stop=run.stop,
                on_output=None if live is None else live.write,
            )
        except ProcessError as error:
            if error.code != "timeout":
                raise
            raise StepError(timeout_or_limit(_too_long(error, ctx), ctx)) from None
        finally:
            if live is not None:
                live.close()
        _note_losses(ended, ctx)
        return require_exit_zero(process_result_record(ended, ctx), ended.signal)

    def is_plain_in(self, ctx: StepContext) -> bool:  # noqa: ARG002 - as of other actions
        """Return true: it waits only for a process."""
        return True

    def bind(self, values: Values) -> BoundScript:
        dialect: Literal["sh", "bash"] = "bash" if self.shell == "bash" else "sh"
        bound = bind_shell(self.script, values, strict=self.strict, dialect=dialect)
        if not self.script.leaf.compiled.placeholder_count:
            self._constant.append(bound)
        return bound


def _too_long(error: ProcessError, ctx: StepContext) -> Failure:
    """A timeout failure with the output so far, which shows where the command hung."""
    # The exit code is that of a timeout, whatever the process returned when it was stopped.
    failure = Failure(ctx.run.secrets.mask(str(error)), "timeout", exit_code=TIMEOUT_EXIT_CODE)
    if error.ended is None:
        return failure
    ended: ProcessResult = error.ended  # type: ignore[assignment]  # raised by the process adapter
    _note_losses(ended, ctx)
    return replace(
        failure, output={**process_result_record(ended, ctx), "exit_code": TIMEOUT_EXIT_CODE}
    )


def command_title(command: str) -> str:
    """The first line of a command, shortened."""
    first, _, more = command.strip().partition("\n")
    line = " ".join(first[: 2 * MOST_IN_TITLE].split())
    is_whole = len(line) <= MOST_IN_TITLE and not more
    return line if is_whole else f"{line[: MOST_IN_TITLE - 1]}…"


def process_result_record(ended: ProcessResult, ctx: StepContext) -> dict[str, Json]:
    """The result of a process as the value of a step, with secrets masked."""
    mask = ctx.run.secrets.mask
    record: dict[str, Json] = {
        "output": mask(ended.stdout.decode("utf-8", "surrogateescape")),
        "stderr": mask(ended.stderr.decode("utf-8", "surrogateescape")),
        "exit_code": ended.exit_code,
        "duration": round(ended.duration, 6),
    }
    if ended.duration >= LONG_SECONDS:
        record |= {"cpu_seconds": round(ended.cpu_time, 3), "peak_rss_kib": ended.peak_rss}
    if ended.is_truncated:
        record["truncated"] = True
        record[TRUNCATED] = _truncated_sizes(ended)
        record |= {
            name: path
            for name, path in (
                ("output_file", ended.stdout_file),
                ("stderr_file", ended.stderr_file),
            )
            if path
        }
        record |= dict(_losses(ended))
    return record


def _losses(ended: ProcessResult) -> list[tuple[str, str]]:
    """For each stream whose file is incomplete: why."""
    lost = ((LOST["output"], ended.stdout_lost), (LOST["stderr"], ended.stderr_lost))
    return [(name, why) for name, why in lost if why]


def _note_losses(ended: ProcessResult, ctx: StepContext) -> None:
    for _, why in _losses(ended):
        if why != NO_ROOM:
            ctx.run.events.note(ctx.path, f"its output is not stored completely: {why}")


def _truncated_sizes(ended: ProcessResult) -> dict[str, Json]:
    """The stored number of bytes of each truncated stream."""
    out = {"output": len(ended.stdout)} if ended.stdout_truncated else {}
    # Both streams have the same limit, so a truncated stream is at least as long as the other.
    err = {} if out and len(ended.stderr) < len(ended.stdout) else {"stderr": len(ended.stderr)}
    return {**out, **err}


def require_exit_zero(record: dict[str, Json], signal: int | None = None) -> dict[str, Json]:
    code = record["exit_code"]
    if code == 0:
        return record
    message = last_lines(str(record["stderr"])) or last_lines(str(record["output"]))
    how = f"ended by signal {signal}" if signal is not None else f"exit code {code}"
    raise StepError(
        Failure(
            f"{how}: {message}" if message else how,
            "signal" if signal is not None else "exit",
            exit_code=code if isinstance(code, int) else None,
            output=record,
        )
    )


def last_lines(text: str) -> str:
    lines = text[-MOST_SHOWN:].strip().splitlines()
    return "\n".join(lines[-LAST_LINES:])
