"""The same engine as a hook, which may be written in any language: python3 hook.py [PORT]."""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Invoices(BaseHTTPRequestHandler):
    def do_POST(self):
        mail = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = any(self.is_program(part) for part in mail["parts"])
        answer = {"tags": ["invoice:program"], "score": 8.0} if found else {"verdict": "clean"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_program(self, part):
        named = any("invoice" in name.lower() for name in part["names"])
        return named and base64.b64decode(part["content"]).startswith(b"MZ")


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8090), Invoices).serve_forever()
