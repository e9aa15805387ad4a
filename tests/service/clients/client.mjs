// Node's fetch. NODE_EXTRA_CA_CERTS has the certificate to trust.
import { readFileSync } from "node:fs";

const { TOKEN, KEY, MAIL } = process.env;
const LIST = "blocked-senders";
const PARAMETERS = JSON.stringify({
  borderMtaData: { envelopeFrom: "a@example.org", envelopeRecipients: ["b@example.net"] },
});
const ENTRIES = Array.from({ length: 500 }, (_, number) => `user${number}@example.org`);

function form() {
  const made = new FormData();
  made.set("parameters", new Blob([PARAMETERS], { type: "application/json" }));
  made.set("email", new Blob([readFileSync(MAIL)], { type: "message/rfc822" }), "größe.eml");
  return { body: made };
}

function stream() {
  const made = new Response(form().body);
  return { body: made.body, headers: { "Content-Type": made.headers.get("Content-Type") }, duplex: "half" };
}

function submit(url, token, { headers, ...request }) {
  const all = { ...headers, Authorization: `Bearer ${token}` };
  return fetch(`${url}/v1/messageQueue/submitEmail`, { method: "POST", ...request, headers: all });
}

function lists(url, operation, body) {
  const headers = { Authorization: `apikey ${KEY}`, "Content-Type": "application/json" };
  const path = `${url}/api/public/lists/v1/${operation}`;
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
}

async function say(name, answer, field) {
  console.log(name, answer.status, (await answer.json())[field]);
}

async function download(answer) {
  let text = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) text += piece;
  const entries = text.trimEnd().split("\n").map((line) => JSON.parse(line));
  console.log("download", answer.status, entries.length);
}

for (const url of process.argv.slice(2)) {
  for (const way of [form, stream]) {
    await say("submit", await submit(url, TOKEN, way()), "decision");
    const headers = { Authorization: `Bearer ${TOKEN}` };
    await say("status", await fetch(`${url}/v1/admin/status`, { method: "POST", headers }), "messageQueueStatus");
    const known = await lists(url, "getLists", {});
    const ours = (await known.json()).listFileInfos.find((info) => info.listInfo.displayName === "Blocked senders");
    console.log("lists", known.status, ours.listName);
    const added = ENTRIES.map((entry) => ({ entry, comment: "größe" }));
    await say("add", await lists(url, "addEntries", { listName: LIST, entries: added }), "modifiedEntries");
    await download(await lists(url, "listEntries", { listName: LIST }));
    await say("delete", await lists(url, "deleteEntries", { listName: LIST, entries: ENTRIES }), "modifiedEntries");
    await say("wrong", await submit(url, "wrong", way()), "error");
  }
}
