"""The command line: `guided-plugin`. One command a file; this one holds the errors and exit codes.

Exit codes: 0 it worked; 1 it ran, and the answer is no; 2 it can't run with what it was given.
"""

from __future__ import annotations

import sys

import typer

from guided_plugin.cli import bench, check, demo, generate, maskbench, trace
from guided_plugin.cli.loading import InputError
from guided_plugin.errors import GrammarError, GuidedError, RequestError

__all__ = ["app", "main"]

app = typer.Typer(
    name="guided-plugin",
    help="Structured output that costs nothing: try it, check specs, measure it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo", short_help="Three prompts, unguided and guided, with the demo model.")(demo.demo)
app.command("generate", short_help="Guided text from a local model.")(generate.generate)
app.command("check", short_help="Does a spec compile, and which texts does it take?")(check.check)
app.command("maskbench", short_help="How much of a sample of schemas is right, and how fast.")(
    maskbench.maskbench
)
app.command("trace", short_help="A timeline of some decode steps, to look at.")(trace.trace)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """The console script."""
    try:
        app(prog_name="guided-plugin")
    except InputError as error:
        _stop(error, 2)
    except (GrammarError, RequestError) as error:
        _stop(error, 1)
    except GuidedError as error:
        _stop(error, 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _stop(error: Exception, code: int) -> None:
    sys.stderr.write("error: " + " ".join(str(error).split()) + "\n")
    sys.exit(code)
