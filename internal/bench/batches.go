package bench

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// batches is what the service's metrics say about its INSERTs.
type batches struct {
	count   uint64
	entries float64
}

// batchMetric is a histogram of the entries of each committed batch.
const batchMetric = "ledgerd_batch_entries"

func readBatches(ctx context.Context, address string) (batches, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return batches{}, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return batches{}, fmt.Errorf("read the metrics: %w", err)
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return batches{}, fmt.Errorf("read the metrics: %w", err)
	}
	var b batches
	for _, m := range families[batchMetric].GetMetric() {
		b.count += m.GetHistogram().GetSampleCount()
		b.entries += m.GetHistogram().GetSampleSum()
	}
	return b, nil
}

// since returns what was added to b until now.
func (b batches) since(ctx context.Context, address string) (batches, error) {
	now, err := readBatches(ctx, address)
	return batches{count: now.count - b.count, entries: now.entries - b.entries}, err
}

func (b batches) mean() float64 {
	if b.count == 0 {
		return 0
	}
	return b.entries / float64(b.count)
}
