"""Ids, and the small types around a mail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.transaction import new_id


def test_ids_do_not_repeat() -> None:
    """Two hundred thousand ids from four threads are all different."""
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: [new_id() for _ in range(50_000)], range(4)))
    ids = [mail_id for batch in batches for mail_id in batch]
    assert len(set(ids)) == len(ids)


def test_ids_of_two_processes_differ() -> None:
    """Processes that start at the same moment do not create the same ids."""
    code = "from bridge.mail.transaction import new_id\nprint(*(new_id() for _ in range(20000)))"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (set(run.communicate(timeout=60)[0].split()) for run in runs)
    assert len(first) == len(second) == 20_000 and not first & second


def test_id_is_safe_in_logs_and_replies_and_sorts_by_time() -> None:
    """Capital letters and digits of a fixed length; a later id sorts after an earlier one."""
    ids = []
    for _ in range(20):
        ids.append(new_id())
        while new_id()[:-8] == ids[-1][:-8]:  # wait for the next tick of the clock
            pass
    assert all(re.fullmatch(r"[0-9A-Z]{12,20}", mail_id) for mail_id in ids)
    assert len({len(mail_id) for mail_id in ids}) == 1
    assert ids == sorted(ids)


def test_envelope_finds_its_parameters() -> None:
    """Letter case does not matter."""
    envelope = Envelope("", (Recipient("a@b"), Recipient("c@d")), ("body=8BitMime", "smtputf8"))
    assert envelope.addresses == ("a@b", "c@d") and envelope.eight_bit and envelope.smtputf8
    assert not Envelope("").eight_bit and not Envelope("").smtputf8


def test_forked_processes_have_their_own_ids() -> None:
    """A forked worker does not continue the ids of its parent."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id()[11:15].encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        theirs = pipe.read()
    assert len(theirs) == 4
    assert theirs != new_id()[11:15]
