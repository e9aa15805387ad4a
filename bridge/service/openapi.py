"""The OpenAPI 3.1 description of both interfaces, and an HTML page generated from it.

Built from the constants that the code itself uses, so limits and paths cannot diverge from it.
`python -m bridge.service.openapi` prints the document that ships as docs/reference/openapi.json. The
page is plain HTML and loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import sys
from html import escape
from typing import Any

from bridge.api.feedback import FEEDBACK_KINDS, FEEDBACK_PATH, MAX_REPORTER
from bridge.api.lists import ADD_PATH, DELETE_PATH, GET_LISTS_PATH, LIST_ENTRIES_PATH, MAX_ENTRIES_PER_REQUEST, NDJSON
from bridge.api.request_id import REQUEST_ID
from bridge.api.scanning import (
    MAX_LIST_MATCHES,
    MAX_MESSAGE_BYTES,
    MAX_REASON,
    MAX_REASONS,
    MAX_RULE,
    MAX_SCORES,
    STATUS_PATH,
    SUBMIT_PATH,
    Decision,
    QueueStatus,
)
from bridge.matching.spelling import MAX_COMMENT, MAX_ENTRY

Json = dict[str, Any]

# Every value of `error`, with its HTTP status. The values are stable: clients may depend on them.
ERRORS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request is not valid HTTP."),
    "invalid_multipart": (400, "The body of submitEmail is not well-formed multipart/form-data."),
    "missing_part": (400, "`parameters` or `email` is missing."),
    "duplicate_part": (400, "`parameters` or `email` appears twice."),
    "invalid_parameters": (400, "`parameters` is not a valid MessageAnalysisRequest."),
    "parameters_too_large": (400, "`parameters` is larger than 1 MiB."),
    "invalid_request": (400, "The body of the List API call is not valid for this operation."),
    "too_many_entries": (400, f"The request has more than {MAX_ENTRIES_PER_REQUEST} entries."),
    "unauthorized": (401, "The credentials are missing or unknown, or their scheme is wrong."),
    "forbidden": (403, "The token lacks the required permission."),
    "scan_source_disabled": (403, "guard.scanSources.restApi is not configured."),
    "learning_disabled": (403, "analyzers.phishing.learn is switched off."),
    "not_found": (404, "There is no such path."),
    "list_not_found": (404, "There is no list with this name."),
    "method_not_allowed": (405, "The path does not support this method."),
    "head_timeout": (408, "The request line and header fields did not arrive within 30 s."),
    "upload_timeout": (408, "The upload stalled or is too slow."),
    "not_inspected": (409, "The reported mail cannot be inspected, so nothing can be learned from it."),
    "other_mail": (409, "The ggrid of a report belongs to another tenant's mail, or to a mail of a different size."),
    "too_many_tenants": (409, "Too many tenants already have reports."),
    "invalid_entry": (409, "An entry could never match in a list of this category."),
    "list_full": (409, "The addition would exceed the list's maxSize; nothing was added."),
    "payload_too_large": (
        413,
        "The mail is larger than 50 MiB, or too large for the analysis queue; the whole submitEmail request is larger "
        "than 52 MiB; or the List API request is larger than 8 MiB.",
    ),
    "not_multipart": (415, "submitEmail requires multipart/form-data."),
    "parameters_not_json": (415, "The content type of the `parameters` part must be application/json."),
    "not_json": (415, "The List API requires application/json."),
    "encoded_body": (415, "The body of the request is compressed (Content-Encoding, Transfer-Encoding)."),
    "wrong_host": (421, "/metrics: the Host field is not a name of this machine and may belong to another site."),
    "head_too_large": (431, "The request line and header fields are larger than 64 KiB."),
    "trailer_too_large": (431, "The trailer fields of a chunked request are larger than 64 KiB."),
    "internal": (500, "An internal error occurred."),
    "core_unavailable": (502, "No core node answered (serviceProviders.core.hosts)."),
    "saturated": (
        503,
        "maxGuardRequestsInProcessing, or the limit of 64 List API requests, has been reached; see Retry-After.",
    ),
    "no_room": (503, "The queue has no room for a mail of this size at the moment; smaller mail is accepted."),
    "no_worker": (503, "No analysis worker is connected (serviceProviders.core.nats); see Retry-After."),
    "queue_unavailable": (503, "The analysis queue cannot be reached; see Retry-After."),
    "storage_unavailable": (503, "The lists are not available at the moment; see Retry-After."),
    "not_ready": (503, "/readyz: the service is not ready."),
    "analysis_timeout": (504, "The analysis took longer than longRequestTimeout."),
    "storage_full": (507, "The mail cannot be stored for analysis."),
}

# Errors that only some operations can return; all others are possible everywhere.
_OF_SCANS = frozenset(
    (
        *("invalid_multipart", "missing_part", "duplicate_part", "invalid_parameters", "parameters_too_large"),
        *("not_multipart", "parameters_not_json", "scan_source_disabled"),
        *("core_unavailable", "no_room", "no_worker", "queue_unavailable", "analysis_timeout", "storage_full"),
    )
)
_OF_LISTS = frozenset(
    ("invalid_request", "too_many_entries", "list_not_found", "invalid_entry", "list_full", "not_json")
)
_OF_HEALTH = frozenset({"not_ready"})
_OF_FEEDBACK = frozenset({"learning_disabled", "not_inspected", "other_mail", "too_many_tenants"})
_NOT_OF_LISTS = _OF_SCANS | _OF_HEALTH | _OF_FEEDBACK
_OF_ANALYSES = frozenset(
    ("scan_source_disabled", "core_unavailable", "no_room", "no_worker", "queue_unavailable", "analysis_timeout")
)


def document() -> Json:
    described = _document()
    for methods in described["paths"].values():
        for operation in methods.values():
            operation["parameters"] = [{"$ref": "#/components/parameters/RequestId"}]
            for response in operation["responses"].values():
                response["headers"] = {**response.get("headers", {}), REQUEST_ID: {"$ref": _REPEATED}}
    return described


_REPEATED = "#/components/headers/RequestId"


def _document() -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message Scanning and List Management",
            "version": "1.1.0",
            "summary": "Scan mail and manage lists.",
            "description": "The Email Scanning API accepts a raw mail over HTTP and returns a decision. "
            "The List API manages the lists of one tenant, or the deployment-global lists if `tenantUid` is absent.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            SUBMIT_PATH: {"post": _submit()},
            STATUS_PATH: {"post": _status()},
            FEEDBACK_PATH: {"post": _feedback()},
            ADD_PATH: {"post": _add()},
            DELETE_PATH: {"post": _delete()},
            GET_LISTS_PATH: {"post": _get_lists()},
            LIST_ENTRIES_PATH: {"post": _list_entries()},
            "/livez": {"get": _health("livez", "Check that the process is alive.")},
            "/readyz": {"get": _health("readyz", "Check that scans are being served.", 503)},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token from `abby.staticApiTokens`."},
                "apikey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`apikey <API_KEY>`, with a key from `scanbridge service apikey create`.",
                },
            },
            "parameters": {
                "RequestId": {
                    "name": REQUEST_ID,
                    "in": "header",
                    "description": "A random id: up to 64 letters, digits and hyphens. Any other value is ignored.",
                    "schema": _TEXT,
                }
            },
            "headers": {"RequestId": {"description": "The id of the request, if it had one.", "schema": _TEXT}},
            "schemas": _schemas(),
        },
    }


def _mail_form(parameters: str) -> Json:
    """The body of a request that carries a mail."""
    form = {
        "type": "object",
        "required": ["parameters", "email"],
        "properties": {
            "parameters": _ref(parameters),
            "email": {
                "type": "string",
                "format": "binary",
                "description": f"The raw mail; at most {MAX_MESSAGE_BYTES} bytes (50 MiB). Only the bytes of the "
                "mail count: delimiters, part headers, `parameters` (at most 1 MiB) and other parts (at most 1 MiB "
                "together) do not. A larger mail gets 413.",
            },
        },
    }
    encoding = {"parameters": {"contentType": "application/json"}, "email": {"contentType": "application/octet-stream"}}
    return {"required": True, "content": {"multipart/form-data": {"schema": form, "encoding": encoding}}}


def _submit() -> Json:
    return {
        "operationId": "submitEmail",
        "tags": ["Email Scanning API"],
        "summary": "Submit a mail and wait for its analysis.",
        "security": [{"token": []}],
        "requestBody": _mail_form("MessageAnalysisRequest"),
        "responses": _responses(
            _json_response("The result of the analysis.", "MessageAnalysisResult"),
            *(400, 401, 403, 408, 413, 415, 502, 503, 504, 507),
            without=_OF_LISTS | _OF_HEALTH | _OF_FEEDBACK,
        ),
    }


def _feedback() -> Json:
    return {
        "operationId": "feedback",
        "tags": ["Email Scanning API"],
        "summary": "Report a mail as spam or as not spam, so that the phishing model can learn from it. An "
        "extension: other services do not have it. Each person's report of a mail counts once; the opposite report "
        "replaces it.",
        "security": [{"token": []}],
        "requestBody": _mail_form("MessageFeedback"),
        "responses": _responses(
            _json_response("Whether the report is new.", "FeedbackResult"),
            *(400, 401, 403, 408, 409, 413, 415, 503, 507),
            without=_OF_LISTS | _OF_HEALTH | _OF_ANALYSES,
        ),
    }


def _status() -> Json:
    return {
        "operationId": "status",
        "tags": ["Email Scanning API"],
        "summary": "Get the status of the analysis queue.",
        "security": [{"token": []}],
        "responses": _responses(
            _json_response("The status of the queue.", "SystemStatus"), 401, 403, without=_OF_SCANS | _OF_FEEDBACK
        ),
    }


def _list_operation(name: str, summary: str, body: Json, success: Json, *statuses: int) -> Json:
    return {
        "operationId": name,
        "tags": ["List API"],
        "summary": summary,
        "security": [{"apikey": []}],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": _responses(success, 400, 401, 408, 413, 415, 503, *statuses, without=_NOT_OF_LISTS),
    }


def _add() -> Json:
    entry = {"type": "array", "maxItems": MAX_ENTRIES_PER_REQUEST, "items": _ref("ListEntry")}
    body = _body(["listName", "entries"], {"listName": _ref("ListName"), "entries": entry, "tenantUid": _ref("Tenant")})
    success = _json_response("The number of entries added or updated.", "ModifiedEntries")
    return _list_operation("addEntries", "Add or update entries.", body, success, 404, 409)


def _delete() -> Json:
    entry = {"type": "array", "maxItems": MAX_ENTRIES_PER_REQUEST, "items": {"type": "string"}}
    body = _body(["listName", "entries"], {"listName": _ref("ListName"), "entries": entry, "tenantUid": _ref("Tenant")})
    success = _json_response("The number of entries deleted.", "ModifiedEntries")
    return _list_operation("deleteEntries", "Delete entries; unknown entries are ignored.", body, success, 404)


def _get_lists() -> Json:
    success = _json_response("All lists of the scope.", "Lists")
    return _list_operation("getLists", "Get the lists of a scope.", _body([], {"tenantUid": _ref("Tenant")}), success)


def _list_entries() -> Json:
    body = _body(["listName"], {"listName": _ref("ListName"), "tenantUid": _ref("Tenant")})
    stream = {"description": "One JSON object per line (PublicListsEntry).", "content": {NDJSON: {}}}
    return _list_operation("listEntries", "Stream all entries of one list.", body, stream, 404)


def _health(name: str, summary: str, *statuses: int) -> Json:
    success = _json_response("The check passed.", "Health")
    responses = _responses(success, *statuses, without=_OF_SCANS | _OF_LISTS)
    return {"operationId": name, "tags": ["Operation"], "summary": summary, "responses": responses}


def _metrics() -> Json:
    text = {"description": "Metrics in Prometheus text format.", "content": {"text/plain": {"schema": _TEXT}}}
    return {
        "operationId": "metrics",
        "tags": ["Operation"],
        "summary": "Get the metrics. Clients on other machines need a token with the `metrics` permission.",
        "security": [{}, {"token": []}],
        "responses": _responses(text, 401, 403, 421, without=_OF_SCANS | _OF_FEEDBACK),
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
    border = {
        "envelopeFrom": {"type": "string", "description": "The envelope sender; empty for the null sender."},
        "envelopeRecipients": {"type": "array", "minItems": 1, "items": _TEXT},
        "remoteAddress": {
            "type": ["string", "null"],
            "description": "The IP address of the sending mail server. Brackets, the `IPv6:` prefix, a port, an IPv6 "
            "zone and white space are removed, and an IPv4-mapped IPv6 address counts as the IPv4 address. Anything "
            "that is not an address (empty, `unknown`, a host name, `0.0.0.0`, `::`) counts as absent.",
        },
        "senderHelo": {"type": ["string", "null"], "description": "The HELO or EHLO name of the sending mail server."},
    }
    result = {
        "ggrid": {"type": "string", "format": "uuid"},
        "created": {"type": "string", "format": "date-time"},
        "completed": {"type": "string", "format": "date-time"},
        "decision": {"enum": [str(decision) for decision in Decision]},
        "verdict": _TEXT,
        "tags": {"type": "array", "items": _TEXT},
    }
    reasons = {
        "type": "array",
        "maxItems": MAX_REASONS,
        "items": {"type": "string", "maxLength": MAX_REASON},
        "description": "Why the mail looks like phishing, in English sentences for people; absent if it does not. "
        "Names in them come from the mail, so show them as plain text. An extension: other services do not have it.",
    }
    matches = {
        "type": "array",
        "maxItems": MAX_LIST_MATCHES,
        "items": _object(["listName", "entry"], {"listName": _TEXT, "entry": _TEXT}),
        "description": "The lists with an entry that matches this mail, and that entry; absent if there are none. "
        "Personal lists are left out. An extension: other services do not have it.",
    }
    score = _object(["name", "score"], {"name": _TEXT, "score": {"type": "number"}})
    scoring = {
        "rule": {
            "type": "string",
            "maxLength": MAX_RULE,
            "description": "The row of `decisions.rules` that decided (counted from 1) and its conditions, or a note "
            "that no rule matched.",
        },
        "total": {"type": "number", "description": "The sum of all scores."},
        "scores": {
            "type": "array",
            "maxItems": MAX_SCORES,
            "items": score,
            "description": "What the sum consists of, the largest first: tags, `engines` (all engines together, never "
            "below 0) and `phishing model`.",
        },
    }
    described = "How the decision came about; absent if no rule matched and nothing has a score. "
    described += "An extension: other services do not have it."
    request = {
        "borderMtaData": _object(["envelopeFrom", "envelopeRecipients"], border),
        "tenantUid": {"type": ["string", "null"], "format": "uuid", "pattern": _UUID},
    }
    feedback = {
        "kind": {"enum": list(FEEDBACK_KINDS), "description": "`ham` is mail that is not spam."},
        "reporter": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_REPORTER,
            "description": "Identifies the person who reports the mail: use the same value each time. "
            "Only a digest of it is stored.",
        },
        **request,
        "ggrid": {
            "type": "string",
            "maxLength": 100,
            "pattern": "^[ -~]*$",
            "description": "The ggrid of the mail's analysis, if known. It must belong to the same tenant and to a "
            "mail of the same size. If it is absent, the report is not attributed to a sender.",
        },
    }
    status = {"messageQueueStatus": {"enum": [str(status) for status in QueueStatus]}}
    return {
        "MessageAnalysisRequest": _object(["borderMtaData"], request),
        "MessageAnalysisResult": _object(
            list(result),
            {
                **result,
                "reasons": reasons,
                "listMatches": matches,
                "scoring": {**_object(list(scoring), scoring), "description": described},
            },
        ),
        "MessageFeedback": _object(["kind", "reporter"], feedback),
        "FeedbackResult": _object(["learned"], {"learned": {"type": "boolean"}}),
        "SystemStatus": _object(["messageQueueStatus"], status),
    }


def _list_schemas() -> Json:
    entry = {
        "entry": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_ENTRY,
            "description": "The format depends on the list's category: a sender (user@example.org or "
            "@example.org), a domain, a network (192.0.2.0/24), the host of a URL, the SHA-256 of an attachment, or "
            "a recipient and a sender (anna@example.org news@shop.example).",
        },
        "comment": {"type": "string", "maxLength": MAX_COMMENT, "pattern": "^[^\\u0000]*$"},
    }
    info = {"displayName": _TEXT, "category": _TEXT, "description": _TEXT, "maxSize": {"type": "integer"}}
    tenant = {"type": "string", "format": "uuid", "pattern": _UUID}
    return {
        "Tenant": {**tenant, "description": "The tenant; omit it for the deployment's own lists."},
        "ListName": {"type": "string", "description": "A name from `getLists`, for example blocked-senders."},
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


def _json_response(description: str, schema: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _responses(success: Json, *statuses: int, without: frozenset[str] = frozenset()) -> Json:
    found: Json = {"200": success}
    for status in sorted(statuses):
        names = [name for name, (code, _) in ERRORS.items() if code == status and name not in without]
        response = _json_response(", ".join(f"`{name}`" for name in names), "Error")
        if status == 503:
            retry_after = {"schema": {"type": "integer"}, "description": "Seconds to wait before the next attempt."}
            response["headers"] = {"Retry-After": retry_after}
        found[str(status)] = response
    found["default"] = _json_response("Any other error.", "Error")
    return found


STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code,pre{font-family:monospace;background:#f4f4f4}pre{padding:.8rem;overflow:auto}"
    "h2{margin-top:3rem;border-bottom:1px solid #ccc}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"
)


def page() -> str:
    """The document as HTML, without scripts or external resources."""
    api = document()
    parts = [f"<h1>{escape(api['info']['title'])}</h1><p>{escape(api['info']['description'])}</p>"]
    parts.append('<p>Machine-readable: <a href="/openapi.json">openapi.json</a></p>')
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation))
    parts.append("<h2>Errors</h2><table><tr><th>error<th>status<th>meaning</tr>")
    parts += [
        f"<tr><td><code>{error}</code><td>{status}<td>{escape(meaning)}</tr>"
        for error, (status, meaning) in ERRORS.items()
    ]
    parts.append("</table><h2>Schemas</h2>")
    for name, schema in api["components"]["schemas"].items():
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{escape(json.dumps(schema, indent=2))}</pre>')
    title = escape(api["info"]["title"])
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return head + "".join(parts) + "</html>"


def _operation(path: str, method: str, operation: Json) -> str:
    rows = "".join(
        f"<tr><td>{status}<td>{escape(response['description'])}</tr>"
        for status, response in operation["responses"].items()
    )
    content = operation.get("requestBody", {}).get("content", {})
    body = "".join(
        f"<p>Body: <code>{kind}</code></p><pre>{escape(json.dumps(schema, indent=2))}</pre>"
        for kind, schema in content.items()
    )
    security = ", ".join(name for scheme in operation.get("security", []) for name in scheme) or "none"
    return (
        f"<h2><code>{method.upper()} {path}</code></h2><p>{escape(operation['summary'])} "
        f"Authentication: {security}.</p>{body}<table>{rows}</table>"
    )


def main() -> None:
    json.dump(document(), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
