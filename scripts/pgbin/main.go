// Command pgbin prints the folder of the PostgreSQL that tests and
// `ledgerd dev` will use, so that the set-up script looks where they look.
// It exits with status 1 and says what it found when there is none.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ledgerd/ledgerd/internal/pgserver"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "fetched" {
		fmt.Println(pgserver.FetchedDir())
		return
	}
	bin, err := pgserver.FindBinaries(context.Background(), os.Getenv("LEDGERD_PG_BIN"), 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(bin.Dir)
}
