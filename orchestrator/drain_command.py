"""The `drain` command: notice that a node is about to leave, as a termination hook of the cloud gives it."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from orchestrator.arguments import NOTHING_RAN, SOME_FAILED, USAGE
from orchestrator.config import UsageError
from orchestrator.render import printable


def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="id, address or host name of the node, as Ray has it")],
    seconds: Annotated[float, typer.Option(help="until the node goes")] = 120.0,
) -> None:
    """Tell the orchestrators on the cluster that a node goes: its engines finish what they can and leave."""
    from orchestrator.cluster import NoClusterError, tell_leaving

    try:
        with contextlib.redirect_stdout(sys.stderr):
            told = tell_leaving(node, seconds)
    except UsageError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except NoClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(NOTHING_RAN) from None
    for name, answered in told.items():
        print(f"{name}: {'told' if answered else 'does not answer'}")
    if not told:
        print("no orchestrator runs on this cluster")
    elif not all(told.values()):
        raise typer.Exit(SOME_FAILED if any(told.values()) else NOTHING_RAN)
