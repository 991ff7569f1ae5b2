package apitest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const accountJSON = `{"account_id":"a","currency":"EUR","exponent":2,"status":"active","balance":0,"held":0,"available":0,"min_balance":0,` +
	`"fencing":{"source":"lease","required":false},"fence":0,"seq":1,"metadata":{},"opened_at":"2026-11-30T09:30:00.000000Z"}`

const problemJSON = `{"type":"/docs#not_found","title":"t","status":404,"code":"not_found","request_id":"r"}`

func TestCheck(t *testing.T) {
	c := New(t)
	tests := []struct {
		name         string
		method, path string
		body         string
		status       int
		answer       string
		allowed      bool
		header       map[string]string
	}{
		{"RightExchange", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, accountJSON, true, nil},
		{"MetadataOfAnyName", "PUT", "/v1/accounts/a", `{"currency":"EUR","metadata":{"a.b":"c"}}`, 201, strings.Replace(accountJSON, `"metadata":{}`, `"metadata":{"a.b":"c","é [0]":""}`, 1), true, nil},
		{"MetadataThatIsNoText", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, strings.Replace(accountJSON, `"metadata":{}`, `"metadata":{"a":1}`, 1), false, nil},
		{"UndeclaredMemberOfTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, strings.Replace(accountJSON, "{", `{"more":1,`, 1), false, nil},
		{"MissingMemberOfTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, strings.Replace(accountJSON, `"seq":1,`, "", 1), false, nil},
		{"WrongTypeInTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, strings.Replace(accountJSON, `"seq":1`, `"seq":"1"`, 1), false, nil},
		{"WrongTimeInTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, strings.Replace(accountJSON, ".000000Z", "Z", 1), false, nil},
		{"UndeclaredStatus", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 418, problemJSON, false, nil},
		{"AcceptedButNotAllowed", "PUT", "/v1/accounts/a", `{"currency":"EUR","colour":"red"}`, 201, accountJSON, false, nil},
		{"AcceptedWithoutWhatIsRequired", "PUT", "/v1/accounts/a", `{}`, 201, accountJSON, false, nil},
		{"AcceptedBadID", "PUT", "/v1/accounts/-a", `{"currency":"EUR"}`, 201, accountJSON, false, nil},
		{"AcceptedBadParameter", "GET", "/v1/accounts?limit=201", "", 200, `{"data":[],"next_cursor":null}`, false, nil},
		{"RefusedAlthoughAllowed", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 400, strings.ReplaceAll(strings.Replace(problemJSON, "not_found", "invalid_request", 2), "404", "400"), true, nil},
		{"UnknownPath", "GET", "/v2", "", 404, problemJSON, true, nil},
		{"UnknownPathWithoutProblem", "GET", "/v2", "", 404, "404 page not found", false, nil},
		{"UnknownMethod", "POST", "/v1/accounts", "", 405, strings.Replace(problemJSON, `"code":"not_found"`, `"code":"method_not_allowed"`, 1), true, nil},
		{"UndeclaredHeaderOfTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, accountJSON, false, map[string]string{"X-More": "1"}},
		{"WrongHeaderOfTheAnswer", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 201, accountJSON, false, map[string]string{"ETag": "1"}},
		{"UnknownCode", "PUT", "/v1/accounts/a", `{"currency":"EUR"}`, 500, strings.Replace(problemJSON, `"code":"not_found"`, `"code":"oops"`, 1), false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.path, nil)
			if tt.body != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			contentType := "application/json"
			if tt.status >= 400 && strings.HasPrefix(tt.answer, "{") {
				contentType = "application/problem+json"
			}
			response := &http.Response{StatusCode: tt.status, Header: http.Header{"Content-Type": {contentType}, "X-Request-Id": {"r"}}}
			if tt.status == 201 {
				response.Header.Set("ETag", `"1"`)
				response.Header.Set("Location", "/v1/accounts/a")
			}
			for name, value := range tt.header {
				response.Header.Set(name, value)
			}
			err := c.Check(r, []byte(tt.body), response, []byte(tt.answer))
			if (err == nil) != tt.allowed {
				t.Errorf("allowed: %v, want %v; error: %v", err == nil, tt.allowed, err)
			}
		})
	}
}
