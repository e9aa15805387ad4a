// One mail to the scanner, for the peers in Node: undici's own request with a body put together by hand, its quickest way.
'use strict';
const { Agent, request } = require('undici');

const dispatcher = new Agent({ connections: null, keepAliveTimeout: 60e3, headersTimeout: 120e3, bodyTimeout: 120e3 });
const boundary = 'peer-of-the-benchmark';
const head = `--${boundary}\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n`;
const middle = `\r\n--${boundary}\r\nContent-Disposition: form-data; name="email"; filename="mail.eml"\r\nContent-Type: message/rfc822\r\n\r\n`;
const tail = Buffer.from(`\r\n--${boundary}--\r\n`);

module.exports = (scanner) => async (envelope, parts) => {
  const start = Buffer.from(head + JSON.stringify({ borderMtaData: envelope }) + middle);
  const answer = await request(`${scanner}/v1/messageQueue/submitEmail`, {
    method: 'POST',
    dispatcher,
    body: Buffer.concat([start, ...parts, tail]),
    headers: { authorization: 'Bearer 0123456789abcdef', 'content-type': `multipart/form-data; boundary=${boundary}` },
  });
  const result = await answer.body.json();
  if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
  return result.decision;
};
