"""Several services with one database: while one is unavailable, lists are read and changed at another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.lists import ListClient, ListEntry, ListSettings, ListsForbidden, ListsUnavailable, RetrySettings
from bridge.testing import free_port
from tests.lists.lists_kit import QUICK, Service, http, misbehaving, running_service

BROKEN = {
    "refused": None,
    "overloaded": http(503, {"error": "busy"}, "Retry-After: 600"),
    "broken": http(500, {}),
    "cut off": b"<cut>",
}


def some(count: int) -> list[ListEntry]:
    return [ListEntry(f"user{number:06}@example.org") for number in range(count)]


@pytest.mark.parametrize("problem", BROKEN)
async def test_list_changes_had_no_second_service(service: Service, tmp_path: Path, problem: str) -> None:
    """Also thousands of entries, in parallel requests; each is asked of the first service at most once."""
    with misbehaving(tmp_path, lambda _: BROKEN[problem] or b"") as first:
        if problem == "refused":
            first.close()
        moves: list[str] = []
        settings = service.settings(
            other_urls=(service.url,), retry=QUICK, on_fail_over=lambda exc, url: moves.append(url)
        )
        async with ListClient(_with_url(settings, first.url)) as client:
            tally = await client.add("large", some(3000))
            assert tally.modified == 3000
            assert (await client.delete("large", ["user000001@example.org"])).modified == 1
            found = [entry.entry async for entry in client.entries("large")]
    assert len(found) == 2999 and moves == [service.url]
    assert len(first.seen) <= settings.parallel


async def test_the_first_service_is_used_again_when_the_second_fails(tmp_path: Path) -> None:
    """A request ends only when no service has answered it within the patience."""
    down = f"http://127.0.0.1:{free_port()}"
    answers = iter([http(503), http(503), http(200, {"modifiedEntries": 1})])
    with misbehaving(tmp_path, lambda _: next(answers)) as server:
        async with ListClient(server.settings(other_urls=(down,))) as client:
            assert (await client.add("large", some(1))).modified == 1
    settings = server.settings(other_urls=(down,), retry=RetrySettings(0.05, 0.01, 0.01))
    async with ListClient(settings) as client:
        with pytest.raises(ListsUnavailable, match="cannot be reached"):
            await asyncio.wait_for(client.lists(), 60)


async def test_a_service_with_another_database_changes_nothing(service: Service, tmp_path: Path) -> None:
    """The key is in the database: where it is unknown, the change is refused."""
    with running_service(tmp_path) as other:
        settings = _with_url(service.settings(other_urls=(other.url,)), f"http://127.0.0.1:{free_port()}")
        async with ListClient(settings) as client:
            with pytest.raises(ListsForbidden):
                await client.add("large", some(1))
        assert other.entries("large") == {}


def _with_url(settings: ListSettings, url: str) -> ListSettings:
    return replace(settings, url=url)


class Place:
    def __init__(self, directory: Path, service: Service, **lists: Any) -> None:
        self.config = directory / "bridge.yml"
        rest = "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}\n"
        rest += f"listeners: [{{name: m, protocol: milter, address: '127.0.0.1:{free_port()}'}}]\n"
        rest += f"admin: {{address: '127.0.0.1:{free_port()}'}}\nstate_directory: {directory / 'state'}\n"
        keys = {"api_key_file": str(service.key_file), **lists}
        self.config.write_text(rest + f"lists: {keys}\n")

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-c", str(self.config)])


def test_the_command_uses_the_other_service_and_says_so(service: Service, tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    place = Place(tmp_path, service, url=down, other_urls=[service.url])
    done = place.run("lists", "add", "large", "a@x.example")
    assert done.exit_code == 0 and service.entries("large") == {"a@x.example": ""}, done.output
    assert done.stderr == f"{down} cannot be reached: Connection refused; using {service.url}\n"
    alone = place.run("lists", "show", "--url", down, "--patience", "10ms")
    assert alone.exit_code == 75 and service.url not in alone.stderr, alone.stderr


def test_check_tests_the_key_at_every_service(service: Service, tmp_path: Path) -> None:
    """One that is down, and one with another database, would be noticed only when it is needed."""
    with running_service(tmp_path) as other:
        down = f"http://127.0.0.1:{free_port()}"
        place = Place(tmp_path, service, url=service.url, other_urls=[down, other.url])
        said = place.run("check", "-v").stdout
    assert f"lists {service.url}: ok (the API key is accepted)\n" in said
    place_of = {url: f"lists {url}: PROBLEM: {place.config}:5: lists.other_urls" for url in (down, other.url)}
    problem = f"{down} cannot be reached: Connection refused; is the service running? check its address\n"
    assert f"{place_of[down]}.0: {problem}" in said
    assert f"{place_of[other.url]}.1: the service refuses the API key" in said


@pytest.mark.parametrize(
    ("others", "words"), [(["http://127.0.0.1:1"], "appears twice"), (["http://192.0.2.1"], "unencrypted")]
)
def test_other_addresses_are_checked_like_the_first(
    service: Service, tmp_path: Path, others: list[str], words: str
) -> None:
    done = Place(tmp_path, service, url="http://127.0.0.1:1", other_urls=others).run("lists", "show")
    assert done.exit_code == 78 and "lists.other_urls" in done.stderr and words in done.stderr, done.stderr
