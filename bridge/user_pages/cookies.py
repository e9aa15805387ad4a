"""The cookies of the pages for users. Their names differ from the console's: browsers do not separate ports."""

from __future__ import annotations

SESSION_COOKIE = "__Host-scanbridge-user"
FORM_COOKIE = "__Host-scanbridge-user-form"  # before the sign-in, for the form token
PROVIDER_COOKIE = "__Host-scanbridge-user-provider"  # during a sign-in with the provider
