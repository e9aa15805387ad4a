"""The OpenAPI 3.1 description of both interfaces, and a page to read it.

Built from the constants the code itself uses, so limits and paths cannot differ from it.
`python -m bridge.service.openapi` prints the document that ships as docs/openapi.json. The page is
plain HTML made here: it loads nothing from anywhere.
"""

from __future__ import annotations

import json
import sys
from html import escape
from typing import Any

from bridge.api.lists import ADD_PATH, DELETE_PATH, GET_LISTS_PATH, LIST_ENTRIES_PATH, MAX_ENTRIES_PER_REQUEST, NDJSON
from bridge.api.scanning import MAX_MESSAGE_BYTES, STATUS_PATH, SUBMIT_PATH, Decision, QueueStatus
from bridge.matching.spelling import MAX_COMMENT, MAX_ENTRY

Json = dict[str, Any]

# Every value of `error`, with the status it comes with. Stable: a client may switch on them.
ERRORS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request is not valid HTTP."),
    "invalid_multipart": (400, "The body of submitEmail is not well-formed multipart/form-data."),
    "missing_part": (400, "`parameters` or `email` is missing."),
    "duplicate_part": (400, "`parameters` or `email` is there twice."),
    "invalid_parameters": (400, "`parameters` is not a MessageAnalysisRequest."),
    "parameters_too_large": (400, "`parameters` is over 1 MiB."),
    "invalid_request": (400, "The body of a List API call is not what the operation takes."),
    "too_many_entries": (400, f"More than {MAX_ENTRIES_PER_REQUEST} entries in one request."),
    "unauthorized": (401, "No credentials, the wrong scheme, or unknown ones."),
    "forbidden": (403, "The token lacks the permission."),
    "scan_source_disabled": (403, "guard.scanSources.restApi is not configured."),
    "not_found": (404, "There is no such path."),
    "list_not_found": (404, "There is no list of this name."),
    "method_not_allowed": (405, "The path takes another method."),
    "upload_timeout": (408, "The upload stopped or is too slow."),
    "invalid_entry": (409, "An entry is none for a list of this category: it could never match."),
    "list_full": (409, "The addition would exceed the list's maxSize; nothing was added."),
    "payload_too_large": (413, "The e-mail is over 50 MiB, or the List API request over 8 MiB."),
    "not_multipart": (415, "submitEmail takes multipart/form-data."),
    "parameters_not_json": (415, "The part `parameters` must say that it is application/json."),
    "not_json": (415, "The List API takes application/json."),
    "head_too_large": (431, "The request's head is over 64 KiB."),
    "internal": (500, "An error of the service."),
    "core_unavailable": (502, "No core node answered (serviceProviders.core.hosts)."),
    "saturated": (503, "maxGuardRequestsInProcessing is reached; see Retry-After."),
    "storage_unavailable": (503, "The lists cannot be reached now, or not yet; see Retry-After."),
    "not_ready": (503, "/readyz: not ready to serve."),
    "analysis_timeout": (504, "The analysis took longer than longRequestTimeout."),
    "storage_full": (507, "The mail cannot be stored for the analysis."),
}


def document() -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message Scanning and List Management",
            "version": "1.1.0",
            "summary": "Scan a mail, manage lists.",
            "description": "The Email Scanning API takes a raw mail over HTTP and answers with a decision. "
            "The List API manages lists of one tenant, or of the deployment when `tenantUid` is absent.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            SUBMIT_PATH: {"post": _submit()},
            STATUS_PATH: {"post": _status()},
            ADD_PATH: {"post": _add()},
            DELETE_PATH: {"post": _delete()},
            GET_LISTS_PATH: {"post": _get_lists()},
            LIST_ENTRIES_PATH: {"post": _list_entries()},
            "/livez": {"get": _health("livez", "Whether the process lives.")},
            "/readyz": {"get": _health("readyz", "Whether a scan sent now would be served.", 503)},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `abby.staticApiTokens`."},
                "apikey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`apikey <API_KEY>`, made by `scanbridge service apikey create`.",
                },
            },
            "schemas": _schemas(),
        },
    }


def _submit() -> Json:
    form = {
        "type": "object",
        "required": ["parameters", "email"],
        "properties": {
            "parameters": _ref("MessageAnalysisRequest"),
            "email": {
                "type": "string",
                "format": "binary",
                "description": f"The raw mail, at most {MAX_MESSAGE_BYTES} bytes.",
            },
        },
    }
    encoding = {"parameters": {"contentType": "application/json"}, "email": {"contentType": "application/octet-stream"}}
    return {
        "operationId": "submitEmail",
        "tags": ["Email Scanning API"],
        "summary": "Submit a mail and wait for its analysis.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form, "encoding": encoding}}},
        "responses": _responses(
            _json_answer("The analysis.", "MessageAnalysisResult"), 400, 401, 403, 408, 413, 415, 502, 503, 504, 507
        ),
    }


def _status() -> Json:
    return {
        "operationId": "status",
        "tags": ["Email Scanning API"],
        "summary": "The state of the analysis queue.",
        "security": [{"token": []}],
        "responses": _responses(_json_answer("The status.", "SystemStatus"), 401, 403),
    }


def _list_operation(name: str, summary: str, body: Json, success: Json, *statuses: int) -> Json:
    return {
        "operationId": name,
        "tags": ["List API"],
        "summary": summary,
        "security": [{"apikey": []}],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": _responses(success, 400, 401, 408, 413, 415, 503, *statuses),
    }


def _add() -> Json:
    entry = {"type": "array", "maxItems": MAX_ENTRIES_PER_REQUEST, "items": _ref("ListEntry")}
    body = _body(["listName", "entries"], {"listName": _ref("ListName"), "entries": entry, "tenantUid": _ref("Tenant")})
    success = _json_answer("How many were added or updated.", "ModifiedEntries")
    return _list_operation("addEntries", "Add or update entries.", body, success, 404, 409)


def _delete() -> Json:
    entry = {"type": "array", "maxItems": MAX_ENTRIES_PER_REQUEST, "items": {"type": "string"}}
    body = _body(["listName", "entries"], {"listName": _ref("ListName"), "entries": entry, "tenantUid": _ref("Tenant")})
    success = _json_answer("How many were deleted.", "ModifiedEntries")
    return _list_operation("deleteEntries", "Delete entries; absent ones are ignored.", body, success, 404)


def _get_lists() -> Json:
    success = _json_answer("All lists of the scope.", "Lists")
    return _list_operation("getLists", "The lists of a scope.", _body([], {"tenantUid": _ref("Tenant")}), success)


def _list_entries() -> Json:
    body = _body(["listName"], {"listName": _ref("ListName"), "tenantUid": _ref("Tenant")})
    stream = {"description": "One JSON object per line (PublicListsEntry).", "content": {NDJSON: {}}}
    return _list_operation("listEntries", "All entries of one list, as a stream.", body, stream, 404)


def _health(name: str, summary: str, *statuses: int) -> Json:
    success = _json_answer("Yes.", "Health")
    return {"operationId": name, "tags": ["Operation"], "summary": summary, "responses": _responses(success, *statuses)}


def _metrics() -> Json:
    text = {"description": "Prometheus text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "operationId": "metrics",
        "tags": ["Operation"],
        "summary": "Metrics; from other machines with a token that has the permission `metrics`.",
        "security": [{}, {"token": []}],
        "responses": _responses(text, 401, 403),
    }


_TEXT: Json = {"type": "string"}


def _schemas() -> Json:
    return {
        **_scanning_schemas(),
        **_list_schemas(),
        "Error": _object(["error"], {"error": {"type": "string", "enum": sorted(ERRORS)}, "message": _TEXT}),
        "Health": _object(["status"], {"status": _TEXT}),
    }


def _scanning_schemas() -> Json:
    address = {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}, {"type": "null"}]}
    border = {
        "envelopeFrom": {"type": "string", "description": "Empty for the null sender."},
        "envelopeRecipients": {"type": "array", "minItems": 1, "items": _TEXT},
        "remoteAddress": {**address, "description": "IP address of the sending mail server."},
        "senderHelo": {"type": ["string", "null"], "description": "Its HELO or EHLO."},
    }
    result = {
        "ggrid": {"type": "string", "format": "uuid"},
        "created": {"type": "string", "format": "date-time"},
        "completed": {"type": "string", "format": "date-time"},
        "decision": {"enum": [str(one) for one in Decision]},
        "verdict": _TEXT,
        "tags": {"type": "array", "items": _TEXT},
    }
    request = {
        "borderMtaData": _object(["envelopeFrom", "envelopeRecipients"], border),
        "tenantUid": {"type": ["string", "null"], "format": "uuid", "pattern": _UUID},
    }
    status = {"messageQueueStatus": {"enum": [str(one) for one in QueueStatus]}}
    return {
        "MessageAnalysisRequest": _object(["borderMtaData"], request),
        "MessageAnalysisResult": _object(list(result), result),
        "SystemStatus": _object(["messageQueueStatus"], status),
    }


def _list_schemas() -> Json:
    entry = {
        "entry": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_ENTRY,
            "description": "What it may be depends on the list's category: a sender (user@example.org, "
            "@example.org), a domain, a network (192.0.2.0/24), a url's host, an attachment's SHA-256.",
        },
        "comment": {"type": "string", "maxLength": MAX_COMMENT, "pattern": "^[^\\u0000]*$"},
    }
    info = {"displayName": _TEXT, "category": _TEXT, "description": _TEXT, "maxSize": {"type": "integer"}}
    tenant = {"type": "string", "format": "uuid", "pattern": _UUID}
    return {
        "Tenant": {**tenant, "description": "Absent: the deployment's own lists."},
        "ListName": {"type": "string", "description": "A list of `getLists`, for instance blocked-senders."},
        "ListEntry": {**_object(["entry"], entry), "additionalProperties": False},
        "PublicListsEntry": _object(["entry", "comment"], {"entry": _TEXT, "comment": _TEXT}),
        "ModifiedEntries": _object(["modifiedEntries"], {"modifiedEntries": {"type": "integer", "minimum": 0}}),
        "Lists": _object(["listFileInfos"], {"listFileInfos": {"type": "array", "items": _ref("ListFileInfo")}}),
        "ListFileInfo": _object(["listName", "listInfo"], {"listName": _TEXT, "listInfo": _object(list(info), info)}),
    }


_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def _object(required: list[str], properties: Json) -> Json:
    return {"type": "object", "required": required, "properties": properties}


def _body(required: list[str], properties: Json) -> Json:
    return {"schema": {**_object(required, properties), "additionalProperties": False}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_answer(description: str, schema: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _responses(success: Json, *statuses: int) -> Json:
    found: Json = {"200": success}
    for status in sorted(statuses):
        words = [name for name, (code, _) in ERRORS.items() if code == status]
        answer = _json_answer(", ".join(f"`{word}`" for word in words), "Error")
        if status == 503:
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
        found[str(status)] = answer
    found["default"] = _json_answer("Any other outcome.", "Error")
    return found


STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code,pre{font-family:monospace;background:#f4f4f4}pre{padding:.8rem;overflow:auto}"
    "h2{margin-top:3rem;border-bottom:1px solid #ccc}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"
)


def page() -> str:
    """The document as HTML, without scripts and without anything to load."""
    api = document()
    parts = [f"<h1>{escape(api['info']['title'])}</h1><p>{escape(api['info']['description'])}</p>"]
    parts.append('<p>As a document for machines: <a href="/openapi.json">openapi.json</a></p>')
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation))
    parts.append("<h2>Errors</h2><table><tr><th>error<th>status<th>meaning</tr>")
    parts += [f"<tr><td><code>{e}</code><td>{code}<td>{escape(what)}</tr>" for e, (code, what) in ERRORS.items()]
    parts.append("</table><h2>Schemas</h2>")
    for name, schema in api["components"]["schemas"].items():
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{escape(json.dumps(schema, indent=2))}</pre>')
    title = escape(api["info"]["title"])
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return head + "".join(parts) + "</html>"


def _operation(path: str, method: str, operation: Json) -> str:
    rows = "".join(
        f"<tr><td>{status}<td>{escape(answer['description'])}</tr>" for status, answer in operation["responses"].items()
    )
    body = operation.get("requestBody", {}).get("content", {})
    shown = "".join(
        f"<p>Body: <code>{kind}</code></p><pre>{escape(json.dumps(b, indent=2))}</pre>" for kind, b in body.items()
    )
    security = ", ".join(name for one in operation.get("security", []) for name in one) or "none"
    return (
        f"<h2><code>{method.upper()} {path}</code></h2><p>{escape(operation['summary'])} "
        f"Authentication: {security}.</p>{shown}<table>{rows}</table>"
    )


def main() -> None:
    json.dump(document(), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
