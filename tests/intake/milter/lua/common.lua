-- Shared by the scripts: check or fail, and one mail from MAIL to the end of the message.
function check(condition, what)
  if not condition then
    mt.echo(what)
    error(what)
  end
end

function open(version, actions, steps)
  local conn = mt.connect("inet:" .. port .. "@127.0.0.1", 20, 0.1)
  check(conn, "cannot connect")
  -- miltertest 2.11 puts its third argument where the steps belong, and its fourth where the actions do
  check(mt.negotiate(conn, version, steps, actions) == nil, "negotiation failed")
  return conn
end

function greet(conn, address)
  check(mt.conninfo(conn, "client.example", address or "203.0.113.9") == nil, "connect")
  check(mt.getreply(conn) == SMFIR_CONTINUE, "connect was not continued")
  check(mt.helo(conn, "client.example") == nil, "helo")
  check(mt.getreply(conn) == SMFIR_CONTINUE, "helo was not continued")
end

function envelope(conn, rcpt)
  check(mt.mailfrom(conn, "<a@example.org>") == nil, "mail")
  check(mt.getreply(conn) == SMFIR_CONTINUE, "mail was not continued")
  check(mt.rcptto(conn, rcpt or "<b@example.net>") == nil, "rcpt")
  check(mt.getreply(conn) == SMFIR_CONTINUE, "rcpt was not continued")
end

function content(conn, want, body)
  check(mt.header(conn, "Subject", marker) == nil, "header")
  check(mt.header(conn, "X-Scan-Id", "forged") == nil, "header")
  check(mt.header(conn, "X-Want", want) == nil, "header")
  check(mt.eoh(conn) == nil, "end of headers")
  check(mt.bodystring(conn, body or "Hello\r\n") == nil, "body")
  check(mt.eom(conn) == nil, "end of message")
  return mt.getreply(conn)
end
