// The console's own script: times in the reader's zone, live parts, and small comforts. Every page works without it.
"use strict";

const CLOCK = {hour: "2-digit", minute: "2-digit", second: "2-digit", day: "numeric", month: "short"};
const SHORT = new Intl.DateTimeFormat(undefined, CLOCK);
const LONG = new Intl.DateTimeFormat(undefined, {...CLOCK, year: "numeric"});
const FINE = new Intl.DateTimeFormat(undefined, {...CLOCK, fractionalSecondDigits: 3});
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const isOfThisYear = moment.getFullYear() === new Date().getFullYear();
    element.textContent = ("fine" in element.dataset ? FINE : isOfThisYear ? SHORT : LONG).format(moment);
    element.title = `${moment.toLocaleString(undefined, {dateStyle: "full", timeStyle: "long"})} · ${element.dateTime}`;
  }
}

function fillZones(root) {
  for (const field of root.querySelectorAll("input[name=zone]")) field.value = ZONE;
}

function watch(part) {
  const state = document.querySelector("[data-live-state]");
  const say = (text) => { if (state) state.textContent = text; };
  const source = new EventSource(part.dataset.live);
  source.addEventListener("overview", (event) => {
    const page = new DOMParser().parseFromString(event.data, "text/html");
    part.replaceChildren(...page.body.childNodes);
    showTimes(part);
    say("Live: these numbers change as mail comes.");
  });
  source.addEventListener("over", () => { source.close(); say("Your session has ended. Sign in again to go on."); });
  source.onerror = () => say("Not live at this moment; trying again.");
  window.addEventListener("pagehide", () => source.close());
}

function reloadSoon(part) {
  const isTyping = () => document.activeElement instanceof HTMLInputElement || document.activeElement instanceof HTMLTextAreaElement;
  window.setTimeout(() => { if (isTyping()) reloadSoon(part); else window.location.reload(); }, Number(part.dataset.reload) * 1000);
}

showTimes(document);
document.querySelector(".side nav [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"});
fillZones(document);
document.querySelectorAll("[data-live]").forEach(watch);
document.querySelectorAll("[data-reload]").forEach(reloadSoon);
const once = document.querySelector("[data-submit-now] form");
if (once) once.requestSubmit();
for (const field of document.querySelectorAll("select[data-submit]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}
