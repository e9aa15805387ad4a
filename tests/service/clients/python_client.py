"""requests or httpx2: the first argument names the library, the others are base URLs."""

from __future__ import annotations

import importlib
import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIST = "blocked-senders"
PARAMETERS = {"borderMtaData": {"envelopeFrom": "a@example.org", "envelopeRecipients": ["b@example.net"]}}
ENTRIES = [f"user{number}@example.org" for number in range(500)]
BOUNDARY = "a boundary'()+_,-./:=?"


def form() -> dict[str, Any]:
    """The library writes the form."""
    mail = ("größe.eml", Path(os.environ["MAIL"]).read_bytes(), "message/rfc822")
    return {"files": {"parameters": (None, json.dumps(PARAMETERS), "application/json"), "email": mail}}


def chunks() -> dict[str, Any]:
    """A form of unknown length, with a boundary in quotes."""

    def pieces() -> Iterator[bytes]:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="email"\r\n\r\n'.encode()
        yield Path(os.environ["MAIL"]).read_bytes()
        yield f'\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name="parameters"\r\n'.encode()
        yield f"Content-Type: application/json\r\n\r\n{json.dumps(PARAMETERS)}\r\n--{BOUNDARY}--".encode()

    name = "data" if sys.argv[1] == "requests" else "content"
    return {name: pieces(), "headers": {"Content-Type": f'multipart/form-data; boundary="{BOUNDARY}"'}}


def client() -> Any:
    library = importlib.import_module(sys.argv[1])
    if sys.argv[1] == "requests":
        made = library.Session()
        made.verify = os.environ["CA"]
        return made
    return library.Client(verify=ssl.create_default_context(cafile=os.environ["CA"]))


def is_ours(info: dict[str, Any]) -> bool:
    return bool(info["listInfo"]["displayName"] == "Blocked senders")


def use(http: Any, url: str, way: Callable[[], dict[str, Any]]) -> None:
    def submit(token: str) -> Any:
        request = way()
        headers = {**request.pop("headers", {}), "Authorization": f"Bearer {token}"}
        return http.post(f"{url}/v1/messageQueue/submitEmail", headers=headers, **request)

    def lists(operation: str, **body: Any) -> Any:
        headers = {"Authorization": f"apikey {os.environ['KEY']}"}
        path = f"{url}/api/public/lists/v1/{operation}"
        return http.post(path, headers=headers, json=body)

    def say(name: str, answer: Any, field: str) -> None:
        print(name, answer.status_code, answer.json()[field])

    say("submit", submit(os.environ["TOKEN"]), "decision")
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    say("status", http.post(f"{url}/v1/admin/status", headers=headers), "messageQueueStatus")
    answer = lists("getLists")
    print("lists", answer.status_code, *(info["listName"] for info in answer.json()["listFileInfos"] if is_ours(info)))
    added = [{"entry": entry, "comment": "größe"} for entry in ENTRIES]
    say("add", lists("addEntries", listName=LIST, entries=added), "modifiedEntries")
    answer = lists("listEntries", listName=LIST)
    print("download", answer.status_code, len([json.loads(line) for line in answer.iter_lines()]))
    say("delete", lists("deleteEntries", listName=LIST, entries=ENTRIES), "modifiedEntries")
    say("wrong", submit("wrong"), "error")


for base in sys.argv[2:]:
    for each in (form, chunks):
        with client() as opened:
            use(opened, base, each)
