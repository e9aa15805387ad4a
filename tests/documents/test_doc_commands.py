"""Every command in the documents is run exactly as written.

Each page is a story: its blocks marked `sh` and `python` are run in one shell from the first to the last, in separate
namespaces with the real ports and paths (room.sh).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from bridge import __version__
from tests.documents.blocks import Block, blocks
from tests.documents.story import Story, tell
from tests.requirements import need

LANGUAGES = {"sh", "python", "yaml", "toml", "json", "promql", ""}
PROGRAMS = "sudo|scanbridge|make|curl|swaks|systemctl|apt|pip|docker|kubectl|postconf|postfix"
COMMAND = re.compile(rf"^(?:\$|{PROGRAMS}) (?!\d)", re.MULTILINE)

MAIL = r"printf 'From: a@example.org\r\nSubject: hello\r\n\r\nhello\r\n' > mail.eml"
GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"

RECORDED = "embedded; until scanbridge explain $ID >/dev/null; do sleep 0.05; done"  # a moment after the reply

QUICK = ("README.md", "docs/operate/quarantine.md")  # in every run

STORIES: dict[str, Story] = {
    "README.md": Story(
        goes_on={"make run": "10025 10027 9081 9082"},
        fails={f"swaks --server 127.0.0.1:10025 --to you@example.org --body '{GTUBE}'": 26},
        shows=["scanbridge is running", "250 2.0.0 Ok: queued", "550 5.7.1", "250 2.0.0 Ok: queued", "ready"],
    ),
    "deploy/postfix-proxy/README.md": Story(
        prepare="""
            mailserver
            scanbridge setup postfix --mode proxy -c deploy/postfix-proxy/bridge.yml --commands | sh -e
        """,
        shows=[r"smtp +inet +n +- +y +- +- +smtpd\n(?! +-o)"],
    ),
    "docs/operate/backup.md": Story(
        prepare="""
            mkdir -m 700 /var/lib/scanbridge /var/lib/scanbridge-scanner
            ln -s /var/lib/scanbridge-scanner "$HOME/state"
            packaged
            eicar 10025
        """,
        shows=["OK: ", "bad@sender.example"],
    ),
    "docs/operate/domain-policy.md": Story(
        prepare="""
            configured bridge.yml </dev/null
            embedded
            tenant='uid: 0b8e4567-e89b-12d3-a456-426614174000, recipient_domains: [example.org]'
            echo "tenants: [{$tenant}]" >> bridge.yml
        """,
        shows=["OK: ", "example.org"],
    ),
    "docs/operate/find-a-mail.md": Story(
        prepare=RECORDED, shows=["was quarantined", "quarantine show", "malware", "action=quarantine"]
    ),
    "docs/operate/events.md": Story(
        prepare="""
            configured bridge.yml <<<'events: [{name: log, type: file, path: events.jsonl}]'
            embedded
        """,
        shows=["the new configuration is in use", "log: ok", r"log \(file\): \d+ waiting", "0 deleted"],
    ),
    "docs/operate/history-over-http.md": Story(
        prepare="""
            configured /etc/scanbridge/bridge.yml </dev/null
            embedded
            echo 'api: {tokens: [{name: helpdesk, token_file: helpdesk-token}]}' >> /etc/scanbridge/bridge.yml
            unset SCANBRIDGE_CONFIG
        """,
        shows=[
            "bad@sender.example\tquarantine\t250 2.0.0",
            '"state": "kept"',
            '"label":"quarantine","mails":1',
            '"label":"malware:eicar","mails":1',
            "bad@sender.example quarantine",
        ],
    ),
    "docs/operate/lists.md": Story(
        prepare="""
            embedded
            echo new.example | tee feed.csv > domains.txt
            seq -f user%g@example.org 50 | scanbridge lists add blocked-senders
            seq -f user%g@example.org 2 51 > blocked-senders.txt
            mkdir lists; cp domains.txt lists/blocked-domains.txt
            cp ~/.local/state/scanbridge-demo/api-key .
        """,
        words={
            "ID": "$ID",
            "https://feed.example/domains.txt": "file://$PWD/domains.txt",
            "partners": "allowed-senders",
        },
        fails={"scanbridge lists sync blocked-senders blocked-senders.txt --prune --dry-run": 3},
    ),
    "docs/operate/monitoring.md": Story(prepare="embedded"),
    "docs/understand/privacy.md": Story(
        prepare="""
            echo 'log: {addresses: hashed}' | configured bridge.yml
            embedded
            swaks --server 127.0.0.1:10025 --to jane@example.org --silent 3
        """,
    ),
    "docs/reference/python.md": Story(
        prepare="embedded",
        shows=["True clean", "250 2.0.0 Ok: queued as NEXT1", "550 5.7.1 The message was refused", "451 4.3.0"],
    ),
    "docs/operate/quarantine.md": Story(prepare="embedded", words={"1A1DD70B4385865FE83": "$ID"}),
    "docs/operate/release-a-mail.md": Story(
        prepare="embedded", words={"1A1DD70B4385865FE83": "$ID"}, shows=["malware", "released: 250", "released: 250"]
    ),
    "docs/operate/review-the-quarantine.md": Story(
        prepare="embedded", words={"1A1DD70B4385865FE83": "$ID"}, shows=["1 malware:eicar", "bad@sender.example"]
    ),
    "docs/operate/personal-lists.md": Story(
        prepare="embedded",
        shows=["shop.example: blocked for anna@example.org", r"allow +friend@example.net", "shop.example: deleted"],
    ),
    "docs/operate/digests.md": Story(
        prepare="""
            configured bridge.yml <<<'digests: {from: q@example.org, domains: [example.org], schedule: daily}'
            embedded
        """,
        shows=["3 mails for jane@example.org are held", "done: 0 sent", "new links are signed with key"],
    ),
    "docs/operate/feedback.md": Story(prepare=f"embedded; {MAIL}", shows=["reported as spam", "reported as not spam"]),
    "docs/operate/block-a-campaign.md": Story(
        prepare="""
            configured bridge.yml </dev/null
            sed -i '/name: smtp/s/profile:/lists: {block: [blocked-senders]}, &/' bridge.yml
            embedded
        """,
        words={"1A1DD70B4385865FE83": "$ID"},
        shows=["would be added to blocked-senders", "@sender.example added to", "campaign of 2026-11-16"],
    ),
    "docs/operate/weekly-numbers.md": Story(
        prepare=RECORDED,
        shows=["quarantine\t1\t100.0 %", "scanbridge_mails_total", "1  action=quarantine", "1 kept", "1 malware"],
    ),
    "docs/operate/rotate-a-token.md": Story(
        prepare="""
            packaged
            ln -s "$HOME/state" /var/lib/scanbridge-scanner
            scanbridge service -c /etc/scanbridge/service.yml apikey create automation >/dev/null
        """,
        shows=["OK: ", "OK: ", "OK: ", "automation-2"],
    ),
    "docs/operate/runbooks.md": Story(
        prepare="""
            configured /etc/scanbridge/bridge.yml </dev/null
            sed -i 's#next_hop: .*#next_hop: smtp://127.0.0.1:10026#' /etc/scanbridge/bridge.yml  # nobody is there
            embedded
            unset SCANBRIDGE_CONFIG
            swaks --server 127.0.0.1:10025 --to jane@example.org --silent 3 || true
        """,
        words={"NAME": "scanbridge_failures_total"},
        fails={"scanbridge check": 1, "scanbridge status": 1},
    ),
    "docs/operate/second-scanner.md": Story(
        prepare="""
            configured bridge.yml </dev/null
            embedded
            cat >service-2.yml <<END
listen: 127.0.0.1:9091
guard: {scanSources: {restApi: {}}}
database: sqlite:///$HOME/state/service.sqlite
abby:
  serviceProviders: {core: {hosts: []}}
  staticApiTokens: [{name: bridge, token_file: $HOME/state/api-token, permissions: [scan, status]}]
END
            scanbridge lists add blocked-senders bad@sender.example
            sed -i '/urls:/s#http://127.0.0.1:9081#&, http://127.0.0.1:9091#' bridge.yml
        """,
        goes_on={"scanbridge service -c service-2.yml": "9091"},
        shows=["OK: ", "http://127.0.0.1:9081: ", "http://127.0.0.1:9091: ", *["\nbad@sender.example"] * 2],
    ),
    "docs/operate/start.md": Story(
        prepare="mailserver",
        goes_on={"scanbridge service -c service.yml": "9081", "scanbridge run -c bridge.yml": "10025 10027"},
        fails={
            # The page says to use the milter or the proxy filter; here, both blocks are run.
            "scanbridge check -c bridge.yml --postfix /etc/postfix": 1,
            f"swaks --server 127.0.0.1 --to you@example.org --body '{GTUBE}'": 26,
        },
        shows=[
            "listener=milter .* decision=deliver",
            "mail is scanned twice",
            "Configuration file is valid",
            "listener=mx .* decision=deliver",
            "550 5.7.1 The message was refused",
            "next hop .* up",
        ],
    ),
    "docs/operate/systemd.md": Story(
        prepare="""
            ln -s "$HOME/state" /var/lib/scanbridge
            packaged
            eicar 10025
            unset STATE_DIRECTORY
        """,
        shows=["bad@sender.example"],
    ),
    "docs/operate/trace-a-mail.md": Story(
        prepare=f"""
            embedded
            {MAIL}
        """,
        shows=[
            "Listener smtp",
            "enforces no lists",
            "bounce\treject\tpolicy.bounce\t550 5.7.1",
            "Suppose that the scanner's decision is bounce",
            "no decision: unreachable",
            "The scanner's decision is deliver",
            "which answers",
            '"protocol": "milter"',
        ],
    ),
    "docs/operate/try-another-scanner.md": Story(
        prepare="""
            embedded
            cp ~/.local/state/scanbridge-demo/api-token new-token
            mkdir mails; cp docs/operate/samples/*.eml mails/
            swaks --server 127.0.0.1:10025 --to you@example.org --silent 3
            ln -s ~/.local/state/scanbridge-demo/Maildir ~/Maildir
            cat >service.yml <<END
guard: {scanSources: {restApi: {}}}
abby:
  serviceProviders: {core: {hosts: []}}
  staticApiTokens: [{name: bridge, token_file: new-token}]
END
            { cat service.yml; echo 'decisions: {otherwise: quarantine}'; } >trial.yml
        """,
        words={"https://scan.example.org:9081": "http://127.0.0.1:9081"},
        fails={
            "scanbridge replay ~/Maildir --service trial.yml --plot matrix.svg": 1,
            "scanbridge replay mails --to you@example.org --service trial.yml --baseline service.yml": 1,
            "scanbridge replay mails --to you@example.org --service trial.yml --expect expected.json": 1,
        },
        shows=["1 mail replayed: 1 unchanged", "deliver +1"],
    ),
    "docs/operate/tour.md": Story(
        prepare="embedded",
        shows=["550, b'5.7.1", "Mail from <me@example.org>"],
    ),
    "docs/operate/try.md": Story(
        prepare="embedded",
        words={"ID": "$ID", "DIRECTORY": "~", "SENDER": "bad@sender.example"},
        shows=["OK: ", "deliver", "malware", "released: 250"],
    ),
    "docs/operate/upgrade.md": Story(prepare="embedded", shows=["scanbridge, version", "OK: "]),
    "docs/operate/own-engine.md": Story(
        goes_on={"python3 hook.py": "8090"},
        shows=["empty: ok", "spam.eml: ok", "clean.eml: ok"],
    ),
    "docs/operate/service.md": Story(prepare=MAIL, goes_on={"scanbridge service -c service.yml": "9081"}),
}

# Page and first command of every block that is not run. The page has the reason above it.
NOT_RUN = {
    ("docs/operate/cluster.md", "scanbridge service check -c service.yml"),
    ("deploy/cluster/README.md", "make cluster"),
    ("docs/operate/digests.md", "cat > try.yml <<END"),
    (
        "docs/operate/digests.md",
        "python3 -c \"import smtplib; smtplib.SMTP('127.0.0.1', 10025)"
        ".sendmail('shop@sender.example', ['jane@example.org'], \\",
    ),
    ("docs/operate/digests.md", "systemctl enable --now scanbridge-digest"),
    ("docs/operate/phishing.md", "scanbridge service -c service.yml learning show"),
    ("docs/operate/phishing.md", "scanbridge replay ~/Maildir --service service.yml --profiles"),
    ("docs/operate/phishing.md", "pip install --editable '.[train]'"),
    ("CONTRIBUTING.md", "make run"),
    ("docs/operate/tour.md", "make run"),
    ("docs/operate/console.md", "scanbridge console user add ann --role admin"),
    ("docs/operate/console.md", "scanbridge console user list"),
    ("docs/operate/install.md", f"apt install ./scanbridge_{__version__}-1_amd64.deb"),
    ("docs/operate/install.md", f"dnf install ./scanbridge-{__version__}-1.x86_64.rpm"),
    ("deploy/ansible/README.md", "make packages"),
    ("deploy/cluster/compose/README.md", "cd deploy/cluster/compose"),
    ("deploy/compose/README.md", "cd deploy/compose"),
    (
        "deploy/kubernetes/README.md",
        "openssl rand -hex 32 | kubectl -n mail create secret generic scanbridge-token --from-file=token=/dev/stdin",
    ),
    (
        "docs/operate/install.md",
        "podman build --format docker -f deploy/container/Containerfile -t scanbridge "
        "--build-arg COMMIT=$(git rev-parse HEAD) .",
    ),
    ("docs/operate/install.md", "pipx install dist/scanbridge-*.whl"),
    ("docs/operate/systemd.md", "python3 -m venv /opt/scanbridge && /opt/scanbridge/bin/pip install scanbridge"),
    ("docs/operate/systemd.md", "mkdir -p /etc/scanbridge/lab"),
    (
        "docs/operate/systemd.md",
        "systemd-run -q --wait --pipe -p DynamicUser=yes -p User=scanbridge -p StateDirectory=scanbridge \\",
    ),
}

RUN = [block for block in blocks() if block.is_program and block.not_run is None]


OTHERS = ("curl", "haproxy", "jq", "less", "make", "postfix", "promtool", "swaks")  # programs that a page may use
HIDDEN = {"embedded": ("jq", "swaks"), "eicar": ("swaks",), "mailserver": ("postfix",)}  # those of functions in room.sh


def need_a_room(story: Story, page: Sequence[Block]) -> None:
    """Skip or fail if this page uses a program that is not installed; other pages are still run."""
    need("unshare", "ip", root=True)
    words = set(re.findall(r"\w+", "\n".join([story.prepare, *(block.text for block in page)])))
    need(*(name for name in OTHERS if name in words), *(name for key in HIDDEN if key in words for name in HIDDEN[key]))


PAGES = [
    page if page in QUICK else pytest.param(page, marks=pytest.mark.long)
    for page in sorted({block.page for block in RUN})
]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_work(page, tmp_path):
    """The commands of this page do what the page says."""
    story, own = STORIES.get(page, Story()), [block for block in RUN if block.page == page]
    need_a_room(story, own)
    told = tell(own, story, tmp_path)
    assert told.failures == story.fails, told.output
    assert re.search(".*".join(story.shows), told.output, re.DOTALL), told.output


def test_commands_that_fail_are_found(tmp_path):
    """In the middle of a block, in a pipe, and in Python."""
    shell = "scanbridge lists nonsense\nscanbridge nonsense 2>&1 | cat\nscanbridge --version   # well\n"
    page = [Block("page", 1, "sh", shell, None), Block("page", 9, "python", "import nonsense\n", None)]
    need_a_room(Story(), page)
    told = tell(page, Story(), tmp_path)
    assert list(told.failures.values()) == [2, 2, 1], told.output
    assert "scanbridge, version" in told.output


def test_what_is_not_run_is_known_and_has_its_reason():
    """No command is left out by accident: it needs a line here, and a reason in the page."""
    left_out = [block for block in blocks() if block.not_run is not None]
    assert {block.name for block in left_out} == NOT_RUN
    for block in left_out:
        assert block.is_program and len(block.not_run or "") > 10, f"{block.page}:{block.line} needs a reason"


def test_commands_are_marked_as_such():
    """No block escapes because it is marked otherwise or not at all."""
    for block in blocks():
        assert block.language in LANGUAGES, f"{block.page}:{block.line}: {block.language}"
        if not block.is_program:
            assert not COMMAND.search(block.text), f"{block.page}:{block.line} is a block of commands: mark it sh"


# Arguments of programs that hold a secret. `echo` is part of the shell, so nobody else sees what it prints.
SECRET_ARGUMENT = re.compile(
    r"(-H|--header)[ =]?[\"']?(Authorization|X-Api-Key|Password):|(?:Bearer|apikey) [$\"'({]|--from-literal"
    r"|(--password|--token|--secret|--oauth2-bearer)[ =](?!\S*\bfile)|\bcurl\b.* (-u|--user)[ =]",
    re.IGNORECASE,
)


def test_no_command_has_a_secret_among_its_arguments():
    """Every user of the machine can see them. The examples with curl had the token there."""
    for block in blocks():
        if block.language != "sh":
            continue
        for line in block.text.splitlines():
            if not re.match(r"\(umask 077 && echo ", line):
                assert not SECRET_ARGUMENT.search(line), f"{block.page}:{block.line}: {line}"
