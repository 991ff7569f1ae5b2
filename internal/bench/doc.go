// Package bench measures a running service: a closed loop of single-operation
// POSTs over HTTP, beside the floor of what its database alone can do, with the
// lag of the projection, and with the audit at the end.
//
// The load generator shares the machine with what it measures, so it must be
// cheap: persistent connections, requests that are patched in place, answers
// that are skipped, and no allocation for a request
// (TestRequestCostsNoAllocation).
//
// A figure counts only what was answered with 201 inside the measured time. It
// is printed next to the floor of the same minute, because machines differ from
// hour to hour: the ratio is the result, not the rate.
package bench
