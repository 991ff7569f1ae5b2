package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// accountName is the form of a bench account's id; its width is fixed, so that a
// request can be patched in place.
const accountName = "bench-%08d"

// accountID returns the id of bench account n.
func accountID(n int) string { return fmt.Sprintf(accountName, n) }

// keyLen is the length of an idempotency key: 128 random bits in hexadecimal,
// about what callers use.
const keyLen = 32

// httpConn is one persistent connection that posts the requests of a workload. It
// belongs to one goroutine.
type httpConn struct {
	address string
	// deadline bounds everything: an answer that never comes must not keep the
	// bench for ever. It is set once a connection, because it costs.
	deadline time.Time
	nc       net.Conn
	in       *bufio.Reader
	request  []byte
	accounts [][]byte // where the digits of the accounts are in request
	keys     [][]byte // where the keys are in request
	// counted is true when the operations that were applied are counted in the
	// answer: its status says nothing about them.
	counted bool
	rng     *rand.PCG
}

const answerBuffer = 4 << 10

// newHTTPConn returns a connection that posts credits.
func newHTTPConn(address string, deadline time.Time, rng *rand.PCG) *httpConn {
	return newWorkloadConn(address, deadline, rng, Uniform)
}

// newWorkloadConn returns a connection that posts the requests of w.
func newWorkloadConn(address string, deadline time.Time, rng *rand.PCG, w Workload) *httpConn {
	c := &httpConn{address: address, deadline: deadline, rng: rng, in: bufio.NewReaderSize(nil, answerBuffer)}
	path, body, keyed := "/v1/accounts/"+accountID(0)+"/credits", `{"amount":100}`, true
	switch w {
	case Transfers, TransfersHouse:
		path, body = "/v1/transfers", `{"from":"`+accountID(0)+`","to":"`+accountID(0)+`","amount":100}`
	case Batches:
		item := `{"type":"credit","idempotency_key":"` + strings.Repeat("k", keyLen) + `","account_id":"` + accountID(0) + `","amount":100}`
		path, body, keyed = "/v1/batches", `{"items":[`+strings.Repeat(item+",", w.operations()-1)+item+`]}`, false
		c.counted = true
	}
	head := "POST " + path + " HTTP/1.1\r\nHost: " + address +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body))
	if keyed {
		head += "\r\nIdempotency-Key: " + strings.Repeat("k", keyLen)
	}
	c.request = []byte(head + "\r\n\r\n" + body)
	c.accounts = places(c.request, accountID(0), len("bench-"))
	c.keys = places(c.request, strings.Repeat("k", keyLen), 0)
	return c
}

// places returns the parts of b at which text stands, without its first skip bytes.
func places(b []byte, text string, skip int) (all [][]byte) {
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(text))
		if i < 0 {
			return all
		}
		all = append(all, b[at+i+skip:at+i+len(text)])
		at += i + len(text)
	}
}

func (c *httpConn) dial() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return err
	}
	c.nc = nc
	c.in.Reset(nc)
	return nc.SetDeadline(c.deadline)
}

func (c *httpConn) close() {
	if c.nc != nil {
		_ = c.nc.Close() // nothing is written any more
		c.nc = nil
	}
}

// post credits the account under a new key and returns the status of the
// answer. After an error the connection is closed.
func (c *httpConn) post(account int) (status int, err error) {
	_, status, err = c.postTo(func(int) int { return account })
	return status, err
}

// postTo posts one request under new keys and returns how many operations were
// applied, as far as the answer says so; account gives the accounts, in the
// order of the request.
func (c *httpConn) postTo(account func(i int) int) (applied, status int, err error) {
	for i, digits := range c.accounts {
		putDigits(digits, account(i))
	}
	for _, key := range c.keys {
		putKey(key, c.rng)
	}
	if c.nc == nil {
		if err := c.dial(); err != nil {
			return 0, 0, err
		}
	}
	if _, err = c.nc.Write(c.request); err == nil {
		var keep bool
		if c.counted {
			applied, status, keep, err = countAnswer(c.in)
		} else {
			status, keep, err = readAnswer(c.in)
		}
		if err == nil && keep {
			if !c.counted && status == http.StatusCreated {
				applied = 1
			}
			return applied, status, nil
		}
	}
	c.close()
	return 0, status, err
}

// countAnswer reads the answer to a batch and counts the items that were applied.
func countAnswer(in *bufio.Reader) (applied, status int, keep bool, err error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, 0, false, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return bytes.Count(body, []byte(`{"status":201,`)), res.StatusCode, !res.Close, err
}

// putDigits writes n in decimal over all of b.
func putDigits(b []byte, n int) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
}

// putKey fills b, of keyLen bytes, with a random key.
func putKey(b []byte, rng *rand.PCG) {
	const hex = "0123456789abcdef"
	for i := 0; i < keyLen; i += 16 {
		v := rng.Uint64()
		for j := range 16 {
			b[i+j] = hex[v>>(4*j)&15]
		}
	}
}

var errAnswer = errors.New("the answer is not HTTP/1.1")

// readAnswer reads one answer and skips its body. It knows just as much HTTP as
// the service speaks: a status line, headers, and a body with a length or in
// chunks. It reports whether the connection stays open.
func readAnswer(in *bufio.Reader) (status int, keep bool, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, false, err
	}
	if len(line) < len("HTTP/1.1 200") || string(line[:9]) != "HTTP/1.1 " {
		return 0, false, errAnswer
	}
	for _, c := range line[9:12] {
		status = status*10 + int(c-'0')
	}
	keep = true
	length, chunked := 0, false
	for {
		line, err = in.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := header(line, "content-length:"); ok {
			length = decimal(v)
		} else if v, ok := header(line, "transfer-encoding:"); ok {
			chunked = string(v) == "chunked"
		} else if v, ok := header(line, "connection:"); ok {
			keep = string(v) != "close"
		}
	}
	if chunked {
		return status, keep, skipChunks(in)
	}
	_, err = in.Discard(length)
	return status, keep, err
}

// header returns the trimmed value when line is the header with this name, which
// is in lower case and has its colon.
func header(line []byte, name string) ([]byte, bool) {
	if len(line) < len(name) {
		return nil, false
	}
	for i := range len(name) {
		if line[i]|0x20 != name[i]|0x20 {
			return nil, false
		}
	}
	v := line[len(name):]
	for len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	for len(v) > 0 && (v[len(v)-1] == '\n' || v[len(v)-1] == '\r') {
		v = v[:len(v)-1]
	}
	return v, true
}

func decimal(b []byte) (n int) {
	for _, c := range b {
		n = n*10 + int(c-'0')
	}
	return n
}

// skipChunks reads a chunked body (RFC 9112, section 7.1) to its end.
func skipChunks(in *bufio.Reader) error {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size := 0
		for _, c := range line {
			switch {
			case '0' <= c && c <= '9':
				size = size<<4 | int(c-'0')
				continue
			case 'a' <= c|0x20 && c|0x20 <= 'f':
				size = size<<4 | int(c|0x20-'a'+10)
				continue
			}
			break
		}
		if _, err := in.Discard(size + 2); err != nil {
			if size == 0 && errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if size == 0 {
			return nil
		}
	}
}
