"""Entries that would affect far more mail than people expect need `--force`; and names of lists that do not exist."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.lists.danger import Dangers

OWN = Dangers(["example.org", "mail.firm.example", "xn--bcher-kva.example"])


@pytest.mark.parametrize(
    ("category", "entry"),
    [
        ("sender", "@gmail.com"), ("sender", "gmail.com"), ("sender", "*@GMAIL.com."), ("sender", "<@gmail.com>"),
        ("sender", "@yahoo.co.jp"), ("sender", "@t-online.de"), ("sender", "@com"), ("sender", "com"),
        ("sender", "@co.uk"), ("sender", "*"), ("sender", "*@*"), ("sender", "@*.gmail.com"),
        ("sender", "@example.org"),
        ("sender", "EXAMPLE.org."), ("sender", "@firm.example"), ("sender", "@b\u00fccher.example"),
        ("sender", "@\uff47\uff4d\uff41\uff49\uff4c.com"), ("domain", "gmail.com"), ("domain", "*.gmail.com"),
        ("domain", ".com"), ("domain", "example.org"), ("domain", "hotmail.fr"), ("url", "https://google.com/x?y"),
        ("url", "com"), ("network", "0.0.0.0/0"), ("network", "::/0"), ("network", "0.0.0.0/0.0.0.0"),
        ("network", "128.0.0.0/1"), ("network", "8.0.0.0/8"), ("network", "2000::/3"), ("network", "::ffff:0:0/96"),
        ("attachment", "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"),
        ("unheard-of", "0.0.0.0/0"), ("unheard-of", "@gmail.com"), ("unheard-of", "@com"),
    ],
)  # fmt: skip
def test_a_dangerous_entry_has_a_reason(category, entry):
    """In every spelling that means the same to the service."""
    assert OWN.reason(category, entry) and OWN.may_be(entry)


@pytest.mark.parametrize(
    ("category", "entry"),
    [
        ("sender", "user@gmail.com"), ("sender", "bad@example.org"), ("sender", "@worse.example"),
        ("sender", "@sub.example.org"), ("sender", "@[192.0.2.1]"), ("sender", "not an address"), ("sender", "@"),
        ("domain", "gmail.com.evil.example"), ("domain", "mygmail.com"), ("network", "192.0.2.0/24"),
        ("network", "10.0.0.0/8"), ("network", "1.2.0.0/16"), ("network", "2001:db8::/32"), ("network", "nonsense"),
        ("url", "http://192.0.2.1/x"), ("attachment", "a" * 64), ("unheard-of", "word"), ("unheard-of", "a b"),
    ],
)  # fmt: skip
def test_an_ordinary_entry_has_none(category, entry):
    assert OWN.reason(category, entry) == ""


def test_add_needs_force_for_a_dangerous_entry_and_delete_does_not(service):
    """Nothing at all is sent, the reason is named, and the exit code is that of a missing confirmation."""
    refused = service.run("add", "blocked-senders", "bad@x.org", "@gmail.com")
    assert refused.exit_code == 4 and service.entries("blocked-senders") == {}
    assert "'@gmail.com' is dangerous: gmail.com is a large mail provider" in refused.stderr
    assert "nothing was changed; add --force" in refused.stderr
    assert service.run("add", "blocked-networks", "0.0.0.0/0").exit_code == 4
    assert service.run("add", "blocked-domains", "com").exit_code == 4
    assert service.run("add", "notes", "com", "gmail").exit_code == 0
    assert service.run("add", "blocked-senders", "@gmail.com", "--force").exit_code == 0
    assert list(service.entries("blocked-senders")) == ["@gmail.com"]
    assert service.run("delete", "blocked-senders", "@gmail.com").exit_code == 0
    assert service.entries("blocked-senders") == {}


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("feed.txt", "# feed\nbad@x.org\n\n@gmail.com # why\n", 4),
        ("feed.csv", "entry,comment\nbad@x.org,\n@gmail.com,why\n", 3),
        ("feed.yml", "- bad@x.org\n- entry: '@gmail.com'\n", 2),
    ],
)
def test_a_dangerous_entry_of_a_file_is_named_with_its_line(service, tmp_path, name, content, line):
    path = tmp_path / name
    path.write_text(content)
    added = service.run("add", "blocked-senders", "-f", str(path))
    synced = service.run("sync", "blocked-senders", str(path))
    for done in (added, synced):
        assert done.exit_code == 4 and f"{path}:{line}: '@gmail.com' is dangerous" in done.stderr, done.output
    assert "nothing was changed" in synced.stderr
    piped = service.run(
        "add", "blocked-senders", "--format", name[-3:].replace("txt", "text").replace("yml", "yaml"), stdin=content
    )
    assert piped.exit_code == 4 and f"standard input:{line}: '@gmail.com'" in piped.stderr
    assert service.entries("blocked-senders") == {}


def test_sync_minds_only_what_it_would_add(service, tmp_path):
    """An entry that is in the list already was confirmed once. A dry run shows it all the same."""
    path = tmp_path / "feed.txt"
    path.write_text("@gmail.com\nbad@x.org\n")
    dry = service.run("sync", "blocked-senders", str(path), "--dry-run")
    assert dry.exit_code == 3 and "these need --force" in dry.stderr
    assert service.run("sync", "blocked-senders", str(path), "--force").exit_code == 0
    path.write_text("@gmail.com\nworse@x.org\n")
    assert service.run("sync", "blocked-senders", str(path), "--prune", "--yes").exit_code == 0
    assert sorted(service.entries("blocked-senders")) == ["@gmail.com", "worse@x.org"]


def test_the_own_domains_come_from_the_configuration(service, tmp_path, monkeypatch):
    """Tenants, routes, and the domain of the host's name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "bridge.yml"
    path.write_text(
        "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}\nhostname: mx.host.example\n"
        "listeners: [{name: m, protocol: milter, address: '127.0.0.1:1'}]\n"
        "tenants: [{uid: 123e4567-e89b-12d3-a456-426614174000, recipient_domains: [tenant.example]}]\n"
        "relay: {next_hop: '127.0.0.1:3', routes: [{recipient_domains: [routed.example], next_hop: '127.0.0.1:2'}]}\n"
        f"lists: {{url: '{service.url}', api_key_file: {service.key_file}}}\n"
    )
    for entry in ("@tenant.example", "@routed.example", "host.example"):
        done = CliRunner().invoke(main, ["lists", "add", "blocked-senders", entry, "-c", str(path)])
        assert done.exit_code == 4 and "your own domain" in done.stderr, done.output
    both = ["--url", service.url, "--api-key-file", str(service.key_file), "-c", str(path)]
    assert CliRunner().invoke(main, ["lists", "add", "blocked-senders", "@tenant.example", *both]).exit_code == 4
    assert service.entries("blocked-senders") == {}


@pytest.mark.parametrize("arguments", [["entries"], ["add", "x@x.org"], ["delete", "x@x.org"], ["sync", "FILE"]])
def test_a_mistyped_list_names_the_one_that_may_be_meant(service, tmp_path, arguments):
    (tmp_path / "f.txt").write_text("x@x.org\n")
    verb, *rest = [str(tmp_path / "f.txt") if word == "FILE" else word for word in arguments]
    done = service.run(verb, "blocked-sender", *rest)
    assert done.exit_code == 1 and "did you mean blocked-senders?" in done.stderr, done.output
    other = service.run(verb, "zzz", *rest)
    assert other.exit_code == 1 and "available lists: " in other.stderr and "partners" in other.stderr


def test_the_json_of_an_addition_is_unchanged(service):
    done = service.run("add", "blocked-senders", "@gmail.com", "--force", "--json")
    assert json.loads(done.stdout)["confirmed"] == 1
