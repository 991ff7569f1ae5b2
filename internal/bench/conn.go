package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
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

// httpConn is one persistent connection that posts credits. It belongs to one
// goroutine.
type httpConn struct {
	address string
	// deadline bounds everything: an answer that never comes must not keep the
	// bench for ever. It is set once a connection, because it costs.
	deadline time.Time
	nc       net.Conn
	in       *bufio.Reader
	request  []byte
	account  []byte // where the digits of the account are in request
	key      []byte // where the key is in request
	rng      *rand.PCG
}

const answerBuffer = 4 << 10

func newHTTPConn(address string, deadline time.Time, rng *rand.PCG) *httpConn {
	const body = `{"amount":100}`
	head := "POST /v1/accounts/"
	at := len(head) + len("bench-")
	head += accountID(0) + "/credits HTTP/1.1\r\nHost: " + address +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\nIdempotency-Key: "
	keyAt := len(head)
	c := &httpConn{address: address, deadline: deadline, rng: rng, in: bufio.NewReaderSize(nil, answerBuffer)}
	c.request = append([]byte(head), make([]byte, keyLen)...)
	c.request = append(c.request, "\r\n\r\n"+body...)
	c.account = c.request[at : at+8]
	c.key = c.request[keyAt : keyAt+keyLen]
	return c
}

func (c *httpConn) dial() error {
	nc, err := net.DialTimeout("tcp", c.address, 5*time.Second)
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
	putDigits(c.account, account)
	putKey(c.key, c.rng)
	if c.nc == nil {
		if err := c.dial(); err != nil {
			return 0, err
		}
	}
	if _, err = c.nc.Write(c.request); err == nil {
		var keep bool
		if status, keep, err = readAnswer(c.in); err == nil && keep {
			return status, nil
		}
	}
	c.close()
	return status, err
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
