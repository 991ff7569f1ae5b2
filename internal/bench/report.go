package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Summary is what a series of measurements of one workload and number of
// connections comes to: the medians.
type Summary struct {
	Workload    Workload `json:"workload"`
	Connections int      `json:"connections"`
	Runs        int      `json:"runs"`
	Rate        float64  `json:"operations_per_second"`
	P50         float64  `json:"p50_ms"`
	P99         float64  `json:"p99_ms"`
	Floor       float64  `json:"floor"`
	Ratio       float64  `json:"floor_ratio"`
	LagP99      float64  `json:"lag_p99_ms"`
	// OfUniform is the rate as a share of the uniform workload's with the same
	// connections, 0 when there is none.
	OfUniform float64 `json:"of_uniform"`
}

// Summarize returns the medians by workload and connections.
func Summarize(all []Measurement) []Summary {
	type group struct {
		workload    Workload
		connections int
	}
	runs := map[group][]Measurement{}
	var order []group
	for _, m := range all {
		g := group{m.Workload, m.Connections}
		if runs[g] == nil {
			order = append(order, g)
		}
		runs[g] = append(runs[g], m)
	}
	uniform := map[int]float64{}
	var out []Summary
	for _, g := range order {
		of := func(field func(*Measurement) float64) float64 { return median(runs[g], field) }
		s := Summary{Workload: g.workload, Connections: g.connections, Runs: len(runs[g]),
			Rate:   of(func(m *Measurement) float64 { return m.Rate }),
			P50:    of(func(m *Measurement) float64 { return m.P50 }),
			P99:    of(func(m *Measurement) float64 { return m.P99 }),
			Floor:  of(func(m *Measurement) float64 { return (m.FloorBefore + m.FloorAfter) / 2 }),
			Ratio:  of(func(m *Measurement) float64 { return m.Ratio }),
			LagP99: of(func(m *Measurement) float64 { return m.LagP99 }),
		}
		if g.workload == Uniform {
			uniform[g.connections] = s.Rate
		}
		out = append(out, s)
	}
	for i := range out {
		if rate := uniform[out[i].Connections]; rate > 0 {
			out[i].OfUniform = out[i].Rate / rate
		}
	}
	return out
}

// median is the middle of the values, the mean of the middle two when their
// number is even.
func median(runs []Measurement, field func(*Measurement) float64) float64 {
	values := make([]float64, len(runs))
	for i := range runs {
		values[i] = field(&runs[i])
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Print writes one measurement for people.
func (m *Measurement) Print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d connections: %.0f durable operations/s", m.Workload, m.Connections, m.Rate)
	if m.Ratio > 0 {
		fmt.Fprintf(w, ", %.0f %% of the floor", m.Ratio*100)
	}
	fmt.Fprintf(w, "\n  latency     p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms\n", m.P50, m.P99, m.P999, m.Max)
	fmt.Fprintf(w, "  operations  %d in %.1f s, errors: %s\n", m.Operations, m.Seconds, errorList(m.Errors))
	if m.BatchMean > 0 {
		fmt.Fprintf(w, "  batches     %.1f entries on average\n", m.BatchMean)
	}
	if m.Ratio > 0 {
		fmt.Fprintf(w, "  floor       %.0f entries/s before, %.0f after, %d in one INSERT\n", m.FloorBefore, m.FloorAfter, m.FloorBatch)
		fmt.Fprintf(w, "  projection  lag p99 %.1f ms, max %.1f ms; caught up %.0f ms after the load\n", m.LagP99, m.LagMax, m.CatchUp)
	}
	fmt.Fprintf(w, "  load        used %.0f %% of one CPU\n", m.LoadCPU*100)
}

func errorList(errors map[string]int64) string {
	if len(errors) == 0 {
		return "none"
	}
	var list []string
	for _, what := range slices.Sorted(maps.Keys(errors)) {
		list = append(list, fmt.Sprintf("%s × %d", what, errors[what]))
	}
	return strings.Join(list, ", ")
}

// PrintSummaries writes the medians as a table.
func PrintSummaries(w io.Writer, all []Summary) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tconnections\truns\toperations/s\tp50 ms\tp99 ms\tfloor\tof floor\tof uniform\tlag p99 ms\t")
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f %%\t%.0f %%\t%.0f\t\n",
			s.Workload, s.Connections, s.Runs, s.Rate, s.P50, s.P99, s.Floor, s.Ratio*100, s.OfUniform*100, s.LagP99)
	}
	_ = t.Flush() // w's own errors show where it is written
}
