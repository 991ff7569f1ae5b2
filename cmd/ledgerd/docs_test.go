package main

import (
	"encoding/json"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The examples of the page work as they stand, in their order, on an empty
// ledger; and again, as the same requests.
func TestExamplesOfThePageWork(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy() // a batch does not go through the books
	n := serve(t, b)
	page := string(n.do(http.MethodGet, "/docs", "").body)
	examples := regexp.MustCompile(`(?s)<pre>(curl .*?)</pre>`).FindAllStringSubmatch(page, -1)
	if len(examples) < 8 {
		t.Fatalf("the page has %d examples", len(examples))
	}
	var keys []string
	for _, status := range []int{http.StatusCreated, http.StatusOK} {
		for _, text := range examples {
			line := html.UnescapeString(strings.ReplaceAll(text[1], "\\\n", " "))
			if !strings.Contains(line, " "+n.url+"/") {
				t.Errorf("the example is not for %s, where the page is from: %s", n.url, line)
				continue
			}
			e := example{words: shellWords(t, line)}
			method, path, body, headers := e.request(n)
			a := n.do(method, path, body, headers...)
			if a.status >= 300 || method == http.MethodPut && a.status != status {
				t.Errorf("%s: the answer is %s", line, a)
			}
			var batch struct{ Results []struct{ Status int } }
			if err := json.Unmarshal(a.body, &batch); err != nil {
				t.Error(err)
			}
			for i, r := range batch.Results {
				if r.Status >= 300 {
					t.Errorf("item %d of %s: the answer is %s", i, line, a)
				}
			}
			if at := slices.Index(headers, "Idempotency-Key"); at >= 0 && status == http.StatusCreated {
				keys = append(keys, headers[at+1])
			}
		}
	}
	count := len(keys)
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) != count || count < 4 {
		t.Errorf("%d examples with a key have the keys %q", count, keys)
	}
}
