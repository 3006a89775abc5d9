// A worker, and a program that gives it a work, with Go's standard library:
// AGHD_API_SOCKET=… go run agent.go worker, AGHD_API_SOCKET=… go run agent.go give "Run the migration smoke test"
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

type fields map[string]any

type message struct {
	ID        string
	Seq       int64
	Direction string
	Kind      string
	Outcome   *string
	WorkID    string `json:"work_id"`
	Envelope  struct{ Body struct{ Text string } }
}

type item struct {
	Seq     int64
	Lease   string
	Message message
}

type event struct {
	Message *message
	Work    *struct{ After *string }
}

type refused struct{ Code, Message string }

func (r refused) Error() string { return r.Code + ": " + r.Message }

var ended = map[string]bool{"completed": true, "failed": true, "canceled": true}

var daemon = &http.Client{Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", os.Getenv("AGHD_API_SOCKET"))
	},
}}

func once(method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return refused{"invalid_request", err.Error()}
	}
	request, err := http.NewRequest(method, "http://d"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	if body == nil {
		request.Body, request.ContentLength = nil, 0
	} else {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := daemon.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 400 {
		var r refused
		if err := json.NewDecoder(response.Body).Decode(&r); err != nil || response.StatusCode == 503 {
			return errors.New("unavailable")
		}
		return r
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// call decodes the answer of the daemon. The request is repeated while the daemon is away.
func call(method, path string, body, answer any) error {
	for {
		err := once(method, path, body, answer)
		var r refused
		if err == nil || errors.As(err, &r) {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// follow gives the events of a work after a sequence to each, until it returns true: over restarts of the daemon, each once.
func follow(work string, last string, each func(event) bool) {
	for {
		if stream(work, &last, each) {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func stream(work string, last *string, each func(event) bool) bool {
	request, _ := http.NewRequest("GET", "http://d/v1/events?work="+url.QueryEscape(work), nil)
	request.Header.Set("Last-Event-ID", *last)
	response, err := daemon.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	for lines := bufio.NewReader(response.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return false // the connection is lost
		}
		if strings.HasPrefix(line, "id: ") {
			*last = strings.TrimSpace(line[4:])
		}
		var found event
		if strings.HasPrefix(line, "data: ") && json.Unmarshal([]byte(line[6:]), &found) == nil && each(found) {
			return true
		}
	}
}

// act sends one message of a job. Its id is the same when the work is taken again.
func act(job message, verb, name string, body fields) (sent struct{ Seq int64 }, err error) {
	body["id"] = fmt.Sprintf("msg_%x", sha256.Sum256([]byte(name+" "+job.ID)))
	return sent, call("POST", "/v1/works/"+url.PathEscape(job.WorkID)+"/"+verb, body, &sent)
}

func ask(job message, question string, number int) (text string, err error) {
	asked, err := act(job, "need-input", fmt.Sprint("question ", number), fields{"message": question})
	if err != nil {
		return "", err
	}
	follow(job.WorkID, fmt.Sprint(asked.Seq), func(e event) bool {
		if e.Work != nil && e.Work.After != nil && ended[*e.Work.After] {
			err = refused{"work_closed", "the work has ended"}
			return true
		}
		if m := e.Message; m != nil && m.Direction == "in" && m.Kind == "say" && m.Outcome != nil &&
			(*m.Outcome == "advanced" || *m.Outcome == "unchanged") {
			ack(m.Seq)
			text = m.Envelope.Body.Text
			return true
		}
		return false
	})
	return text, err
}

// ack acknowledges a message; it may have been already, with the end of its work.
func ack(seq int64) {
	_ = call("POST", fmt.Sprintf("/v1/inbox/%d/ack", seq), fields{}, new(any))
}

func handle(job message) error {
	branch, err := ask(job, "Which branch?", 1)
	if err != nil {
		return err
	}
	if _, err = act(job, "update", "update", fields{"message": "testing " + branch}); err != nil {
		return err
	}
	result := fields{"branch": branch, "passed": strings.Contains(job.Envelope.Body.Text, "smoke")}
	_, err = act(job, "complete", "complete", fields{"message": "tested " + branch, "result": result})
	return err
}

func renew(i item, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(20 * time.Second):
			lease := fields{"lease": i.Lease, "visibility": "1m"}
			_ = call("POST", fmt.Sprintf("/v1/inbox/%d/lease", i.Seq), lease, new(any))
		}
	}
}

func worker() error {
	for {
		var next struct{ Item *item }
		admitted := fields{"wait": "1m", "visibility": "1m", "others": false}
		if err := call("POST", "/v1/inbox/next", admitted, &next); err != nil {
			return err
		}
		i := next.Item
		if i == nil {
			continue
		}
		if i.Message.Outcome == nil || *i.Message.Outcome != "opened" {
			ack(i.Seq)
			continue
		}
		done := make(chan struct{})
		go renew(*i, done)
		_, err := act(i.Message, "accept", "accept", fields{})
		if err == nil {
			err = handle(i.Message)
		}
		if err != nil {
			_, _ = act(i.Message, "fail", "fail", fields{"message": err.Error()}) // refused when the work has ended
		}
		close(done)
		ack(i.Seq)
	}
}

func newID() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random)
	return fmt.Sprintf("msg_%x", random)
}

func give(text string) error {
	var found struct{ Peers []any }
	question := fields{"query": "test.run", "wait": "1m", "first": true}
	if err := call("POST", "/v1/whois", question, &found); err != nil {
		return err
	}
	if len(found.Peers) == 0 {
		return errors.New("no peer has the capability test.run")
	}
	var opened struct {
		WorkID string `json:"work_id"`
	}
	opening := fields{"id": newID(), "to_capability": "test.run", "text": text, "reactions": "none"}
	if err := call("POST", "/v1/works", opening, &opened); err != nil {
		return err
	}
	for input := bufio.NewReader(os.Stdin); ; {
		var now struct {
			Work struct {
				State   string
				Message *string
				Result  json.RawMessage
			}
		}
		if err := call("GET", "/v1/works/"+opened.WorkID+"?wait=1m", nil, &now); err != nil {
			return err
		}
		message := ""
		if now.Work.Message != nil {
			message = *now.Work.Message
		}
		if now.Work.State == "needs_input" {
			fmt.Print(message, " ")
			line, err := input.ReadString('\n')
			if err != nil {
				return err
			}
			answer := fields{"id": newID(), "message": strings.TrimSpace(line)}
			if err := call("POST", "/v1/works/"+opened.WorkID+"/say", answer, new(any)); err != nil {
				return err
			}
		} else if ended[now.Work.State] {
			fmt.Println(now.Work.State, message, string(now.Work.Result))
			return nil
		}
	}
}

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		err = worker()
	} else {
		err = give(strings.Join(os.Args[2:], " "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
