"""Reports of users while whoever learns from them does not answer."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bridge.testing import until
from tests.console.held_kit import hold, holding
from tests.digests.digest_kit import users
from tests.digests.test_user_pages import signed_in


def test_reports_that_hang_do_not_stop_the_pages(tmp_path: Path) -> None:
    """Reports used the threads that every page needs, any number of them, and each for up to five minutes."""
    (tmp_path / "rspamd-password").write_text("secret-of-rspamd")
    paths = {f"person{one}@a.example": [f"/mail/PERSON{one}M{two}/report" for two in range(6)] for one in range(2)}
    with closing(socket.create_server(("127.0.0.1", 0), backlog=128)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        rspamd = {"url": url, "password_file": "rspamd-password", "timeout": "5m"}
        with users(tmp_path, feedback={"rspamd": rspamd}) as world, ThreadPoolExecutor(12) as pool:
            for person, own in paths.items():
                for path in own:
                    hold(world.directory, path.split("/")[2], person)
            readers = [signed_in(world, person) for person in paths]
            until(lambda: all("M0" in reader.get("/").text for reader in readers), "the list")
            clicks = [(signed_in(world, person), path) for person, own in paths.items() for path in own]
            sent = [pool.submit(browser.post, path, {"kind": "ham"}) for browser, path in clicks]
            until(lambda: sum(each.done() for each in sent) >= 6, "the answers to reports beyond the limit")
            assert [each.result().status for each in sent if each.done()] == [429] * 6
            assert all(reader.get("/").status == 200 for reader in readers)
            silent.close()
            assert sorted(each.result().status for each in sent) == [303] * 6 + [429] * 6


def test_reports_of_large_mail_took_more_memory_than_the_pages_have(tmp_path: Path) -> None:
    """Three clicks on mail of 49 MiB took 1.1 GB, if reports are mailed; the unit has 512 MB."""
    size = 20 * 1024 * 1024
    content = b"Subject: large\r\n\r\n" + b"x" * 70 + b"\r\n" * (size // 2)
    with users(tmp_path, feedback={"report_to": "abuse@a.example"}) as world, ThreadPoolExecutor(3) as pool:
        with holding(world.directory) as put:
            for number in range(3):
                put(f"LARGE{number}", "one@a.example", content)
        browsers = [signed_in(world, "one@a.example") for _ in range(3)]
        until(lambda: "LARGE2" in browsers[0].get("/").text, "the list")
        before = peak_memory(world.served.process.pid)
        paths = [f"/mail/LARGE{number}/report" for number in range(3)]
        sent = [pool.submit(each.post, path, {"kind": "ham"}) for each, path in zip(browsers, paths, strict=True)]
        assert [each.result().status for each in sent] == [303] * 3
        assert peak_memory(world.served.process.pid) - before < 2 * size


def peak_memory(pid: int) -> int:
    """In bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
