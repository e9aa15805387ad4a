-- A mail that is aborted leaves nothing behind; an abrupt end hurts nobody.
local conn = open()
greet(conn)
envelope(conn, "<aborted@example.net>")
check(mt.header(conn, "Subject", "aborted") == nil, "header")
check(mt.abort(conn) == nil, "abort")
envelope(conn)
check(content(conn, "relay") == SMFIR_CONTINUE, "no CONTINUE after an abort")
mt.disconnect(conn)

local abrupt = open()
greet(abrupt)
envelope(abrupt, "<abrupt@example.net>")
mt.disconnect(abrupt, false)
