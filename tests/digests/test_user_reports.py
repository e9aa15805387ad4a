"""Reports of users while whoever learns from them does not answer."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bridge.testing import until
from tests.console.held_kit import hold
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
