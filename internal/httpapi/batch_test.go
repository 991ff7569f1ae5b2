package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// result is one result of a batch.
type result struct {
	Status   int            `json:"status"`
	Key      string         `json:"idempotency_key"`
	Replayed bool           `json:"replayed"`
	Body     map[string]any `json:"body"`
}

func (r result) String() string { return fmt.Sprintf("%d %s %v", r.Status, r.Key, r.Body) }

// code is the code of a problem document, or the kind of an entry.
func (r result) code() string {
	for _, name := range []string{"code", "kind"} {
		if s, ok := r.Body[name].(string); ok {
			return s
		}
	}
	return fmt.Sprint(len(r.Body["entries"].([]any)), " entries")
}

func (s *service) batch(items ...string) []result {
	s.t.Helper()
	r := s.do("POST", "/v1/batches", `{"items":[`+strings.Join(items, ",")+`]}`).expect(200)
	var answer struct {
		Results []result `json:"results"`
	}
	if err := json.Unmarshal([]byte(r.text), &answer); err != nil {
		s.t.Fatalf("%v: %s", err, r.text)
	}
	return answer.Results
}

// stream sends the lines in one piece and returns the results.
func (s *service) stream(lines ...string) []result {
	s.t.Helper()
	r := s.ndjson(strings.Join(lines, "\n")).expect(200)
	r.headerIs("Content-Type", "application/x-ndjson")
	var results []result
	for line := range strings.Lines(r.text) {
		var one result
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			s.t.Fatalf("%v: %s", err, line)
		}
		results = append(results, one)
	}
	return results
}

func (s *service) ndjson(body string) reply {
	s.t.Helper()
	r, err := http.NewRequest("POST", "http://ledgerd.test/v1/batches", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	return read(s.t, s.client, r)
}

// mixed is a batch in which everything comes: what happens to an item depends on
// it and on those before it alone.
var mixed = []struct {
	item   string
	status int
	code   string
}{
	{`{"type":"credit","idempotency_key":"1","account_id":"A","amount":100,"currency":"EUR","counterparty":"x","description":"é \"quoted\" 🙂"}`, 201, "credit"},
	{`{"idempotency_key":"2","account_id":"A","amount":30,"type":"debit","metadata":{"order":"7"}}`, 201, "debit"},
	{`{"type":"debit","idempotency_key":"3","account_id":"A","amount":71}`, 422, "insufficient_funds"},
	{`{"type":"transfer","idempotency_key":"4","from":"A","to":"B","amount":50}`, 201, "2 entries"},
	{`{"type":"transfer","idempotency_key":"4","from":"A","to":"B","amount":50}`, 201, "2 entries"}, // a replay
	{`{"type":"transfer","idempotency_key":"4","from":"A","to":"B","amount":51}`, 422, "idempotency_key_reused"},
	{`{"type":"transaction","idempotency_key":"5","legs":[{"account_id":"B","direction":"debit","amount":9},{"account_id":"A","direction":"credit","amount":4},{"account_id":"C","direction":"credit","amount":5}]}`, 201, "3 entries"},
	{`{"type":"transfer","idempotency_key":"6","from":"A","to":"A","amount":1}`, 422, "same_account"},
	{`{"type":"credit","idempotency_key":"7","account_id":"nobody","amount":1}`, 404, "account_not_found"},
	{`{"type":"credit","account_id":"A","amount":1}`, 400, "idempotency_key_missing"},
	{`{"type":"credit","idempotency_key":"a b","account_id":"A","amount":1}`, 400, "idempotency_key_invalid"},
	{`{"type":"credit","idempotency_key":"8","account_id":"A","amount":1.5}`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"8","account_id":"A","amount":1,"amount":2}`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"8","account_id":"A","amount":1,"metadata":{"a":"\ud800"}}`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"8","account_id":"A","amount":1,"metadata":{"a":"\u0000"}}`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"8","account_id":"A","amount":1,"from":"B"}`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"8","amount":1}`, 400, "invalid_request"},
	{`{"type":"transfer","idempotency_key":"8","account_id":"A","from":"A","to":"B","amount":1}`, 400, "invalid_request"},
	{`{"type":"transfer","idempotency_key":"8","from":"A","to":"B","amount":1,"if_match":1}`, 400, "invalid_request"},
	{`{"type":"refund","idempotency_key":"8","account_id":"A","amount":1}`, 400, "invalid_request"},
	{`{"idempotency_key":"8","account_id":"A","amount":1}`, 400, "invalid_request"},
	{`{}`, 400, "invalid_request"},
	{`7`, 400, "invalid_request"},
	{`null`, 400, "invalid_request"},
	{`[]`, 400, "invalid_request"},
	{`{"type":"credit","idempotency_key":"10","account_id":"A","amount":1,"if_match":1}`, 412, "seq_mismatch"},
	{`{"type":"credit","idempotency_key":"11","account_id":"A","amount":1,"fencing_token":3}`, 409, "token_from_the_future"},
	{`{"type":"credit","idempotency_key":"9","account_id":"A","amount":1}`, 201, "credit"},
}

func checkMixed(t *testing.T, s *service, results []result, replayed bool) {
	t.Helper()
	if len(results) != len(mixed) {
		t.Fatalf("%d results of %d items: %v", len(results), len(mixed), results)
	}
	for i, want := range mixed {
		got := results[i]
		if got.Status != want.status || got.code() != want.code {
			t.Errorf("item %d, %s: %v", i, want.item, got)
		}
		if got.Status == 201 && got.Replayed != (replayed || i == 4) {
			t.Errorf("item %d: replayed is %v", i, got.Replayed)
		}
		if status, _ := got.Body["status"].(float64); got.Status >= 400 && (int(status) != want.status || got.Body["applied"] != false) {
			t.Errorf("item %d: %v", i, got)
		}
	}
	s.balanceIs("A", 25)
	s.balanceIs("B", 41)
	s.balanceIs("C", 5)
	s.seqIs("A", 8) // opened, 2 movements, a decline, 2 legs, a decline, a credit
}

// TestBatch is case 47 for batches: each item has the status and the body of the
// single call, and none fails its neighbours; sent again, all are replays.
func TestBatch(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*service, ...string) []result{"JSON": (*service).batch, "Stream": (*service).stream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			for _, id := range []string{"A", "B", "C"} {
				s.open(id)
			}
			var items []string
			for _, m := range mixed {
				items = append(items, m.item)
			}
			first := send(s, items...)
			checkMixed(t, s, first, false)
			again := send(s, items...)
			checkMixed(t, s, again, true)
			for i := range first {
				if first[i].Status == 201 && fmt.Sprint(first[i].Body) != fmt.Sprint(again[i].Body) {
					t.Errorf("item %d was %v and is %v", i, first[i], again[i])
				}
			}
			// The single call with the same key is the same operation.
			single := s.debit("A", `{"amount":30,"metadata":{"order":"7"}}`, "2").expect(201).headerIs("Idempotency-Replayed", "true")
			if single.get("hash") != first[1].Body["hash"] {
				t.Errorf("the single call is %s, the item %v", single.text, first[1])
			}
			s.debit("A", `{"amount":71}`, "3").refused(422, ledger.CodeInsufficientFunds).has("seq", int(first[2].Body["seq"].(float64)))
		})
	}
}

func TestBatchIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	const item = `{"type":"credit","idempotency_key":"1","account_id":"A","amount":1}`
	for _, body := range []string{
		` `, `{}`, `[]`, `{"items":{}}`, `{"items":[` + item, `{"items":[` + item + `]`, `{"items":[` + item + `]}x`, `{"items":[` + item + `,]}`,
		`{"items":[` + item + `],"items":[]}`, `{"items":[` + item + `],"all":1}`, `{"items":[` + item + ` ` + item + `]}`, `{"items":[` + strings.Repeat("1,", 10_000) + `1]}`,
	} {
		s.do("POST", "/v1/batches", body).refused(400, ledger.CodeInvalid).has("applied", false)
	}
	whole := `{"items":[` + item + `]}`
	s.do("POST", "/v1/batches", whole, headerToken, "1").refused(400, ledger.CodeInvalid)
	s.do("POST", "/v1/batches", whole, headerIfMatch, `"1"`).refused(400, ledger.CodeInvalid)
	s.do("POST", "/v1/batches?x=1", whole).refused(400, ledger.CodeInvalid)
	s.do("POST", "/v1/batches", `{"items":["`+strings.Repeat("x", batchBytesMax)+`"]}`).refused(413, codeRequestTooLarge)
	do(t, s.client, "POST", "/v1/batches", "", "Content-Type", "text/csv").refused(415, codeUnsupportedMediaType)
	s.seqIs("A", 1)
	if got := s.batch(); len(got) != 0 {
		t.Errorf("an empty batch has the results %v", got)
	}
}

// TestLargeBatchKeepsTheOrder sends as many items as a batch can have, on few
// accounts: each takes what the one before it has brought.
func TestLargeBatchKeepsTheOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 5 {
		s.open(fmt.Sprint("A", i))
	}
	var items []string
	for i := range batchItemsMax {
		kind := []string{"credit", "debit"}[i/5%2]
		items = append(items, fmt.Sprintf(`{"type":%q,"idempotency_key":"k%d","account_id":"A%d","amount":%d}`, kind, i, i%5, i/10+1))
	}
	results := s.batch(items...)
	if len(results) != len(items) {
		t.Fatalf("%d results", len(results))
	}
	for i, r := range results {
		if r.Status != 201 || r.Key != fmt.Sprint("k", i) {
			t.Fatalf("item %d: %v", i, r)
		}
	}
	s.balanceIs("A3", 0)
	s.seqIs("A3", 1+batchItemsMax/5)
}

func TestLinesOfAStream(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", lineBytesMax+1)
	fits := strings.Repeat("y", lineBytesMax)
	l := &lineReader{in: bufio.NewReaderSize(strings.NewReader("a\n\n  \r\nb\r\n"+long+"\nc\n"+fits+"\r\n"+long+"\nlast"), 64)}
	var got []string
	for {
		line, err := l.next()
		if err != nil && line == nil && fmt.Sprint(err) == "EOF" {
			break
		}
		switch {
		case err != nil:
			got = append(got, err.Error()[:len(codeRequestTooLarge)])
		case len(line) == lineBytesMax:
			got = append(got, "fits")
		default:
			got = append(got, string(line))
		}
	}
	if s := strings.Join(got, " "); s != "a b request_too_large c fits request_too_large last" {
		t.Errorf("the lines are %s", s)
	}
}
