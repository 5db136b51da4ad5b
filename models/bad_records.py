"""Records that cannot be used: named, counted, and too many of them are an error."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

NAMED_IN_ERROR = 5
Record = TypeVar("Record")


class BadRecord(NamedTuple):
    """A record that cannot be used: where it stands, and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class BadRecords:
    """Collects the bad records of a data set.

    Args:
        most: The largest share of bad records that is accepted, 0 to 1.

    Attributes:
        found: The bad records, in order.
        records: How many records there were, good and bad.

    Raises:
        ValueError: If ``most`` is no share.
    """

    def __init__(self, most: float) -> None:
        if not 0 <= most <= 1:
            raise ValueError(f"a share of bad records of {most}: expected 0 to 1")
        self.most = most
        self.found: list[BadRecord] = []
        self.records = 0

    def drop(self, records: Iterable[Record | BadRecord]) -> Iterator[Record]:
        """The good ones among some records; the others are collected."""
        for record in records:
            self.records += 1
            if isinstance(record, BadRecord):
                self.found.append(record)
            else:
                yield record

    def check(self) -> None:
        """Raises a ValueError that names the first ones, if their share is larger than what is accepted."""
        if len(self.found) > self.most * self.records:
            named = "; ".join(str(record) for record in self.found[:NAMED_IN_ERROR])
            more = ", ..." if len(self.found) > NAMED_IN_ERROR else ""
            raise ValueError(
                f"{len(self.found)} of {self.records} records cannot be used, more than the accepted share of {self.most:g}: "
                f"{named}{more}"
            )


def write_bad_records(collected: Iterable[BadRecords], path: str | Path) -> None:
    """Writes all bad records of several data sets, one a line; no file where there are none."""
    path = Path(path)
    path.unlink(missing_ok=True)
    found = [record for records in collected for record in records.found]
    if found:
        path.write_text("".join(f"{record}\n" for record in found), encoding="utf-8")
