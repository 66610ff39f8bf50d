"""The `twinpool` command: which subcommands there are, and how their errors end the process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError

from twinpool.cli.exits import Exit, complain, complain_of
from twinpool.cli.signals import interrupting
from twinpool.cli.standard_streams import open_missing_streams
from twinpool.config import ConfigError
from twinpool.errors import TwinpoolError

_COMMANDS = {
    "serve": "serve_command:serve",
    "pull": "models:pull",
    "estimate": "models:estimate",
    "generate": "prompts:generate",
    "chat": "prompts:chat",
    "status": "operations:status",
    "top": "top:top",
    "doctor": "operations:doctor",
    "scale": "pools:scale",
    "drain": "pools:drain",
    "restart": "pools:restart",
}
_SUMMARIES = {
    "serve": "Serve a model on this machine or on a Ray cluster.",
    "pull": "Fetch a model and prepare it for serving.",
    "estimate": "Tell how much memory a model's weights and cache take.",
    "generate": "Continue a prompt, streaming the text as it comes.",
    "chat": "Answer one message through the model's chat template.",
    "status": "Show workers, queue and cache of a running server.",
    "top": "Show a running server's load, live in a terminal.",
    "doctor": "Drive a canary through every prefill-decode pair.",
    "scale": "Change how many workers the pools have.",
    "drain": "Have one worker finish or hand over what it has, and leave.",
    "restart": "Drain, end and start anew one worker, or a pool's one by one.",
}

_MEASUREMENTS = {
    "bench:engine": "Measure an engine alone, in tokens a second.",
    "bench:accuracy": "Compare formats of weights with float32.",
    "bench_serve:serve": "Send load to a running server, and measure what its clients see.",
}

_DASH_HINT = (
    'Text that begins with a dash goes after `--`, or after `=`: generate -- "- milk", --system="- be brief".'
)


def build_app() -> App:
    """The commands, each loaded only when it is used: the command line must start at once."""
    app = App(
        name="twinpool",
        help="Serve large language models with prefill and decode on separate pools of workers.",
        version=lambda: version("twinpool"),
        result_action="return_value",
        print_error=False,
        suppress_keyboard_interrupt=False,
        exit_on_error=False,
    )
    for name, path in _COMMANDS.items():
        app.command(f"twinpool.cli.{path}", name=name, help=_SUMMARIES[name])
    bench = App(name="bench", help="Measure: an engine's speed and accuracy here, a server under load.")
    for path, summary in _MEASUREMENTS.items():
        bench.command(f"twinpool.cli.{path}", name=path.partition(":")[2], help=summary)
    app.command(bench)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; see `twinpool.cli.exits`."""
    open_missing_streams()
    _substitute_what_cannot_be_written()
    try:
        with interrupting():
            return int(build_app()(argv) or Exit.DONE)
    except (UnknownOptionError, MissingArgumentError) as error:
        return complain(f"{error} {_DASH_HINT}", Exit.USAGE)
    except CycloptsError as error:
        return complain(error, Exit.USAGE)
    except ConfigError as error:
        return complain(error, Exit.USAGE)
    except TwinpoolError as error:
        return complain_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; let that one fail in silence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.UNREAD


def _substitute_what_cannot_be_written() -> None:
    """An answer is shown as far as the terminal's or pipe's encoding can, rather than lost."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
