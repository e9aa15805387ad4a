"""The MTA Hooks intake: the mail server asks over HTTP, keeps queue and delivery, and we only give the answer.

From the wire inwards: `json_body` (a request's JSON, with the mail taken out while it arrives), `facts` (types of what
is left), `draft` and `stalwart` (the two dialects: a request to a question, an outcome to an answer), `registrations`
(who may ask), `mail` (the mail as it grows), `replays` (a request that comes twice is decided once), `app` (one request
after another), `server` (what the daemon starts).
"""
