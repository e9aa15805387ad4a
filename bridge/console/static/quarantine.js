// The quarantine: selecting with mouse and keyboard. Every page works without it.
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
  const isAll = bulk.querySelector("[data-matching]")?.checked;
  for (const button of bulk.querySelectorAll(".buttons button")) button.disabled = !number && !isAll;
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
  sessionStorage.setItem("quarantine-place", box.value);  // jobs.js goes back there
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
  bulk.querySelector("[data-matching]")?.addEventListener("change", showChosen);
  bulk.querySelector("[data-all]").addEventListener("change", (event) => {
    for (const box of boxes) box.checked = event.target.checked;
    showChosen();
  });
  window.addEventListener("pageshow", showChosen);
  showChosen();
}
