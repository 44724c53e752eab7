"""The options of tables: the order and the number of rows, the digits of values, and CSV.

They belong to the text of a result, and the document of ``--json`` is the same with and without
them.
"""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli.commands import combine, flag, option
from hookscope.cli.console import Console
from hookscope.errors import RequestError

SECTION = "Table"
MAX_DIGITS = 17  # of a float64


def _present(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if not ctx.resilient_parsing:
        setattr(ctx.ensure_object(Console), param.name or "", value)


def _present_sort(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Check the column before the model runs; which columns a file's table has, the file says."""
    if value is not None and not ctx.resilient_parsing:
        from hookscope.views.display import result_columns
        from hookscope.views.text.table import find_column

        if columns := result_columns(ctx.info_name or ""):
            try:
                find_column(columns, value)
            except RequestError as error:
                raise click.BadParameter(str(error), ctx, param) from error
    _present(ctx, param, value)


csv_option = flag(
    "csv",
    section=SECTION,
    expose_value=False,
    callback=_present,
    help="Print the table as CSV, with all columns.",
)

row_options = combine(
    option(
        "--sort",
        section=SECTION,
        metavar="COLUMN",
        expose_value=False,
        callback=_present_sort,
        help="Sort rows: numbers from the largest, text from A to Z; -COLUMN reverses.",
    ),
    option(
        "--top",
        section=SECTION,
        type=click.IntRange(min=1),
        metavar="N",
        expose_value=False,
        callback=_present,
        help="Print only the first N rows.",
    ),
    csv_option,
)

_precision_option = option(
    "--precision",
    section=SECTION,
    type=click.IntRange(min=1, max=MAX_DIGITS),
    metavar="N",
    expose_value=False,
    callback=_present,
    help="Significant digits of values. Default: 6 in a pipe, 9 as CSV, 4 on a terminal.",
)

table_options = combine(row_options, _precision_option)
