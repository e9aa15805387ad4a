"""The disk of the service's spool hangs: other mail is analysed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bridge.mail.spool import DiskLimits
from tests.mail.test_spool_file import HangingDisk
from tests.service.service_kit import mail, service, until

LARGE = mail(b"x" * 70 + b"\r\n") + (b"y" * 70 + b"\r\n") * 10_000


def test_a_disk_that_hung_stopped_the_service(tmp_path: Path) -> None:
    """The event loop itself wrote large mail to it, so that nobody was answered."""
    disk = HangingDisk(DiskLimits(hangs_after_s=60.0))
    with service(tmp_path, disk=disk) as running, ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        large = thread.submit(running.submit, LARGE)
        assert disk.asked.wait(60)
        assert running.status().status == 200
        assert running.submit(mail()).json["decision"] == "deliver"
        assert not large.done()
        disk.goes_on.set()
        answer = large.result()
        assert (answer.status, answer.json["decision"]) == (200, "deliver")
        until(lambda: not disk.unwritten, "everything to be released")
        assert disk.growing == 0


def test_a_mail_is_analysed_although_its_disk_hangs(tmp_path: Path) -> None:
    """What is not written yet is in memory."""
    disk = HangingDisk(DiskLimits(hangs_after_s=0.05))
    with service(tmp_path, disk=disk) as running, ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        assert running.submit(LARGE).json["decision"] == "deliver"
        assert not disk.goes_on.is_set()


def test_a_client_that_is_faster_than_the_disk_is_slowed_down(tmp_path: Path) -> None:
    """Its mail is not refused for want of room."""
    disk = HangingDisk(DiskLimits(max_unwritten=1024 * 1024, hangs_after_s=60.0))
    with service(tmp_path, disk=disk) as running, ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        large = thread.submit(running.submit, LARGE * 5)
        until(lambda: disk.unwritten > 512 * 1024 or large.done(), "the service to stop reading")
        disk.goes_on.set()
        assert large.result().status == 200
