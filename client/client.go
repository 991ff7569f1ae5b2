package client

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client calls one ledgerd service. It is safe for concurrent use.
type Client struct {
	base           string
	http           *http.Client
	attemptTimeout time.Duration
	retryFor       time.Duration
}

// Option changes how a Client works.
type Option func(*Client)

// WithHTTPClient makes the Client send its requests through h, for example to
// add authentication in a RoundTripper. Redirects of h are followed by its own
// rules. The default is a client of its own for many connections to one host.
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) { c.http = h }
}

// WithAttemptTimeout bounds one attempt of a call, 10 s by default. The context
// of the call bounds all of them together.
func WithAttemptTimeout(d time.Duration) Option {
	return func(c *Client) { c.attemptTimeout = d }
}

// WithRetryFor bounds the time in which a call is repeated, counted from its
// start, 15 s by default. With 0 every call is one attempt.
func WithRetryFor(d time.Duration) Option {
	return func(c *Client) { c.retryFor = d }
}

// New returns a Client of the service at baseURL, such as
// "http://127.0.0.1:8080". It makes no connection yet.
func New(baseURL string, options ...Option) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil {
		return nil, fmt.Errorf("the address of the service: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the address of the service must look like http://host:port, not %q", baseURL)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("the address of the service has a query or a fragment: %q", baseURL)
	}
	c := &Client{
		base:           strings.TrimRight(u.String(), "/"),
		attemptTimeout: 10 * time.Second,
		retryFor:       15 * time.Second,
	}
	for _, o := range options {
		o(c)
	}
	if c.http == nil {
		c.http = &http.Client{Transport: newTransport(), CheckRedirect: keepRedirect}
	}
	return c, nil
}

// Close drops the idle connections. Calls that are under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// connectionsIdleMax is how many connections stay open between requests; with
// the two of the standard library most requests of a busy caller would dial.
const connectionsIdleMax = 1024

func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns:        connectionsIdleMax,
		MaxIdleConnsPerHost: connectionsIdleMax,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
}

// keepRedirect hands a redirect to the caller: following a 302 would turn a
// POST into a GET and report a success that was none.
func keepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
