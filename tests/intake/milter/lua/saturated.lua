-- 451 4.3.2 at MAIL, and the connection lives on.
local conn = open()
greet(conn)
check(mt.mailfrom(conn, "<a@example.org>") == nil, "mail")
check(mt.getreply(conn) == SMFIR_REPLYCODE, "MAIL is not refused")
check(mt.mailfrom(conn, "<a@example.org>") == nil, "mail")
check(mt.getreply(conn) == SMFIR_REPLYCODE, "the second MAIL is not refused")
mt.disconnect(conn)
