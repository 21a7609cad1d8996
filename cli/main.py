"""The command `hyperpod-rl`: finds the command, runs it, and turns whatever went wrong into sentences and an exit code.

Only click is imported here. A command's own module is imported when it runs, and what it needs (pydantic, boto3, ray) only
inside the function that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import sys

# What a shell reports for a process that SIGINT or SIGPIPE ended: 128 + the signal.
INTERRUPTED, PIPE_CLOSED = 130, 141

try:  # Ctrl-C while these are imported (the console script imports this module first) is no reason for a traceback
    import contextlib
    import errno
    import importlib
    import os
    import signal
    import time
    from collections.abc import Sequence
    from typing import Any, Final, NoReturn, TextIO

    import click

    from config.problems import Failed, Problem, Refused, Unreachable, without_password
except KeyboardInterrupt:
    sys.exit(INTERRUPTED)

DONE, FAILED, REFUSED, UNREACHABLE = 0, 1, 2, 3
# After a Ctrl-C a command ends what it started (a port-forward, a live view), which further ones would interrupt in turn, and Python
# would say so in lines of its own. What has not ended after so many seconds is left.
TIDYING_SECONDS: Final = 10.0

# command -> (module:object, one line). The line is the first of the command's own help (a test compares them).
COMMANDS: dict[str, tuple[str, str]] = {
    "image": ("cli.image:image", "The training image: build it, and see which one there is."),
    "cluster": ("cli.cluster:cluster", "The Ray cluster that training runs on."),
    "preflight": ("cli.preflight:preflight", "Check a run before anything is paid for."),
    "submit": ("cli.submit:submit", "Start a run, or attach to it while it runs."),
    "follow": ("cli.runs:follow", "Show a run live: step, solve rate, reward, step time, attempt."),
    "supervise": ("cli.supervise:supervise", "Watch over a run, and start its next attempt after a fault."),
    "status": ("cli.runs:status", "Say how a run stands, or the cluster and all runs."),
    "logs": ("cli.runs:logs", "Print the log of a run's newest attempt."),
    "stop": ("cli.runs:stop", "Stop a run's running attempt and wait until it has ended."),
    "list": ("cli.runs:list_runs", "List the runs that the Ray cluster knows."),
    "report": ("cli.report:report", "Write one HTML page about one run, or comparing several."),
    "reproduce": ("cli.report:reproduce", "Print the commands that submit the same thing as another run."),
    "evaluate": ("cli.evaluate:evaluate", "Play the evaluation mazes against any OpenAI-compatible endpoint with images."),
    "gate": ("cli.gate:gate", "Say whether an export may be released: baseline, candidate and current release on the same mazes."),
    "promote": ("cli.releases:promote", "Publish an export that passed the gate as a release, under a name that never changes."),
    "releases": ("cli.releases:list_releases", "List the releases, the newest first, with the aliases that name them."),
    "alias": ("cli.releases:alias", "Show an alias (`current`, `canary`) with its history, or let it name another release."),
    "rollback": ("cli.releases:rollback", "Let `current` name the release before, from the next request on."),
    "retire": ("cli.releases:retire", "Remove a release that no alias names."),
    "serve": ("cli.serve:serve", "The endpoint: OpenAI's chat API, with the base model and every release."),
    "verify": ("cli.verify:verify", "Prove that the endpoint answers with the release: listed, applied, as good as the gate saw it."),
    "chat": ("cli.verify:chat", "Play one maze through the endpoint and show the pictures and moves."),
    "doctor": ("cli.doctor:doctor", "Look at everything that a deployment needs, and change nothing."),
    "review": ("cli.review:review", "Show what a change does to an environment, before it is deployed."),
    "cost": ("cli.cost:cost", "Say what an environment costs by the hour, the day and the run."),
    "leaks": ("cli.leaks:leaks", "List what this environment left in the account, and what removes it."),
    "local": ("cli.local:local", "The local cloud: this machine stands in for AWS, EKS and the GPU trainer."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one by one, when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a suggestion for a misspelt command."""
        if args and args[0] not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(
                f"there is no command `{args[0]}`; " + (f"did you mean `{close[0]}`?" if close else "see hyperpod-rl --help")
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="""\b
Example:
  hyperpod-rl --env reference submit --run-id maze-grpo-1
  hyperpod-rl --env reference follow maze-grpo-1

\b
Exit codes: 0 done; 1 the job failed or the gate said no; 2 the input was refused, nothing was changed; 3 something could not be reached;
130 Ctrl-C (a running job goes on).""",
)
@click.option("--env", "environment", metavar="NAME|FILE", envvar="HYPERPOD_RL_ENV", default="reference", show_default=True,
              help="Environment: a name below environments/, or a YAML file. Also $HYPERPOD_RL_ENV.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, also for errors.")
@click.pass_context
def cli(context: click.Context, environment: str, as_json: bool) -> None:
    """Multimodal RL post-training on Amazon SageMaker HyperPod: the launcher."""
    from cli.session import Session

    context.obj = Session(environment_name=environment, json=as_json)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises, never prints a traceback."""
    # pydantic would look through every installed distribution for plugins, which none of ours is.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    as_json = "--json" in arguments
    try:
        code = cli.main(args=list(arguments), prog_name="hyperpod-rl", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except Refused as error:
        return _report(REFUSED, error.problems, as_json)
    except click.exceptions.Abort:
        return _interrupted(as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        if as_json:
            return _report(REFUSED, [Problem("command line", "", "a command is needed", f"see {_path(error)} --help")], as_json)
        _say(error.format_message() + "\n")  # the help, and click's own exit code for that
        return REFUSED
    except click.UsageError as error:
        return _report(REFUSED, [_usage_problem(error)], as_json)
    except click.ClickException as error:
        return _report(REFUSED, [Problem("command line", "", _clause(error.format_message()))], as_json)
    except KeyboardInterrupt:
        return _interrupted(as_json)
    except Unreachable as error:
        return _report(UNREACHABLE, [Problem("", "", _clause(str(error)))], as_json)
    except Failed as error:
        return _report(FAILED, [Problem("", "", _clause(str(error)))], as_json)
    except (BrokenPipeError, SystemExit):  # click makes SystemExit of a closed pipe
        return _pipe_closed(sys.stdout)
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _pipe_closed(sys.stdout)
        return _report(UNREACHABLE, [_system_problem(error)], as_json)
    except Exception as error:
        if os.environ.get("HYPERPOD_RL_DEBUG"):
            raise
        rule = f"this is a defect of hyperpod-rl ({type(error).__name__}: {_one_line(str(error))})"
        return _report(FAILED, [Problem("", "", rule, "HYPERPOD_RL_DEBUG=1 shows where")], as_json)


def main() -> NoReturn:
    """Entry point of the console script."""
    since: list[float] = []
    try:
        _one_interrupt(since)
        _open_streams()
        code = run(sys.argv[1:])
        since.append(time.monotonic())  # all is said: a Ctrl-C while Python itself ends changes nothing
    except KeyboardInterrupt:  # between two commands of `run`
        code = INTERRUPTED
    sys.exit(code)


def _one_interrupt(since: list[float]) -> None:
    """Let only the first Ctrl-C be one: `since` holds when it came. Where Ctrl-C is ignored (`nohup`, a shell's `&`) it stays so."""

    def interrupted(*_: object) -> None:
        if not since:
            since.append(time.monotonic())
            raise KeyboardInterrupt
        if time.monotonic() - since[0] > TIDYING_SECONDS:
            os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)


def _open_streams() -> None:
    """Give a closed standard stream (`>&-`) the null device, and let every character be written in any encoding."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # Otherwise the next file that is opened gets this number, and whoever writes to "standard output" writes into it.
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif descriptor > 0 and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _report(code: int, problems: Sequence[Problem], as_json: bool) -> int:
    from cli.session import json_text

    try:
        if as_json:
            document = {"problems": [_document(problem) for problem in problems], "exit_code": code}
            # On one line, so that it is also a last event of what `follow --json` has written before.
            sys.stdout.write(json_text(document) + "\n")
        sys.stdout.flush()
    except OSError as error:
        _pipe_closed(sys.stdout)
        if as_json and error.errno == errno.EPIPE:
            return PIPE_CLOSED
        if as_json:  # a full disk: say it where it can still be read
            code, problems, as_json = UNREACHABLE, [*problems, _system_problem(error)], False
    if not as_json:
        _say("".join(f"hyperpod-rl: {sentence}\n" for sentence in map(str, problems)))
    return code


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _pipe_closed(sys.stderr)


def _document(problem: Problem) -> dict[str, Any]:
    parts = {"field": problem.field, "value": problem.value, "rule": problem.rule, "fix": problem.fix}
    return {**{name: without_password(text) for name, text in parts.items()}, "message": str(problem)}


def _usage_problem(error: click.UsageError) -> Problem:
    hint = f"see {_path(error)} --help"
    return Problem("command line", "", _clause(error.format_message()), "" if hint in error.format_message() else hint)


def _path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx is not None else "hyperpod-rl"


def _system_problem(error: OSError) -> Problem:
    place = str(error.filename or "")
    what = _clause(error.strerror or str(error) or type(error).__name__).lower()
    if error.errno == errno.ENOSPC:
        return Problem(place or "disk", "", "no space is left on this device", "free some and run the command again")
    return Problem(place, "", what, "") if place else Problem("", "", f"the system refused: {what}")


def _interrupted(as_json: bool) -> int:
    return _report(
        INTERRUPTED, [Problem("", "", "interrupted; whatever runs on the cluster goes on", "hyperpod-rl status shows it")], as_json
    )


def _pipe_closed(stream: TextIO) -> int:
    # Python flushes the standard streams once more at exit and would complain there.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return PIPE_CLOSED


def _clause(text: str) -> str:
    return text.strip().rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


if __name__ == "__main__":
    main()
