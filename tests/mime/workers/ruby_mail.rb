# Reads length-prefixed mails and answers each with a line of JSON: what Ruby's mail library finds in it.
require "json"
require "mail"

def collect(part, found)
  if part.multipart?
    part.parts.each { |child| collect(child, found) }
  else
    body = begin
      part.body.decoded
    rescue StandardError
      part.body.raw_source
    end
    name = begin
      part.filename.to_s
    rescue StandardError
      ""
    end
    kind = begin
      part.mime_type.to_s
    rescue StandardError
      ""
    end
    found << [[body.b].pack("m0"), name.b.force_encoding("UTF-8").scrub, kind.b.force_encoding("UTF-8").scrub]
  end
end

STDIN.binmode
STDOUT.sync = true
while (size = STDIN.read(4))
  mail = STDIN.read(size.unpack1("N"))
  found = []
  begin
    collect(Mail.new(mail), found)
  rescue StandardError, SystemStackError
    # the library fails on some mails
  end
  puts JSON.generate(found)
end
