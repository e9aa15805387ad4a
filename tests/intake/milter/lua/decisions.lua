-- Every decision, one mail after another on one connection.
local conn = open()
greet(conn)

envelope(conn)
check(content(conn, "relay") == SMFIR_CONTINUE, "deliver is not CONTINUE")
check(mt.eom_check(conn, MT_HDRADD, "X-Scan-Decision", " deliver"), "not stamped")
check(mt.eom_check(conn, MT_HDRDELETE, "x-scan-id"), "forged field not stripped")
check(not mt.eom_check(conn, MT_QUARANTINE), "quarantined though delivered")

envelope(conn)
check(content(conn, "reject") == SMFIR_REPLYCODE, "bounce is not REPLYCODE")

envelope(conn)
check(content(conn, "tempfail") == SMFIR_REPLYCODE, "undecided is not REPLYCODE")

envelope(conn)
check(content(conn, "discard") == SMFIR_DISCARD, "drop is not DISCARD")
envelope(conn)
check(content(conn, "quarantine") == SMFIR_DISCARD, "our own quarantine is not DISCARD")

envelope(conn)
check(content(conn, "hold") == SMFIR_CONTINUE, "hold does not end in CONTINUE")
check(mt.eom_check(conn, MT_QUARANTINE), "hold without QUARANTINE")
mt.disconnect(conn)
