"""What a run folder lost."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Damage:
    """What a folder lost. All zero or empty: nothing."""

    torn_bytes: int = 0  # of unfinished last frames: a process was killed while writing
    damaged_bytes: int = 0  # skipped inside the record files
    duplicates: int = 0  # records that came twice; dropped, no loss
    bad_lines: int = 0  # of the JSON-lines files
    missing: dict[int, int] = field(default_factory=dict)  # worker: requests without a record
    unreadable: list[str] = field(default_factory=list)  # files that should be there and are not

    def sentences(self) -> list[str]:
        """What is lost, in words; duplicates are no loss. Empty: nothing."""
        told = [
            (self.torn_bytes, f"{self.torn_bytes} bytes of an unfinished last record were cut off"),
            (self.damaged_bytes, f"{self.damaged_bytes} damaged bytes of records were skipped"),
            (self.bad_lines, f"{self.bad_lines} unreadable lines of steps or samples were skipped"),
            (self.unreadable, f"missing or unreadable: {', '.join(self.unreadable)}"),
        ]
        lost = sum(self.missing.values())
        return [text for count, text in told if count] + (
            [f"{lost} requests have no record (by worker: {self.missing})"] if lost else []
        )
