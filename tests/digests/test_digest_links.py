"""Links: what a link scanner, a thief, a forger and a stranger get out of them. Nothing is released, all is logged."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.digests.signed_links import Act, Link, LinkKeys, LinkRefused, parse_keys
from bridge.errors import ConfigError
from bridge.observe.log_throttle import BURST
from tests.console.held_kit import held_ids, hold
from tests.digests.digest_kit import Users, links

SOON = int(time.time()) + 86400


@pytest.fixture
def keys(tmp_path: Path) -> LinkKeys:
    made = LinkKeys(tmp_path / "keys")
    made.make()
    return made


@pytest.mark.parametrize(
    "link",
    [
        Link(Act.RELEASE, SOON, "1A2B", "jane@a.example"),
        Link(Act.ENTER, SOON, "", "jane@a.example"),
        Link(Act.VIEW, SOON, "X" * 64, "jané@münchen.example"),
        Link(Act.BLOCK, SOON, "1", '"a b"@a.example'),
        Link(Act.RELEASE, SOON, "X" * 64, f"{'s' * 64}@{'a' * 190}", f"{'j' * 64}@{'b' * 190}"),
    ],
)
def test_a_link_comes_back_as_it_was(keys: LinkKeys, link: Link) -> None:
    token = keys.sign(link)
    assert keys.verify(token, time.time()) == link
    assert token.replace(".", "").replace("-", "").replace("_", "").isalnum()


def test_every_changed_character_is_noticed(keys: LinkKeys) -> None:
    token = keys.sign(Link(Act.REQUEST, SOON, "1A2B", "jane@a.example"))
    for number, character in enumerate(token):
        other = token[:number] + ("A" if character != "A" else "B") + token[number + 1 :]
        with pytest.raises(LinkRefused):
            keys.verify(other, time.time())


def test_a_code_is_for_one_action_mail_recipient_and_expiry(keys: LinkKeys) -> None:
    """A payload with another link's code."""
    first = keys.sign(Link(Act.VIEW, SOON, "1A2B", "jane@a.example"))
    _, key, code = first.split(".")
    for other in ("release", "view"):
        for mail, recipient, until in (("1A2B", "jim@a.example", SOON), ("1A2C", "jane@a.example", SOON + 1)):
            payload = f"{other}\n{until}\n{mail}\n{recipient}".encode()
            forged = base64.urlsafe_b64encode(payload).decode().rstrip("=")
            with pytest.raises(LinkRefused):
                keys.verify(f"{forged}.{key}.{code}", time.time())


def test_an_expired_link_is_refused(keys: LinkKeys) -> None:
    token = keys.sign(Link(Act.RELEASE, int(time.time()) - 1, "1", "jane@a.example"))
    with pytest.raises(LinkRefused, match="expired"):
        keys.verify(token, time.time())


def test_rotation_keeps_links_until_no_link_of_a_key_can_be_left(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys, other_process = LinkKeys(path), LinkKeys(path)
    keys.make()
    old = keys.sign(Link(Act.RELEASE, SOON, "1", "jane@a.example"))
    assert other_process.verify(old, time.time()).mail == "1"
    keys.rotate(86400)
    new = keys.sign(Link(Act.RELEASE, SOON, "2", "jane@a.example"))
    assert new.split(".")[1] != old.split(".")[1]
    assert other_process.verify(old, time.time()).mail == "1"  # the file is read again
    assert other_process.verify(new, time.time()).mail == "2"
    aged = "".join(
        f"{key.id} {key.made_at - 2 * 86400} {key.secret.hex()}\n" for key in parse_keys(path.read_text("ascii"))
    )
    path.write_text(aged)
    keys.rotate(86400)  # the first key was replaced two days ago
    with pytest.raises(LinkRefused):
        other_process.verify(old, time.time())
    assert other_process.verify(new, time.time()).mail == "2"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "# nothing\n", "abc\n", "0000000a 1 zz\n", "0000000a 1 " + "0" * 62 + "\n"])
def test_a_file_without_good_keys_is_a_mistake_that_shows_no_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as failed:
        LinkKeys(path).sign(Link(Act.RELEASE, SOON, "1", "jane@a.example"))
    assert "keys rotate" in str(failed.value)
    assert "0" * 62 not in str(failed.value)


def test_a_storm_of_gets_releases_nothing_and_is_logged(shared: Users) -> None:
    """A link scanner: GET and HEAD on every link, several times, also as a prefetch, from several connections."""
    for number in range(5):
        hold(shared.directory, f"STORM{number}", "storm@a.example")
    paths = links(shared.send_digests("--now")["storm@a.example"])
    assert len(paths) == 5 * 3 + 2
    before = len(shared.next_hop.mails)

    def scan(path: str) -> set[int]:
        found = set()
        for method in ("GET", "HEAD", "GET"):
            found.add(shared.served.browser().ask(method, path, Sec_Purpose="prefetch", User_Agent="scanner").status)
        return found

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(scan, paths * 4)) == {200}
    assert len(shared.next_hop.mails) == before
    assert {f"STORM{number}" for number in range(5)} <= held_ids(shared.directory)
    audited = sum(line.startswith("opened a link|STORM") for line in shared.audit())
    assert audited == 5 * 3 * 3  # the first times for each link: a scanner must not fill the audit log
    hold(shared.directory, "STORM9", "storm@a.example")
    assert "storm@a.example" in shared.send_digests("--now")  # the scanner has not unsubscribed them


def test_a_post_needs_the_page_before_it(shared: Users) -> None:
    """A program that posts to every link it finds, or a form of another site."""
    hold(shared.directory, "POST1", "post@a.example")
    release, _, _, enter, unsubscribe = links(shared.send_digests("--now")["post@a.example"])
    before = len(shared.next_hop.mails)
    for path in (release, enter, unsubscribe):
        assert shared.served.browser().ask("POST", path).status == 403
        assert shared.served.browser().ask("POST", path, b"List-Unsubscribe=One-Click&form_token=x").status == 403
        browser = shared.served.browser()
        browser.get(path)
        assert browser.post(path, Origin="https://evil.example", Sec_Fetch_Site="cross-site").status == 403
        assert browser.post(path, {"form_token": "0" * 64}).status == 403
    for path in (release, enter):  # the one click is for unsubscribing alone
        answer = shared.served.browser().ask(
            "POST", path, b"List-Unsubscribe=One-Click", Origin=None, Sec_Fetch_Site=None
        )
        assert answer.status == 403
    assert len(shared.next_hop.mails) == before


def test_forged_and_expired_links_do_nothing_and_are_logged(shared: Users) -> None:
    hold(shared.directory, "FORGE1", "forge@a.example")
    release = links(shared.send_digests("--now")["forge@a.example"])[0]
    keys = LinkKeys(shared.directory / "state" / "digest-keys")
    expired = keys.sign(Link(Act.RELEASE, int(time.time()) - 10, "FORGE1", "forge@a.example"))
    others = {
        "another recipient": (keys.sign(Link(Act.RELEASE, SOON, "FORGE1", "eve@a.example")), 404),
        "a stranger": (keys.sign(Link(Act.RELEASE, SOON, "FORGE1", "eve@elsewhere.example")), 404),
        "no mail": (keys.sign(Link(Act.RELEASE, SOON, "NOSUCH", "forge@a.example")), 404),
        "a path": (keys.sign(Link(Act.RELEASE, SOON, "../../etc", "forge@a.example")), 404),
        "expired": (expired, 410),
        "changed": (release[3:-1] + ("A" if release[-1] != "A" else "B"), 404),
        "cut": (release[3:-5], 404),
        "nonsense": ("x" * 300, 404),
    }
    before = len(shared.next_hop.mails)
    for name, (token, status) in others.items():
        browser = shared.served.browser()
        assert browser.get(f"/l/{token}").status == status, name
        browser.get("/sign-in")
        assert browser.post(f"/l/{token}").status == status, name
        assert browser.get(f"/u/{token}").status in (status, 404), name
    assert len(shared.next_hop.mails) == before
    log, audit = shared.served.log, shared.audit()
    for why in ("the link has expired", "the code in the link is wrong", "not one of our links"):
        assert f"link refused: from=127.0.0.1 why='{why}'" in log
        assert any(line.startswith("used a link||refused|") and why in line for line in audit)
    assert shared.served.browser().press(release).status == 200  # the real one works


def test_the_links_of_a_mail_that_is_gone_are_in_the_audit_log_only_the_first_times(shared: Users) -> None:
    """Each GET of such a link wrote an entry."""
    hold(shared.directory, "GONE1", "gone@a.example")
    release = links(shared.send_digests("--now")["gone@a.example"])[0]
    assert shared.command("quarantine", "delete", "GONE1", "--yes").returncode == 0
    assert {shared.served.browser().get(release).status for _ in range(12)} == {404}
    assert sum("|GONE1|refused|" in line for line in shared.audit()) == 3


def test_links_that_are_none_do_not_fill_the_log(shared: Users) -> None:
    """Each request wrote a line to the log, whoever sent it."""
    for number in range(3 * BURST):
        assert shared.served.browser().get(f"/l/none-{number}").status == 404
    lines = [line for line in shared.served.log.splitlines() if "link refused" in line]
    assert 0 < len(lines) < 2 * BURST, len(lines)
