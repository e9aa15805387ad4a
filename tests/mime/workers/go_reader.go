// Reads length-prefixed mails and answers each with a line of JSON: what Go's standard library finds in it.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"os"
	"strings"
)

const maxDepth = 20

type found [][3]string

func decoded(raw []byte, encoding string) []byte {
	var reader io.Reader = bytes.NewReader(raw)
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "base64":
		reader = base64.NewDecoder(base64.StdEncoding, reader)
	case "quoted-printable":
		reader = quotedprintable.NewReader(reader)
	}
	content, _ := io.ReadAll(reader) // what there is before an error
	return content
}

func (all *found) part(head textproto.MIMEHeader, body io.Reader, depth int) {
	kind, params, _ := mime.ParseMediaType(head.Get("Content-Type"))
	name := params["name"]
	if _, own, _ := mime.ParseMediaType(head.Get("Content-Disposition")); own["filename"] != "" {
		name = own["filename"]
	}
	if depth > maxDepth {
		return
	}
	if strings.HasPrefix(kind, "multipart/") {
		parts := multipart.NewReader(body, params["boundary"])
		for {
			part, err := parts.NextRawPart()
			if err != nil {
				return
			}
			all.part(part.Header, part, depth+1)
		}
	}
	raw, _ := io.ReadAll(body)
	content := decoded(raw, head.Get("Content-Transfer-Encoding"))
	*all = append(*all, [3]string{base64.StdEncoding.EncodeToString(content), name, kind})
	if kind == "message/rfc822" {
		all.mail(content, depth+1)
	}
}

func (all *found) mail(content []byte, depth int) {
	if message, err := mail.ReadMessage(bytes.NewReader(content)); err == nil {
		all.part(textproto.MIMEHeader(message.Header), message.Body, depth)
	}
}

func main() {
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	var size uint32
	for binary.Read(in, binary.BigEndian, &size) == nil {
		content := make([]byte, size)
		if _, err := io.ReadFull(in, content); err != nil {
			return
		}
		all := found{}
		all.mail(content, 0)
		out.Encode(all)
	}
}
