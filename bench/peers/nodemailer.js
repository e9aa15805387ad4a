// nodemailer's smtp-server as a bridge: node nodemailer.js PORT SCANNER
'use strict';
const { SMTPServer } = require('smtp-server');
const submit = require('./submit.js')(process.argv[3]);

function fail(code) {
  return Object.assign(new Error('not delivered'), { responseCode: code });
}

new SMTPServer({
  authOptional: true,
  disabledCommands: ['AUTH', 'STARTTLS'],
  disableReverseLookup: true,
  size: 64 * 1024 * 1024,
  logger: false,
  onData(stream, session, done) {
    const parts = [];
    stream.on('data', (part) => parts.push(part));
    stream.on('end', () => {
      const envelope = {
        envelopeFrom: session.envelope.mailFrom.address,
        envelopeRecipients: session.envelope.rcptTo.map((one) => one.address),
        remoteAddress: session.remoteAddress,
        senderHelo: session.hostNameAppearsAs,
      };
      submit(envelope, parts).then(
        (decision) => done(decision === 'deliver' ? null : fail(decision === 'bounce' ? 550 : 451), 'OK'),
        () => done(fail(451)),
      );
    });
  },
}).listen(+process.argv[2], '127.0.0.1');
