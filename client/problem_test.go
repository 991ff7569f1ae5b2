package client

import "testing"

func TestProblemSaysEachFaultOnce(t *testing.T) {
	p := &Problem{
		Status: 400, Code: "invalid_request", Detail: "/currency: too short",
		Errors: []FieldError{{Pointer: "/currency", Detail: "too short"}, {Parameter: "limit", Detail: "not a number"}},
	}
	if got, want := p.Error(), "400 invalid_request: /currency: too short; limit: not a number"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
