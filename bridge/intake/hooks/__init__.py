"""The MTA Hooks intake: the mail server asks over HTTP, queues and delivers the mail, and we only give the answer.

From the wire inwards: `json_body` (a request's JSON, with the mail taken out while it arrives), `facts` (the other
values, with their types), `draft` and `stalwart` (the two dialects: they turn a request into a question, and an outcome
into an answer), `registrations` (who may ask), `mail` (the mail as it grows), `replays` (a request that comes twice is
decided once), `app` (one request after another), `server` (what the daemon starts).
"""
