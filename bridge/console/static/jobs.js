// Pending actions: the undo timer, and the result when they are done. Every page works without it.
"use strict";

const jobs = document.querySelector("[data-jobs]");
const searchField = document.querySelector("[data-bulk] input[name=back]");
const isChoosing = () => document.querySelector("tbody input[type=checkbox]:checked");

function fillBack() {
  for (const field of jobs.querySelectorAll("[data-back]")) field.value = searchField ? searchField.value : location.search.slice(1);
  for (const field of jobs.querySelectorAll("[data-page]")) field.value = jobs.dataset.page;
}

function countDown() {
  for (const job of jobs.querySelectorAll("[data-wait]")) {
    const left = Math.max(0, Number(job.dataset.wait) - 0.5);
    job.dataset.wait = left;
    job.querySelector("[data-left]").textContent = Math.ceil(left);
  }
  return jobs.querySelector("[data-job=waiting], [data-job=running]");
}

async function refresh() {
  const answer = await fetch(jobs.dataset.jobs, {headers: {Accept: "text/html"}});
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const hadFocus = jobs.contains(document.activeElement);
  jobs.replaceChildren(...page.body.childNodes);
  fillBack();
  if (hadFocus) (jobs.querySelector("[data-undo]") || document.querySelector("tbody input[type=checkbox]") || jobs).focus();
}

function watchJobs() {
  let wasBusy = Boolean(jobs.querySelector("[data-job=waiting], [data-job=running]"));
  setInterval(async () => {
    const busy = countDown();
    if (!busy && !wasBusy) return;
    const isDue = [...jobs.querySelectorAll("[data-wait]")].some((job) => Number(job.dataset.wait) <= 0);
    if (isDue || jobs.querySelector("[data-job=running]") || !busy) await refresh().catch(() => {});
    const stillBusy = Boolean(jobs.querySelector("[data-job=waiting], [data-job=running]"));
    if (wasBusy && !stillBusy && !isChoosing()) reloadTable();
    wasBusy = stillBusy;
  }, 500);
}

// Those who work with the keyboard find themselves where they were after the page has been loaded again.
const PLACE = "quarantine-place";

function keepPlace() {
  const box = document.activeElement;
  if (box.matches("tbody input[type=checkbox]")) sessionStorage.setItem(PLACE, box.value);
  else if (jobs.contains(box) && sessionStorage.getItem(PLACE) === null) sessionStorage.setItem(PLACE, "");
}

function findPlace() {
  const place = sessionStorage.getItem(PLACE);
  if (place === null) return;
  sessionStorage.removeItem(PLACE);
  const all = [...document.querySelectorAll("tbody input[type=checkbox]")];
  (all.find((box) => box.value === place) || all[0])?.focus();
}

function reloadTable() {
  const isTyping = document.activeElement instanceof HTMLInputElement && document.activeElement.type !== "checkbox";
  const isTyped = [...document.querySelectorAll("textarea, input[type=file]")].some((field) => field.value !== field.defaultValue);
  if (isTyping || isTyped) return;
  keepPlace();
  location.reload();
}

if (jobs) {
  fillBack();
  const undo = jobs.querySelector("[data-undo]");
  if (undo) undo.focus(); else findPlace();
  jobs.addEventListener("click", (event) => { if (event.detail === 0) keepPlace(); });  // 0: with the keyboard
  watchJobs();
}
