"""pytest plugin: aiosmtpd's own test suite, run against our SMTP class.

One documented choice would otherwise hide everything else: all our replies carry an enhanced
status code, most of aiosmtpd's do not. So the code is taken off both sides before they are
compared; what is left to compare is everything else.
"""

import re
import smtplib

import aiosmtpd.controller
from aiosmtpd.testing import statuscodes

from bridge.intake.smtp import BridgeSMTP

_ENHANCED = re.compile(rb"^[245]\.\d{1,3}\.\d{1,3} ", re.MULTILINE)
_getreply = smtplib.SMTP.getreply


def _plain_getreply(self):
    code, text = _getreply(self)
    return code, _ENHANCED.sub(b"", text)


smtplib.SMTP.getreply = _plain_getreply
for _name, _status in list(vars(statuscodes.SMTP_STATUS_CODES).items()):
    if isinstance(_status, statuscodes.StatusCode):
        _plain = statuscodes.StatusCode(_status.code, _ENHANCED.sub(b"", _status.mesg))
        setattr(statuscodes.SMTP_STATUS_CODES, _name, _plain)

aiosmtpd.controller.SMTP = BridgeSMTP
