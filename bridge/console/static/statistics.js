// Statistics: hours and days of the reader's time zone. Without this, they are those of UTC.
"use strict";

const wanted = new URL(location.href);
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && zone !== "UTC" && !wanted.searchParams.has("zone")) {
  wanted.searchParams.set("zone", zone);
  location.replace(wanted);
}
