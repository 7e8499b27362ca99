"""requests.parquet: one row per request, its events as lists, for pandas, DuckDB and friends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.records import ARRAYS
from harness.measure.table import NUMBERS, OUTCOME_CODE, OUTCOMES, RecordTable, concat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from harness.runfolder.columns import Piece
    from harness.runfolder.writer import RunFolder

GROUP: Final = 1 << 17  # events of a row group, about: three megabytes
# instants hardly ever repeat: looking for repetitions takes twice the time and saves nothing
WORDS: Final = [*NUMBERS, "outcome", "error", "tokens.list.element"]


def write_parquet(folder: RunFolder, name: str, pieces: Iterable[Piece]) -> None:
    """Write all pieces as `name` in the folder, requests in their order.

    Columns: the record's numbers (int64), outcome and error (string), at_ns, not_before_ns and
    tokens (list<int64>). Raises RunFolderError when it cannot be written.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - 0.2 s, and only needed here

    empty = _arrow([(RecordTable.from_records([]), [])])
    with (
        folder.replacing(name) as file,
        pq.ParquetWriter(file, empty.schema, compression="zstd", use_dictionary=WORDS) as writer,
    ):
        some: list[Piece] = []
        for piece in pieces:
            some.append(piece)
            if sum(len(table.at_ns) for table, _ in some) >= GROUP:
                writer.write_table(_arrow(some))
                some = []
        writer.write_table(_arrow(some) if some else empty)


def _arrow(pieces: Sequence[Piece]) -> pa.Table:
    """One row group."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    table = concat([table for table, _ in pieces])
    offsets = pa.array(table.offsets.astype(np.int32), pa.int32())
    columns = {name: pa.array(getattr(table, name)) for name in NUMBERS}
    words = pa.array([outcome.value for outcome in OUTCOMES])
    columns["outcome"] = pa.DictionaryArray.from_arrays(
        pa.array(table.outcome.astype(np.int8)), words
    )
    columns["error"] = pa.array([error for _, said in pieces for error in said], pa.string())
    for column in ARRAYS:
        columns[column] = pa.ListArray.from_arrays(offsets, pa.array(getattr(table, column)))
    return pa.table(columns)


def read_parquet(path: Path | str) -> RecordTable:
    """The table that `write_parquet` wrote."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 0.2 s, and only needed here
    import pyarrow.parquet as pq  # noqa: PLC0415

    data = pq.read_table(Path(path)).combine_chunks()

    def ints(column: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if column not in data.column_names:  # of an older version
            return np.full(len(data), -1, np.int64)
        return np.array(data[column].to_numpy(), np.int64)

    lengths = np.array(pc.list_value_length(data["at_ns"]).to_numpy(), np.int64)
    flat = {
        column: np.array(pc.list_flatten(data[column]).to_numpy(), np.int64) for column in ARRAYS
    }
    outcomes = [OUTCOME_CODE[word] for word in data["outcome"].to_pylist()]
    return RecordTable(
        **{column: ints(column) for column in NUMBERS},
        outcome=np.array(outcomes, np.int64),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        **flat,
        whole=True,
    )
