// Go's net/http.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"time"
)

const parameters = `{"borderMtaData":{"envelopeFrom":"a@example.org","envelopeRecipients":["b@example.net"]}}`

const list = "blocked-senders"

var client *http.Client

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// form writes both parts. It fails if the service has answered before it has read everything.
func form(writer *multipart.Writer) error {
	header := textproto.MIMEHeader{}
	header.Set("Content-Disposition", `form-data; name="parameters"`)
	header.Set("Content-Type", "application/json")
	part, err := writer.CreatePart(header)
	if err != nil {
		return err
	}
	if _, err = io.WriteString(part, parameters); err != nil {
		return err
	}
	if part, err = writer.CreateFormFile("email", "größe.eml"); err != nil {
		return err
	}
	mail, err := os.ReadFile(os.Getenv("MAIL"))
	check(err)
	if _, err = part.Write(mail); err != nil {
		return err
	}
	return writer.Close()
}

func submit(url, token, way string) (*http.Response, error) {
	var body io.Reader
	var kind string
	if way == "chunks" {
		reader, pipe := io.Pipe()
		writer := multipart.NewWriter(pipe)
		kind, body = writer.FormDataContentType(), reader
		go func() { pipe.CloseWithError(form(writer)) }()
	} else {
		buffer := &bytes.Buffer{}
		writer := multipart.NewWriter(buffer)
		check(form(writer))
		kind, body = writer.FormDataContentType(), buffer
	}
	request, err := http.NewRequest("POST", url+"/v1/messageQueue/submitEmail", body)
	check(err)
	request.Header.Set("Content-Type", kind)
	request.Header.Set("Authorization", "Bearer "+token)
	if way == "expect" {
		request.Header.Set("Expect", "100-continue")
	}
	return client.Do(request)
}

func lists(url, operation string, body map[string]any) (*http.Response, error) {
	content, err := json.Marshal(body)
	check(err)
	request, err := http.NewRequest("POST", url+"/api/public/lists/v1/"+operation, bytes.NewReader(content))
	check(err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "apikey "+os.Getenv("KEY"))
	return client.Do(request)
}

func say(name, field string, answer *http.Response, err error) {
	check(err)
	defer answer.Body.Close()
	found := map[string]any{}
	check(json.NewDecoder(answer.Body).Decode(&found))
	fmt.Println(name, answer.StatusCode, found[field])
}

func use(url, way string) {
	answer, err := submit(url, os.Getenv("TOKEN"), way)
	say("submit", "decision", answer, err)
	request, err := http.NewRequest("POST", url+"/v1/admin/status", nil)
	check(err)
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	answer, err = client.Do(request)
	say("status", "messageQueueStatus", answer, err)
	names, entries := []string{}, []map[string]string{}
	for number := 0; number < 500; number++ {
		name := fmt.Sprintf("user%d@example.org", number)
		names = append(names, name)
		entries = append(entries, map[string]string{"entry": name, "comment": "größe"})
	}
	answer, err = lists(url, "getLists", map[string]any{})
	check(err)
	known := struct {
		ListFileInfos []struct {
			ListName string
			ListInfo struct{ DisplayName string }
		}
	}{}
	check(json.NewDecoder(answer.Body).Decode(&known))
	answer.Body.Close()
	for _, info := range known.ListFileInfos {
		if info.ListInfo.DisplayName == "Blocked senders" {
			fmt.Println("lists", answer.StatusCode, info.ListName)
		}
	}
	answer, err = lists(url, "addEntries", map[string]any{"listName": list, "entries": entries})
	say("add", "modifiedEntries", answer, err)
	answer, err = lists(url, "listEntries", map[string]any{"listName": list})
	check(err)
	count := 0
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); count++ {
		check(json.Unmarshal(lines.Bytes(), &map[string]string{}))
	}
	answer.Body.Close()
	fmt.Println("download", answer.StatusCode, count)
	answer, err = lists(url, "deleteEntries", map[string]any{"listName": list, "entries": names})
	say("delete", "modifiedEntries", answer, err)
	answer, err = submit(url, "wrong", way)
	say("wrong", "error", answer, err)
}

func main() {
	pem, err := os.ReadFile(os.Getenv("CA"))
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: trusted},
		ForceAttemptHTTP2:     true,
		ExpectContinueTimeout: 30 * time.Second,
	}}
	for _, url := range os.Args[1:] {
		for _, way := range []string{"length", "chunks", "expect"} {
			use(url, way)
		}
	}
}
