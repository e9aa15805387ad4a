"""The files of the original service, as their operators have them, and the mistakes that are made in them."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import make_url

from bridge.errors import ConfigError
from bridge.service.advice import advice
from bridge.service.config_files import ABBY, GUARD, Loaded, closest, load
from tests.rewriting import rewrite
from tests.service.service_kit import DEADLINE_S, TOKEN, ServiceProcess, mail, until, wait_for

# As the interface description says to write them, with values where it has placeholders.
DOCUMENTED_GUARD = """\
scanSources:
  restApi: {}
mainWorkerCount: 20
maxGuardRequestsInProcessing: 20
guardRequestThrottleThreshold: 20
"""
DOCUMENTED_ABBY = f"""\
serviceProviders:
  core:
    hosts: []
    longRequestTimeout: 3600000
staticApiTokens:
  - name: bridge
    token: {TOKEN}
"""
BOMB = "b0: &b0 [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 9))
LISTEN = "listen: 127.0.0.1:0\n"


def write(
    directory: Path, guard: str | bytes | None = DOCUMENTED_GUARD, abby: str | bytes | None = DOCUMENTED_ABBY
) -> Path:
    for name, text in ((GUARD, guard), (ABBY, abby)):
        if text is not None:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


def mistakes(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)


def warnings(loaded: Loaded) -> str:
    return "\n".join(advice(loaded))


class Started(ServiceProcess):
    """`scanbridge service -c PATH`."""

    def __init__(self, path: Path) -> None:
        self.directory = path
        self.config = load(path).config
        self._start(path.parent, "service", "-c", path.name)

    def __enter__(self) -> Started:
        self.wait()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self.end() == 0


def test_the_documented_files_run_as_they_are(tmp_path):
    """`-c DIR` with both files: a mail is scanned, and the start complains about nothing."""
    directory = write(tmp_path / "config")
    (directory / "service.yml").write_text(LISTEN)
    with Started(directory) as service:
        assert service.submit(mail()).json["decision"] == "deliver"
        assert service.request("GET", "/readyz").status == 200
        assert "WARNING" not in service.log()


def test_a_service_without_rest_api_says_so_and_is_not_ready(tmp_path):
    directory = write(tmp_path / "config", guard="mainWorkerCount: 3\n")
    (directory / "service.yml").write_text(LISTEN)
    with Started(directory) as service:
        assert service.submit(mail()).status == 403
        ready = service.request("GET", "/readyz")
        assert (ready.status, "scanning is disabled" in ready.json["message"]) == (503, True)
        assert service.status().json == {"messageQueueStatus": "RED"}
        until(lambda: f"{GUARD}:1: scanSources: scanning is disabled" in service.log(), "the warning", DEADLINE_S)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [("[]", "no token is configured"), (f"[{{name: bridge, token: {TOKEN}, permissions: [submitEmail]}}]", "`scan`")],
    ids=["no token", "a permission of another service"],
)
def test_a_service_whose_tokens_cannot_scan_was_called_ready(tmp_path, tokens, said):
    """Every scan was refused, and a load balancer went on sending them here."""
    directory = write(tmp_path / "config", abby=DOCUMENTED_ABBY.partition("staticApiTokens")[0])
    with (directory / ABBY).open("a") as abby:
        abby.write(f"staticApiTokens: {tokens}\n")
    (directory / "service.yml").write_text(LISTEN)
    assert said in warnings(load(directory)) and "/readyz fails" in warnings(load(directory))
    with Started(directory) as service:
        assert service.submit(mail()).status in (401, 403)
        ready = service.request("GET", "/readyz")
        assert (ready.status, "scanning is disabled" in ready.json["message"]) == (503, True)


def has_failed(service: Started, before: int) -> bool:
    return "reload failed, keeping the old configuration" in service.log()[before:]


@pytest.mark.parametrize("name", [GUARD, ABBY, Path("service.yml")])
def test_a_file_that_is_gone_or_empty_at_a_reload_changes_nothing(tmp_path, name):
    """Scanning goes on with the old configuration, which a restored file then replaces."""
    directory = write(tmp_path / "config")
    (directory / "service.yml").write_text(LISTEN)
    file = directory / name
    text = file.read_text()
    with Started(directory) as service:
        breaks = [(file.unlink, f"{name}: this file is now missing"), (lambda: rewrite(file, "# later\n"), str(name))]
        for break_it, said in breaks:
            before = len(service.log())
            break_it()
            service.process.send_signal(signal.SIGHUP)
            wait_for(partial(has_failed, service, before))
            assert said in service.log()[before:]
            assert service.submit(mail()).json["decision"] == "deliver"
            assert service.request("GET", "/readyz").status == 200
            assert service.status().json == {"messageQueueStatus": "GREEN"}
        rewrite(file, text)
        service.process.send_signal(signal.SIGHUP)
        until(lambda: "reload succeeded" in service.log(), "the reload", DEADLINE_S)


def test_each_form_means_the_same(tmp_path):
    """The directory, a link to it, each file alone, both in one file, and under another name."""
    directory = write(tmp_path / "config")
    (tmp_path / "link").symlink_to(directory)
    merged = tmp_path / "merged.yml"
    indented = ["".join(f"  {line}\n" for line in text.splitlines()) for text in (DOCUMENTED_GUARD, DOCUMENTED_ABBY)]
    merged.write_text(f"guard:\n{indented[0]}abby:\n{indented[1]}")
    whole = load(directory).config
    assert whole.guard.scanSources.restApi == {} and whole.abby.staticApiTokens[0].secrets == [TOKEN]
    for path in (tmp_path / "link", merged):
        assert load(path).config.model_dump() == whole.model_dump()
    for name in ("guard.yml", "GUARD.YAML", "core.yml"):
        (tmp_path / name).write_text(DOCUMENTED_GUARD)
        loaded = load(tmp_path / name)
        assert loaded.config.guard == whole.guard
        assert "no token is configured" in warnings(loaded)
    for name in ("abby.yml", "api.yml"):
        (tmp_path / name).write_text(DOCUMENTED_ABBY)
        loaded = load(tmp_path / name)
        assert loaded.config.abby.staticApiTokens[0].secrets == [TOKEN]
        assert "scanning is disabled" in warnings(loaded)
    (directory / GUARD).unlink()
    assert "scanning is disabled" in warnings(load(directory))


def test_a_directory_without_the_files_names_them(tmp_path):
    """And the right directory, if it is close."""
    assert f"none of {GUARD}, {ABBY} and service.yml" in mistakes(tmp_path)
    write(tmp_path / "config")
    for near in (tmp_path, tmp_path / "config" / "guard", tmp_path / "config" / "abby" / "abby"):
        assert mistakes(near).endswith(f"; use -c {tmp_path / 'config'}")


def test_a_section_in_two_files_is_refused(tmp_path):
    directory = write(tmp_path)
    (directory / "service.yml").write_text(LISTEN + "guard: {mainWorkerCount: 3}\n")
    assert "service.yml:2: guard: this section is in two files; delete one of them" in mistakes(directory)


def test_files_named_in_abby_are_relative_to_it(tmp_path):
    abby = DOCUMENTED_ABBY.replace(f"token: {TOKEN}", "token_file: token").replace(
        "hosts: []", "hosts: ['http://127.0.0.1:9785']\n    caFile: ca.pem"
    )
    directory = write(tmp_path, abby=abby)
    (directory / ABBY.parent / "token").write_text(f"{TOKEN}\n")
    config = load(directory).config
    assert config.abby.staticApiTokens[0].secrets == [TOKEN]
    assert config.abby.serviceProviders.core.ca_path == str(directory / ABBY.parent / "ca.pem")
    assert config.database_url == f"sqlite:///{directory / 'service.sqlite'}"


def test_keys_that_we_do_not_use_are_named_once_each(tmp_path):
    """Wherever they are, with file and line; what is below them is not listed."""
    guard = DOCUMENTED_GUARD.replace("  restApi: {}", "  restApi: {pool: 3}\n  smtp: {port: 25, tls: {a: 1}}")
    abby = DOCUMENTED_ABBY.replace("    hosts: []", "    hosts: []\n    shortRequestTimeout: 5000")
    directory = write(tmp_path, guard + "mailLoopLimit: 5\n", abby + "    comment: x\nweb: {port: 1}\n")
    ignored = [line for line in load(directory).warnings if "does not use" in line]
    assert [line.removeprefix(f"{directory}/").partition(": scanbridge")[0] for line in ignored] == [
        f"{GUARD}:2: scanSources.restApi.pool",
        f"{GUARD}:3: scanSources.smtp",
        f"{GUARD}:7: mailLoopLimit",
        f"{ABBY}:4: serviceProviders.core.shortRequestTimeout",
        f"{ABBY}:9: staticApiTokens.0.comment",
        f"{ABBY}:10: web",
    ]
    assert load(directory).config.guard.scanSources.restApi == {}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("scanSource:", "scanSources"),
        ("scan_sources:", "scanSources"),
        ("ScanSources:", "scanSources"),
        ("mainWorkersCount: 3", "mainWorkerCount"),
        ("maxGuardRequestInProcessing: 3", "maxGuardRequestsInProcessing"),
        ("guardRequestThrottleTreshold: 3", "guardRequestThrottleThreshold"),
    ],
)
def test_a_misspelled_key_is_refused_with_the_right_one(tmp_path, given, meant):
    directory = write(tmp_path, f"scanSources: {{restApi: {{}}}}\n{given}\n")
    assert f"guard.yml:2: {given.partition(':')[0]}: unknown key; did you mean {meant}?" in mistakes(directory)


def test_misspelled_keys_elsewhere(tmp_path):
    abby = "serviceProvider: {}\nserviceProviders: {core: {host: []}}\nstaticApiTokens: [{name: a, tokens: [x]}]\n"
    found = mistakes(write(tmp_path, abby=abby))
    for text in ("did you mean serviceProviders?", "did you mean hosts?", "did you mean token?"):
        assert text in found
    (tmp_path / "service.yml").write_text("gaurd: {}\n")
    assert "service.yml:1: gaurd: unknown key; did you mean guard?" in mistakes(tmp_path / "service.yml")
    (tmp_path / "service.yml").write_text("lisen: 127.0.0.1:0\nscanSources: {restApi: {}}\n")
    found = mistakes(tmp_path / "service.yml")
    assert "service.yml:1: lisen: unknown key; did you mean listen?" in found
    assert "service.yml:2: scanSources: this key belongs below `guard:`" in found
    assert "this key belongs below `scanSources:`" in mistakes(write(tmp_path / "x", "restApi: {}\n"))


@pytest.mark.parametrize("word", ["shortRequestTimeout", "requestTimeout", "guardWorkerCount", "port", "ports", "cors"])
def test_other_keys_are_not_taken_for_misspelled_ones(word):
    """A key of the original must not prevent the start because it resembles one of ours from afar."""
    assert not closest(word, ["longRequestTimeout", "mainWorkerCount", "hosts", "scanSources", "restApi"])


@pytest.mark.parametrize(
    "text",
    [
        "scanSources:\n  restApi {}\n",
        "scanSources:\n  smtp: {}\n  restApi {}\n",
        "scanSources:\n  restApi {}\n  smtp: {}\n",
        "scanSources:\n  restApi {}\nmainWorkerCount: 20\n",
        "scanSources: {restApi {}}\n",
        "scanSources:\n  - restApi {}\n",
        "scanSources:\n  - restApi: {}\n",
        "scanSources: restApi\n",
        "scanSources { restApi {} }\n",
    ],
)
def test_rest_api_without_a_colon_gets_a_hint(tmp_path, text):
    """The description of the original writes `restApi {}`."""
    assert "write `restApi: {}`, with a colon" in mistakes(write(tmp_path, text))


@pytest.mark.parametrize("text", ["restApi:", "restApi: null", "restApi: ~", "restApi: {}", "restApi: # comment"])
def test_rest_api_without_a_value_is_present(tmp_path, text):
    assert load(write(tmp_path, f"scanSources:\n  {text}\n")).config.guard.scanSources.restApi == {}


@pytest.mark.parametrize(
    "abby",
    [
        "{}",
        "staticApiTokens: []",
        "serviceProviders: {}",
        "serviceProviders:",
        "serviceProviders: {web: {}}",
        "",
        "# x",
    ],
)
def test_core_is_required(tmp_path, abby):
    """In the documented file and in ours."""
    assert "serviceProviders: this key is required, with an entry `core`" in mistakes(write(tmp_path, abby=abby))
    (tmp_path / "own.yml").write_text("abby:\n" + "".join(f"  {line}\n" for line in abby.splitlines()))
    assert "abby.serviceProviders: this key is required" in mistakes(tmp_path / "own.yml")


@pytest.mark.parametrize("core", ["{}", "", "{hosts: []}", "{hosts: }", "{longRequestTimeout: '3600000'}"])
def test_a_core_without_hosts_is_this_process(tmp_path, core):
    abby = f"serviceProviders:\n  core: {core}\nstaticApiTokens:\n"
    assert load(write(tmp_path, abby=abby)).config.abby.serviceProviders.core.hosts == []


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("https://{mta_host}:9785", "contains a placeholder"),
        ("https://{{ mta_host }}:9785", "contains a placeholder"),
        ("https://mta1}.example.org:9785", "contains a placeholder"),
        ("https://%7Bmta_host%7D:9785", "contains a placeholder"),
        ("https://<mta_host>:9785", "contains a placeholder"),
        ("https://$MTA_HOST:9785", "contains a placeholder"),
        ("mta1.example.org:9785", "a core host must be given as https://host:9785"),
        ("http://mta1.example.org:9785", "a core host must be given as https://host:9785"),
        ("https://mta1.example.org:9785", "cannot read this service's SQLite file"),
        ("http://127.0.0.1:9081", "the address at which this service listens"),
        ("http://localhost:9081/", "the address at which this service listens"),
    ],
)
def test_hosts_that_cannot_work_are_refused(tmp_path, host, said):
    directory = write(tmp_path, abby=DOCUMENTED_ABBY.replace("[]", f"['{host}']"))
    found = mistakes(directory)
    assert found.startswith(f"{directory / ABBY}:3: serviceProviders.core.hosts: ")
    assert said in found


def test_a_placeholder_that_is_not_yaml_is_named_too(tmp_path):
    """In a flow sequence, a brace ends the text before it."""
    directory = write(tmp_path, abby=DOCUMENTED_ABBY.replace("[]", "[https://{mta_host}:9785]"))
    assert f"{directory / ABBY}:3: a core host contains a placeholder" in mistakes(directory)


def test_nodes_on_other_machines_may_share_a_server(tmp_path):
    directory = write(tmp_path, abby=DOCUMENTED_ABBY.replace("[]", "['https://mta1.example.org:9785']"))
    (directory / "service.yml").write_text("database: postgresql://scan@db.example.org/scan\n")
    assert load(directory).config.abby.serviceProviders.core.remote_hosts == ["https://mta1.example.org:9785"]


@pytest.mark.parametrize("url", ["postgresql://scan:pass@sesame@db/scan", "postgresql://scan:a/b@sesame@db:1/scan"])
def test_an_unescaped_password_is_not_taken_for_a_host(tmp_path, url):
    """What follows the first @ of a password was quoted: failed to resolve host 'sesame@db'."""
    directory = write(tmp_path)
    (directory / "service.yml").write_text(f"database: {url}\n")
    found = mistakes(directory)
    assert "write %40 for each @" in found and "sesame" not in found
    (directory / "service.yml").write_text("database: postgresql://scan:pass%40sesame@db/scan?options=-csearch_path\n")
    assert load(directory).config.database_url.startswith("postgresql")


def test_unknown_permissions_are_a_warning_and_allow_nothing(tmp_path):
    """With a table of ours. They must not become an empty list, which allows everything."""
    abby = DOCUMENTED_ABBY + "    permissions: [messageQueue.submit, scann]\n"
    loaded = load(write(tmp_path, abby=abby))
    found = warnings(loaded)
    assert "abby.yml:8: staticApiTokens.0.permissions: unknown permission 'messageQueue.submit'" in found
    assert "unknown permission 'scann', which allows nothing; did you mean scan?" in found
    assert "the token of bridge is not allowed to do anything" in found
    for name in ("scan", "status", "metrics"):
        assert f"known permission {name}: " in found
    assert loaded.config.abby.staticApiTokens[0].permissions
    assert "unknown permission" not in warnings(load(write(tmp_path, abby=DOCUMENTED_ABBY + "    permissions:\n")))


def test_a_misspelled_signal_is_a_warning(tmp_path):
    tags = "url:lookalike, url:lookalkie, html:button, x:y, context:list"
    ours = f"{LISTEN}analyzers:\n  phishing:\n    ignore: [{', '.join(map(repr, tags.split(', ')))}]\n"
    (write(tmp_path) / "service.yml").write_text(ours)
    text = warnings(load(tmp_path))
    assert "service.yml:4: analyzers.phishing.ignore.1: no signal has the tag 'url:lookalkie'" in text
    assert "did you mean url:lookalike?" in text
    assert "no signal has the tag 'x:y'; `scanbridge service explain FILE` shows" in text
    assert "no signal has the tag 'context:list'" in text
    assert text.count("no signal") == 3


def test_an_empty_list_of_permissions_is_a_warning(tmp_path):
    """It allows everything, as in the original, whose default it is; who writes it may mean nothing."""
    abby = DOCUMENTED_ABBY + "    permissions: []\n"
    found = warnings(load(write(tmp_path, abby=abby)))
    assert (
        "abby.yml:8: staticApiTokens.0.permissions: the list is empty, so the token of bridge may do everything"
        in found
    )
    assert "known permission scan: " in found
    assert "the list is empty" not in warnings(load(write(tmp_path, abby=DOCUMENTED_ABBY)))


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (DOCUMENTED_GUARD.replace("\n", "\r\n"), ""),
        (b"\xef\xbb\xbf" + DOCUMENTED_GUARD.encode(), ""),
        (DOCUMENTED_GUARD.replace("20", "'20'"), ""),
        (DOCUMENTED_GUARD.replace("  restApi", "\trestApi"), "guard.yml:2: not YAML: "),
        (DOCUMENTED_GUARD + "mainWorkerCount: 3\n", "guard.yml:6: mainWorkerCount: this key appears twice"),
        (DOCUMENTED_GUARD.replace("20", "many"), "guard.yml:3: mainWorkerCount: "),
        (DOCUMENTED_GUARD.replace("20", "[20]"), "guard.yml:3: mainWorkerCount: "),
        ("- a\n", "guard.yml:1: the file: expected keys and values"),
        ("scanSources: {restApi: true}\n", "guard.yml:1: scanSources.restApi: expected keys and values"),
        (BOMB, "too many values"),
        ("a: &a {b: *a}\n", "an alias must not contain itself"),
        (b"\xff\xfe", "cannot be read: not UTF-8 text"),
    ],
)
def test_what_files_contain(tmp_path, guard, said):
    """All mistakes of both files at once, each with its file and line."""
    directory = write(tmp_path, guard, DOCUMENTED_ABBY.replace("3600000", "soon") if said else DOCUMENTED_ABBY)
    if not said:
        assert load(directory).config.guard.mainWorkerCount == 20
        return
    found = mistakes(directory)
    assert said in found
    assert "abby.yml:4: serviceProviders.core.longRequestTimeout" in found


def test_unreadable_files_are_named(tmp_path):
    """A directory in place of a file, and a broken link."""
    directory = write(tmp_path, guard=None)
    (directory / GUARD).mkdir(parents=True)
    assert f"{directory / GUARD}: cannot be read: Is a directory" in mistakes(directory)
    (directory / GUARD).rmdir()
    (directory / GUARD).symlink_to("absent")
    assert f"{directory / GUARD}: cannot be read: No such file or directory" in mistakes(directory)


def test_several_tokens_of_one_name(tmp_path):
    """A list, a file with lines, a list of files; a repeated token is one, and two names do not share one."""
    new = "fedcba9876543210" * 4
    (tmp_path / "both").write_text(f"\n{TOKEN}\r\n\n{new}\n")
    (tmp_path / "one").write_text(TOKEN)
    (tmp_path / "two").write_text(new + "\n")
    (tmp_path / "empty").write_text("\n \n")
    start = "abby:\n  serviceProviders: {core: {}}\n  staticApiTokens:\n"

    def tokens(entry: str) -> list[str]:
        (tmp_path / "service.yml").write_text(f"{start}    - {{name: a, {entry}}}\n")
        return load(tmp_path / "service.yml").config.abby.staticApiTokens[0].secrets

    for entry in (f"token: [{TOKEN}, {new}]", "token_file: both", "token_file: [one, two]", "token_file: [both, two]"):
        assert tokens(entry) == [TOKEN, new]
    for entry, said in (
        ("token_file: empty", "token_file empty is empty"),
        ("token_file: [one, absent]", "cannot read token_file absent: No such file"),
        (f"token: {TOKEN}, token_file: one", "set either token or token_file"),
        ("token: []", "set either token or token_file"),
        ("token: [short, 'with space']", "printable characters without spaces"),
    ):
        with pytest.raises(ConfigError, match=said):
            tokens(entry)
    (tmp_path / "service.yml").write_text(
        f"{start}    - {{name: a, token_file: both}}\n    - {{name: b, token: {new}}}\n"
    )
    assert "a and b have the same token" in mistakes(tmp_path / "service.yml")
    assert new not in mistakes(tmp_path / "service.yml")


def with_password(directory: Path, database: str, password: bytes | None = b"secret\n") -> Path:
    if password is not None:
        (directory / "database-password").write_bytes(password)
    path = directory / "service.yml"
    path.write_text(f"guard: {{}}\ndatabase: {database}\ndatabase_password_file: database-password\n")
    return path


def test_the_databases_password_is_read_from_a_file(tmp_path: Path) -> None:
    """libpq ignores a password file that a group can read, as secrets of Kubernetes and credentials of systemd are."""
    path = with_password(tmp_path, "postgresql://scan@db.example.org/scan?sslmode=require", b"a@b:c/%d \xc3\xbc\n")
    (tmp_path / "database-password").chmod(0o440)
    config = load(path).config
    url = make_url(config.database_url)
    assert (url.password, url.host, url.query) == ("a@b:c/%d \u00fc", "db.example.org", {"sslmode": "require"})
    assert "a@b" not in repr(config) and "a@b" not in config.model_dump_json()


@pytest.mark.parametrize(
    ("database", "password", "says"),
    [
        (
            "postgresql://scan@db.example.org/scan",
            None,
            "cannot read database_password_file database-password: No such file",
        ),
        ("postgresql://scan@db.example.org/scan", b"\n", "database-password is empty"),
        ("postgresql://scan@db.example.org/scan", b"\xff", "not UTF-8 text"),
        ("postgresql://scan:x@db.example.org/scan", b"secret", "already contains a password"),
        ("postgresql://scan@db.example.org/scan?password=x", b"secret", "already contains a password"),
        ("postgresql://db.example.org/scan", b"secret", "needs a PostgreSQL URL with a user name"),
        ("sqlite:///service.sqlite", b"secret", "needs a PostgreSQL URL with a user name"),
    ],
)
def test_a_password_that_cannot_be_used_is_a_mistake(
    tmp_path: Path, database: str, password: bytes | None, says: str
) -> None:
    """Not a failure to connect, later."""
    said = mistakes(with_password(tmp_path, database, password))
    assert says in said and "secret" not in said
