"""How far a command is, how fast, and how long it will go on: a bar on a terminal, a line every ten seconds elsewhere."""

import sys
import time

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0
# Without the bar itself. Where there is no total, tqdm's own line has none either, and no time left.
WITH_TOTAL = "{l_bar}{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class Progress:
    """Counts up to a total. A context manager; what is printed goes to standard error.

    Args:
        what: Stands before the bar.
        total: Units in all; None if nobody knows.
        unit: What is counted, for the rate: "examples".
        done: Units that were done before, which do not count for the rate.
        shown: False: nothing is printed.
    """

    def __init__(self, what, total, unit, done=0, shown=True):
        self._shown, self._is_bar = shown, shown and sys.stderr.isatty()
        self._prints = shown and not self._is_bar
        self._what, self._total, self._unit, self._before = what, total, unit, done
        self._done, self._notes = done, {}
        self._started = self._printed = time.monotonic()
        self._last_printed = done
        self._bar = tqdm(total=total, initial=done, desc=what, unit=f" {unit}", disable=not self._is_bar, dynamic_ncols=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def add(self, units=1, **notes):
        """Units that are done since the last call; the notes stand behind the bar until there are others."""
        self._done += units
        self._notes.update(notes)
        if self._is_bar:
            self._bar.set_postfix(self._notes, refresh=False)
            self._bar.update(units)
        elif self._prints and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._print()

    def say(self, line):
        """Prints a line to standard output, without spoiling the bar."""
        if self._shown:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def close(self):
        """Ends the bar. A last line is printed if it is new, and only if there was one before: what is quick says nothing."""
        self._bar.close()
        if self._prints and self._printed != self._started and self._last_printed != self._done:
            self._print()
        self._prints = False

    def _print(self):
        self._printed, self._last_printed = time.monotonic(), self._done
        meter = tqdm.format_meter(
            self._done,
            self._total,
            self._printed - self._started,
            initial=self._before,
            prefix=self._what,
            unit=f" {self._unit}",
            postfix=", ".join(f"{name}={note}" for name, note in self._notes.items()),
            bar_format=None if self._total is None else WITH_TOTAL,
        )
        print(meter, file=sys.stderr, flush=True)
