"""Shows the whole system on one machine: ``headgate demo``."""

from __future__ import annotations

import click


@click.command(
    "demo",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the whole system here and watch it survive a kill."""
    from headgate.operations.demo.demo import main

    ctx.exit(main(list(arguments)) or 0)
