"""The command `gnn-dist`: parse, run, and turn errors into exit codes.

0 done; 2 the input is wrong (one sentence, no traceback); 1 anything else.
"""

import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated

__all__ = ["main"]

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
# Launchers end all ranks when one ends: those with nothing to say wait for the one that has.
SPEAKER_FIRST_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: Words after the program's name; by default those of this process.
    """
    from gnn_dist.comm.detect import detect_launch
    from gnn_dist.errors import GnnDistError, InputError

    rank, speaks = 0, True
    try:
        launch = detect_launch(os.environ)
        # All ranks refuse wrong input alike; one on each host says so.
        rank, speaks = launch.rank, launch.rank == 0 or launch.local_rank == 0
        return _run(list(sys.argv[1:] if argv is None else argv), rank)
    except SystemExit as error:  # of the parser: help, or words that it does not take
        if error.code and not speaks:
            time.sleep(SPEAKER_FIRST_S)
        raise
    except InputError as error:
        if not speaks:
            time.sleep(SPEAKER_FIRST_S)
        if speaks:
            print(f"gnn-dist: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except GnnDistError as error:
        print(f"gnn-dist: rank {rank}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # whoever read what we print has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what the interpreter flushes at exit
        return EXIT_FAILED
    except KeyboardInterrupt:
        if rank == 0:
            print("gnn-dist: interrupted", file=sys.stderr)
        return EXIT_FAILED


def _run(words: list[str], rank: int) -> int:
    import tyro

    from gnn_dist.cli import commands
    from gnn_dist.cli.arguments import expand_arguments

    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format="%(message)s" if rank == 0 else f"rank {rank}: %(message)s",
        stream=sys.stderr,
    )
    words = commands.with_resumed_config(words)
    flags, dataset = expand_arguments(words, commands.option_types())
    sub = tyro.conf.subcommand
    command_type = (
        Annotated[commands.Datasets, sub("datasets")]
        | Annotated[commands.PartitionCommand, sub("partition")]
        | Annotated[commands.Generate, sub("generate")]
        | Annotated[commands.Inspect, sub("inspect")]
        | Annotated[commands.Convert, sub("convert")]
        | Annotated[commands.Train, sub("train")]
        | Annotated[commands.Evaluate, sub("evaluate")]
        | Annotated[commands.Infer, sub("infer")]
    )
    command: commands.Command = tyro.cli(
        command_type,
        prog="gnn-dist",
        description="Distributed training of graph neural networks on one large graph.",
        args=flags,
        console_outputs=rank == 0,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    environment = commands.Environment(os.environ.get("GNN_DIST_DATA"), dataset)
    code = command.run(environment)
    sys.stdout.flush()
    return code
