// The quarantine: selecting with mouse and keyboard, and the undo timer. Every page works without it.
"use strict";

const bulk = document.querySelector("[data-bulk]");
const boxes = bulk ? [...document.querySelectorAll("input[form=bulk][name=mail]")] : [];
const chosen = () => boxes.filter((box) => box.checked);

function showChosen() {
  const number = chosen().length;
  const label = bulk.querySelector("[data-chosen]");
  label.textContent = number ? `${number} selected` : "Select all";
  const all = bulk.querySelector("[data-all]");
  bulk.classList.toggle("some", number > 0);
  all.checked = number === boxes.length;
  all.indeterminate = number > 0 && number < boxes.length;
  for (const button of bulk.querySelectorAll(".buttons button")) button.disabled = !number;
  for (const box of boxes) box.closest("tr").classList.toggle("chosen", box.checked);
}

function move(box, step, choosing) {
  const next = boxes[boxes.indexOf(box) + step];
  if (!next) return;
  if (choosing) { box.checked = true; next.checked = true; showChosen(); }
  next.focus();
  next.closest("tr").scrollIntoView({block: "nearest"});
}

function act(box, key) {
  const button = bulk.querySelector(`.buttons button[data-key="${key}"]`);
  if (!button) return false;
  if (!chosen().length) { box.checked = true; showChosen(); }
  bulk.requestSubmit(button);
  return true;
}

function onKey(event) {
  const box = event.target;
  if (!boxes.includes(box) || event.ctrlKey || event.altKey || event.metaKey) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "ArrowDown" || key === "j") move(box, 1, event.shiftKey);
  else if (key === "ArrowUp" || key === "k") move(box, -1, event.shiftKey);
  else if (key === "x") { box.checked = !box.checked; showChosen(); }
  else if (key === "Enter") box.closest("tr").querySelector(".subject a").click();
  else if (key === "u") { const undo = document.querySelector("[data-undo]"); if (undo) undo.click(); }
  else if (!"rdnsba".includes(key) || !act(box, key)) return;
  event.preventDefault();
}

function onClick(event) {
  const box = event.target;
  if (!boxes.includes(box)) return;
  if (event.shiftKey && onClick.last) {
    const [from, to] = [boxes.indexOf(onClick.last), boxes.indexOf(box)].sort((one, other) => one - other);
    for (const between of boxes.slice(from, to + 1)) between.checked = box.checked;
  }
  onClick.last = box;
}

if (boxes.length) {
  const table = boxes[0].closest("table");
  bulk.querySelectorAll("[data-with-script]").forEach((element) => { element.hidden = false; });
  table.addEventListener("keydown", onKey);
  table.addEventListener("click", onClick);
  table.addEventListener("change", showChosen);
  bulk.querySelector("[data-all]").addEventListener("change", (event) => {
    for (const box of boxes) box.checked = event.target.checked;
    showChosen();
  });
  window.addEventListener("pageshow", showChosen);
  showChosen();
}

// Pending actions

const jobs = document.querySelector("[data-jobs]");
const back = document.querySelector("[data-bulk] input[name=back]");

function fillBack() {
  for (const field of jobs.querySelectorAll("[data-back]")) field.value = back ? back.value : location.search.slice(1);
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
  if (hadFocus) (jobs.querySelector("[data-undo]") || boxes[0] || jobs).focus();
}

function watchJobs() {
  let wasBusy = Boolean(jobs.querySelector("[data-job=waiting], [data-job=running]"));
  setInterval(async () => {
    const busy = countDown();
    if (!busy && !wasBusy) return;
    const isDue = [...jobs.querySelectorAll("[data-wait]")].some((job) => Number(job.dataset.wait) <= 0);
    if (isDue || jobs.querySelector("[data-job=running]") || !busy) await refresh().catch(() => {});
    const stillBusy = Boolean(jobs.querySelector("[data-job=waiting], [data-job=running]"));
    if (wasBusy && !stillBusy && !chosen().length) reloadTable();
    wasBusy = stillBusy;
  }, 500);
}

function reloadTable() {
  const isTyping = document.activeElement instanceof HTMLInputElement && document.activeElement.type !== "checkbox";
  if (document.querySelector("table.mails") && !isTyping) location.reload();
}

if (jobs) {
  fillBack();
  const undo = jobs.querySelector("[data-undo]");
  if (undo) undo.focus();
  watchJobs();
}
