"""The log of a daemon that a test reads while it is written."""

from __future__ import annotations

import os
import tempfile

from tests.warm_commands import written


def test_reading_a_log_moves_nothing_for_those_who_write_it() -> None:
    """A line that came between `seek` and `read` replaced the first one, and a test waited for it at the end."""
    with tempfile.TemporaryFile() as log:
        writer = os.dup(log.fileno())  # a daemon's standard error shares its position, too
        try:
            for number in range(3):
                os.write(writer, b"line %d\n" % number)
                at = os.lseek(writer, 0, os.SEEK_CUR)
                assert written(log) == b"".join(b"line %d\n" % before for before in range(number + 1))
                assert os.lseek(writer, 0, os.SEEK_CUR) == at
        finally:
            os.close(writer)
