// Haraka's plugin of the same job; bench/peers.py puts it into a configuration of its own.
'use strict';
const submit = require(process.env.SUBMIT)(process.env.SCANNER);
const text = (address) => (typeof address.address === 'function' ? address.address() : address.address);

exports.hook_rcpt = (next) => next(OK);

exports.hook_data_post = (next, connection) => {
  const mail = connection.transaction;
  const envelope = {
    envelopeFrom: text(mail.mail_from),
    envelopeRecipients: mail.rcpt_to.map(text),
    remoteAddress: connection.remote.ip,
    senderHelo: connection.hello.host,
  };
  mail.message_stream.get_data((content) => {
    submit(envelope, [content]).then(
      (decision) => (decision === 'deliver' ? next() : next(decision === 'bounce' ? DENY : DENYSOFT, 'not delivered')),
      () => next(DENYSOFT, 'the scan failed'),
    );
  });
};

exports.hook_queue = (next) => next(OK, 'queued');
