// Reads length-prefixed mails and answers each with a line of JSON: what one of the readers below finds in it.
import { createRequire, registerHooks } from "node:module";
import { readSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

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

// jsmime is written for bundlers, which find files without their extension.
registerHooks({
  resolve(specifier, context, next) {
    const bare = context.parentURL?.includes("/jsmimeparser/") && !specifier.endsWith(".js");
    return next(bare ? `${specifier}.js` : specifier, context);
  },
});

// Thunderbird's parser, as Proton uses it.
async function jsmime(mail) {
  const { parseMail } = await import(pathToFileURL(`${modules}/@protontech/jsmimeparser/index.js`).href);
  const parsed = parseMail(mail.toString("latin1"));
  const found = texts(parsed.body);
  for (const one of parsed.attachments) found.push([bytes(one.content), one.fileName ?? "", one.contentType ?? ""]);
  return found;
}

async function emailjs(mail) {
  const found = [];
  const todo = [require("emailjs-mime-parser").default(mail.toString("latin1"))];
  while (todo.length) {
    const node = todo.pop();
    todo.push(...node.childNodes);
    const type = node.contentType ?? {};
    const disposition = node.headers["content-disposition"]?.[0]?.params ?? {};
    const name = disposition.filename ?? type.params?.name ?? "";
    if (node.content) found.push([bytes(node.content), name, type.value ?? ""]);
  }
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

const read = { "postal-mime": postal, mailparser: simple, jsmime, emailjs }[name];
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
