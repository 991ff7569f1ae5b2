package importer

import (
	"context"
	"fmt"
	"strings"

	"github.com/ledgerd/ledgerd/client"
)

// compare returns the refusal of an opening with what the account has where
// something else was asked for. When the account cannot be read it returns the
// refusal as it is.
func (im *importer) compare(ctx context.Context, id string, asked *client.Opening, p *client.Problem) error {
	a, err := im.cfg.Client.Account(ctx, id)
	if err != nil {
		return p
	}
	described := *p
	described.Detail = "The account exists, with " + strings.Join(differences(&a, asked), "; ") + "."
	return &described
}

// differences names the attributes of an account that are not the ones asked
// for. An account is opened with attributes and can have others now; when these
// are all as asked, it was opened with others.
func differences(a *client.Account, asked *client.Opening) []string {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if a.Currency != asked.Currency {
		note("currency %s, not %s", a.Currency, asked.Currency)
	}
	if asked.Exponent != nil && a.Exponent != *asked.Exponent {
		note("exponent %d, not %d", a.Exponent, *asked.Exponent)
	}
	if a.MinBalance != asked.MinBalance {
		note("min_balance %d, not %d", a.MinBalance, asked.MinBalance)
	}
	if a.Fencing != (client.Fencing{Source: client.SourceLease}) {
		note("fencing tokens of source %s, required: %t", a.Fencing.Source, a.Fencing.Required)
	}
	if len(a.Metadata) > 0 {
		note("metadata, and none was asked for")
	}
	if len(found) == 0 {
		note("currency %s, exponent %d and min_balance %d now; it was opened with others", a.Currency, a.Exponent, a.MinBalance)
	}
	return found
}
