"""requests.parquet: one row per request, its events as lists, for pandas, DuckDB and friends."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.table import NUMBERS, OUTCOME_CODE, OUTCOMES, RecordTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.runfolder.writer import RunFolder

LISTS: Final = ("at_ns", "not_before_ns", "tokens")


def write_parquet(
    folder: RunFolder, name: str, table: RecordTable, errors: Sequence[str] = ()
) -> None:
    """Write the table as `name` in the folder; `errors` has a text for each row, or none at all.

    Columns: the record's numbers (int64), outcome and error (string), at_ns, not_before_ns and
    tokens (list<int64>). Raises RunFolderError when it cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - 0.2 s, and only needed here
    import pyarrow.parquet as pq  # noqa: PLC0415

    offsets = pa.array(table.offsets.astype(np.int32), pa.int32())
    columns = {name: pa.array(getattr(table, name)) for name in NUMBERS}
    words = pa.array([outcome.value for outcome in OUTCOMES])
    columns["outcome"] = pa.DictionaryArray.from_arrays(
        pa.array(table.outcome.astype(np.int8)), words
    )
    columns["error"] = pa.array(list(errors) or [""] * len(table), pa.string())
    for column in LISTS:
        columns[column] = pa.ListArray.from_arrays(offsets, pa.array(getattr(table, column)))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    folder.write(name, sink.getvalue().to_pybytes())


def read_parquet(path: Path | str) -> RecordTable:
    """The table that `write_parquet` wrote."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415

    data = pq.read_table(Path(path)).combine_chunks()

    def ints(column: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(data[column].to_numpy(), np.int64)

    lengths = np.array(pc.list_value_length(data["at_ns"]).to_numpy(), np.int64)
    flat = {
        column: np.array(pc.list_flatten(data[column]).to_numpy(), np.int64) for column in LISTS
    }
    outcomes = [OUTCOME_CODE[word] for word in data["outcome"].to_pylist()]
    names = {f.name for f in fields(RecordTable)} & set(NUMBERS)
    return RecordTable(
        **{column: ints(column) for column in names},
        outcome=np.array(outcomes, np.int64),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        **flat,
    )
