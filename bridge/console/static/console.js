// The console's own script: times in the reader's zone, live parts, and small comforts. Every page works without it.
"use strict";

const CLOCK = {hour: "2-digit", minute: "2-digit", day: "numeric", month: "short"};
const SHORT = new Intl.DateTimeFormat(undefined, {...CLOCK, weekday: "short"});
const LONG = new Intl.DateTimeFormat(undefined, {...CLOCK, year: "numeric"});
const FINE = new Intl.DateTimeFormat(undefined, {...CLOCK, second: "2-digit", fractionalSecondDigits: 3});
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

// A search leaves out what was not filled in, so that its link is short enough to be sent to a colleague.
function tidy(form) {
  const fields = [...form.querySelectorAll("input[name], select[name]")];
  const hasTimes = fields.some((field) => ["since", "until"].includes(field.name) && field.value.trim());
  for (const field of fields) field.disabled = !field.value.trim() || (field.name === "zone" && !hasTimes);
}

// A button that starts something slow says so, and cannot be pressed twice.
function busy(event) {
  const button = event.submitter;
  if (!button || !button.dataset.busy || event.defaultPrevented) return;
  button.dataset.idle = button.textContent;
  button.textContent = button.dataset.busy;
  button.setAttribute("aria-busy", "true");
  setTimeout(() => { button.disabled = true; });
}

function restore() {
  for (const form of document.querySelectorAll("form[role=search]")) {
    for (const field of form.elements) field.disabled = false;
  }
  for (const button of document.querySelectorAll("button[aria-busy]")) {
    button.textContent = button.dataset.idle;
    button.removeAttribute("aria-busy");
    button.disabled = false;
  }
}

function watch(part) {
  const state = document.querySelector("[data-live-state]");
  const say = (text) => { if (state) state.textContent = text; };
  const source = new EventSource(part.dataset.live);
  source.addEventListener("overview", (event) => {
    const page = new DOMParser().parseFromString(event.data, "text/html");
    part.replaceChildren(...page.body.childNodes);
    showTimes(part);
    say("Live: these numbers change as mail arrives.");
  });
  source.addEventListener("over", () => { source.close(); say("Your session has ended. Sign in again to continue."); });
  source.onerror = () => {
    say("Not live at the moment; trying again.");
    // A refusal ends the stream for good: browsers do not try again by themselves.
    if (source.readyState === EventSource.CLOSED) window.setTimeout(() => watch(part), 10_000);
  };
  window.addEventListener("pagehide", () => source.close());
}

// On a narrow screen the mails come first; the search is one tap away, and open while it is used.
function foldSearch() {
  const finder = document.querySelector("[data-finder]");
  if (finder && !("used" in finder.dataset) && window.matchMedia("(max-width: 44rem)").matches) finder.open = false;
}

function reloadSoon(part) {
  const isTyping = () => document.activeElement instanceof HTMLInputElement || document.activeElement instanceof HTMLTextAreaElement;
  window.setTimeout(() => { if (isTyping()) reloadSoon(part); else window.location.reload(); }, Number(part.dataset.reload) * 1000);
}

showTimes(document);
foldSearch();
document.querySelector(".side nav [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"});
fillZones(document);
document.querySelectorAll("[data-live]").forEach(watch);
document.querySelectorAll("form[role=search]").forEach((form) => form.addEventListener("submit", () => tidy(form)));
document.addEventListener("submit", busy);
window.addEventListener("pageshow", (event) => { if (event.persisted) restore(); });
document.querySelectorAll("[data-reload]").forEach(reloadSoon);
const once = document.querySelector("[data-submit-now] form");
if (once) once.requestSubmit();
for (const field of document.querySelectorAll("select[data-submit]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}
