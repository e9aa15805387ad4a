"""The route table: every path of the console, who may ask for it, and what is checked before.

How a page is added:

1. Write its handler in `bridge/console/pages/NAME.py`: `async def NAME(call: Call) -> Response`. It gets a `Call` whose
   person, role, tenant, form token and origin are already checked; it reads `call.form`, `call.path`,
   `call.request.query_params`, `call.mails`, `call.held`, and answers with `call.page("NAME.html", ...)` or, after a
   change, `call.redirect("/NAME", notice="...")` (a sentence of `render.NOTICES`). What waits for a file or a database
   goes through `await call.run(function, ...)`. Refuse with `raise Refused(status, title, text)`.
2. The history is asked through `call.history`, which finds the mail of the person's tenants only. For anything else
   that lists mail, pass `call.tenants` on (None: all mail). One mail by its id: `about=About.MAIL` or `About.HELD`,
   and the guard finds it, or answers 404 if this person may not see it.
3. Write its template in `templates/NAME.html` (`{% extends "base.html" %}`); a form begins with
   `{{ form(url("/NAME")) }}` of `macros.html`, which adds the token. No inline script, no inline style: classes of
   `static/console.css`, behaviour by `data-` attributes in a file of `static/`. Only our ids go into links, never text
   of a mail. Text of a mail is shown with `|visible`.
4. Add a row here, and an entry to `navigation.ENTRIES` if it belongs in the menu. A row that changes something is a
   POST; it and a row that shows a mail need `audit`, the verb of the audit log. `call.audit_detail` adds to it.
5. Whatever it needs from outside is a field of `Sources`, filled in by `bridge/cli/console/wiring.py`.
6. `tests/console/test_console_access.py` walks over this table with every role and tenant, and fails until the new
   row has its example there.
"""

from __future__ import annotations

from bridge.console.pages import (
    digests,
    held_mail,
    list_uploads,
    lists,
    mail,
    overview,
    pending,
    people,
    provider,
    quarantine,
    requests,
    scan,
    settings,
    sign_in,
    statistics,
    users,
)
from bridge.console.roles import Role
from bridge.console.route import About, Route

ROUTES: tuple[Route, ...] = (
    # Everyone
    Route("/static/{name}", sign_in.static, role=None),
    Route("/sign-in", sign_in.form, role=None),
    Route("/sign-in", sign_in.sign_in, role=None, changes=True, audit="signed in"),
    Route("/sign-in/provider", provider.start, role=None),
    Route("/sign-in/back", provider.back, role=None),
    Route("/enter/{token}", sign_in.link, role=None),
    Route("/enter", sign_in.enter, role=None, changes=True, audit="signed in with a link"),
    Route("/password/{token}", users.choose, role=None),
    Route("/password", users.chosen, role=None, changes=True, audit="set a password with a link"),
    # Those who have signed in
    Route("/sign-out", sign_in.sign_out, changes=True, audit="signed out"),
    Route("/", overview.overview),
    Route("/live", overview.live, is_live=True),
    Route("/mail", mail.search, audit="searched mail"),
    Route("/mail/{id}", mail.story, about=About.MAIL, audit="viewed the story of a mail"),
    Route("/quarantine", quarantine.quarantine, audit="searched the quarantine"),
    Route("/quarantine/jobs", pending.shown, is_live=True),
    Route("/quarantine/{id}", held_mail.held, about=About.HELD, audit="viewed a quarantined mail", has_frame=True),
    Route(
        "/quarantine/{id}/html", held_mail.preview, about=About.HELD, audit="viewed the HTML of a mail", is_preview=True
    ),
    Route("/quarantine/{id}/source", held_mail.source, about=About.HELD, audit="viewed the source of a mail"),
    Route("/quarantine/{id}/download", held_mail.download, about=About.HELD, audit="downloaded a mail"),
    Route("/lists", lists.overview),
    Route("/lists/{name}", lists.entries, audit="viewed a list"),
    Route("/scan", scan.form),
    Route("/scan", scan.scan, changes=True, audit="scanned a file", max_bytes=scan.MAX_BYTES, max_files=1),
    Route("/statistics", statistics.statistics),
    Route("/statistics/export", statistics.export, audit="exported statistics"),
    Route("/sessions", people.sessions),
    Route("/sessions/revoke", people.revoke, changes=True, audit="ended a session"),
    # Those who decide on mail
    Route("/quarantine/actions/release", quarantine.release, Role.RELEASER, changes=True, audit="requested a release"),
    Route("/quarantine/actions/delete", quarantine.delete, Role.RELEASER, changes=True, audit="requested a deletion"),
    Route("/quarantine/actions/report", quarantine.report, Role.RELEASER, changes=True, audit="reported as not spam"),
    Route(
        "/quarantine/actions/report-spam", quarantine.report_spam, Role.RELEASER, changes=True, audit="reported as spam"
    ),
    Route("/quarantine/actions/block", quarantine.block, Role.RELEASER, changes=True, audit="asked to block senders"),
    Route("/quarantine/actions/allow", quarantine.allow, Role.RELEASER, changes=True, audit="asked to allow senders"),
    Route("/quarantine/actions/undo", pending.undo, Role.RELEASER, changes=True, audit="undid an action"),
    Route("/lists/actions/add", lists.add, Role.RELEASER, changes=True, audit="asked to add to a list"),
    Route(
        "/lists/actions/delete",
        lists.delete,
        Role.RELEASER,
        changes=True,
        audit="asked to delete from a list",
        max_bytes=1 << 20,
    ),
    Route(
        "/lists/actions/upload",
        list_uploads.upload,
        Role.RELEASER,
        changes=True,
        audit="uploaded a list",
        max_bytes=list_uploads.MAX_FILE,
        max_files=1,
    ),
    Route("/lists/uploads/{number}", list_uploads.shown, Role.RELEASER),
    Route("/lists/actions/apply", list_uploads.apply, Role.RELEASER, changes=True, audit="asked to apply a list"),
    Route("/lists/actions/cancel", list_uploads.cancel, Role.RELEASER, changes=True, audit="cancelled an upload"),
    Route("/requests", requests.listed, Role.RELEASER, audit="viewed requests"),
    Route("/requests/actions/grant", requests.grant, Role.RELEASER, changes=True, audit="granted a request"),
    Route("/requests/actions/refuse", requests.refuse, Role.RELEASER, changes=True, audit="refused a request"),
    Route("/quarantine/actions/dismiss", pending.dismiss, changes=True, audit="dismissed finished actions"),
    # Administrators
    Route("/audit", people.audit, role=Role.ADMIN, all_tenants=True),
    Route("/settings", settings.settings, role=Role.ADMIN, all_tenants=True),
    Route("/digests", digests.sample, role=Role.ADMIN, all_tenants=True, has_frame=True),
    Route("/digests/html", digests.html, role=Role.ADMIN, all_tenants=True, is_sample=True),
    Route("/users", users.users, role=Role.ADMIN, all_tenants=True),
    Route("/users/{name}", users.user, role=Role.ADMIN, all_tenants=True, audit="viewed a user"),
    Route("/users/actions/add", users.add, Role.ADMIN, changes=True, all_tenants=True, audit="added a user"),
    Route("/users/actions/change", users.change, Role.ADMIN, changes=True, all_tenants=True, audit="changed a user"),
    Route(
        "/users/actions/password", users.password, Role.ADMIN, changes=True, all_tenants=True, audit="set a password"
    ),
    Route(
        "/users/actions/link", users.link, Role.ADMIN, changes=True, all_tenants=True, audit="created a password link"
    ),
    Route("/users/actions/remove", users.remove, Role.ADMIN, changes=True, all_tenants=True, audit="removed a user"),
    Route("/settings/check", settings.check, Role.ADMIN, changes=True, all_tenants=True, audit="ran the check"),
    Route("/settings/reload", settings.reload, Role.ADMIN, changes=True, all_tenants=True, audit="reloaded"),
)
