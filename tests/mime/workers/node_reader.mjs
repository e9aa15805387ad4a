// Reads length-prefixed mails and answers each with a line of JSON: what postal-mime or mailparser finds in it.
import { createRequire } from "node:module";
import { readSync, writeSync } from "node:fs";

const [name, modules] = process.argv.slice(2);
const require = createRequire(modules + "/");

async function postal(mail) {
  const PostalMime = require("postal-mime").default ?? require("postal-mime");
  const found = [];
  for (const forced of [false, true]) {  // enclosed mails: merged into the outer one, and as files
    const parsed = await PostalMime.parse(mail, { forceRfc822Attachments: forced });
    found.push(...texts(parsed));
    for (const one of parsed.attachments) found.push([bytes(one.content), one.filename ?? "", one.mimeType ?? ""]);
  }
  return found;
}

async function simple(mail) {
  const parsed = await require("mailparser").simpleParser(mail, { skipImageLinks: true, skipTextLinks: true });
  const found = texts(parsed);
  for (const one of parsed.attachments) found.push([bytes(one.content), one.filename ?? "", one.contentType ?? ""]);
  return found;
}

function texts(parsed) {
  return [parsed.text, parsed.html].filter((text) => text).map((text) => [bytes(text), "", ""]);
}

function bytes(content) {
  return Buffer.from(content).toString("base64");
}

function exactly(size) {
  const buffer = Buffer.alloc(size);
  let have = 0;
  while (have < size) {
    let got = 0;
    try {
      got = readSync(0, buffer, have, size - have);
    } catch (error) {
      if (error.code === "EAGAIN") continue;
      throw error;
    }
    if (got === 0) process.exit(0);
    have += got;
  }
  return buffer;
}

const read = name === "mailparser" ? simple : postal;
for (;;) {
  const mail = exactly(exactly(4).readUInt32BE());
  let found = [];
  try {
    found = await read(mail);
  } catch {}
  const answer = Buffer.from(JSON.stringify(found) + "\n");
  for (let sent = 0; sent < answer.length; ) {
    try {
      sent += writeSync(1, answer, sent);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}
