// Scan a file: drop it anywhere on the frame. The form works without this.
"use strict";

const drop = document.querySelector("[data-drop]");
const input = drop.querySelector("input[type=file]");
const hint = drop.querySelector("[data-drop-hint]");

function named() {
  if (input.files.length) hint.textContent = `${input.files[0].name}, ${input.files[0].size.toLocaleString()} bytes`;
}

for (const type of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(type, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", type === "dragover");
  });
}
drop.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  const one = new DataTransfer();
  one.items.add(event.dataTransfer.files[0]);
  input.files = one.files;
  named();
  input.form.requestSubmit();
});
input.addEventListener("change", named);
