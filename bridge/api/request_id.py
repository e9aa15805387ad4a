"""The request id, which ties an answer to its request.

A server or proxy that answers one request twice puts every later answer on that connection one place too
late, and then one mail gets another mail's decision. So our clients send a random id in this field, and the
service repeats it in its answer. Other services need not know the field.
"""

from __future__ import annotations

import re

REQUEST_ID = "X-Scan-Request-Id"
REQUEST_ID_KEY = REQUEST_ID.lower().encode("ascii")  # as parsers give it

_VALID = re.compile(rb"[0-9A-Za-z-]{1,64}")


def is_request_id(value: bytes) -> bool:
    return _VALID.fullmatch(value) is not None
