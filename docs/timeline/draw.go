package main

import (
	"fmt"
	"strings"
	"time"
)

// The measures of the picture, in pixels.
const (
	width, height  = 960, 270
	left, right    = 110, 30
	laneA, laneB   = 95, 185
	barHalf, axisY = 13, 235
)

// draw returns the story as SVG.
func (s *story) draw() string {
	end := s.events[len(s.events)-1].at + 150*time.Millisecond
	x := func(at time.Duration) float64 {
		return left + float64(at)/float64(end)*(width-left-right)
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13">`, width, height)
	p(`<title>A paused worker and its late write, measured</title>`)
	p(`<rect width="%d" height="%d" fill="#ffffff"/>`, width, height)
	p(`<text x="12" y="%d" font-weight="600">worker A</text><text x="12" y="%d" font-weight="600">worker B</text>`, laneA+5, laneB+5)
	s.bars(p, x, end)
	for _, e := range s.events {
		y := laneA
		if e.lane == "B" {
			y = laneB
		}
		switch e.kind {
		case "paid":
			p(`<circle cx="%.1f" cy="%d" r="4.5" fill="#1a7f37"/>`, x(e.at), y)
		case "refused":
			p(`<g stroke="#cf222e" stroke-width="3"><path d="M%.1f %d l10 10 m0 -10 l-10 10"/></g>`, x(e.at)-5, y-5)
			p(`<text x="%.1f" y="%d" fill="#cf222e">%s</text>`, x(e.at)+12, y+barHalf+18, e.text)
		case "acquired":
			p(`<text x="%.1f" y="%d">%s</text>`, x(e.at), y-barHalf-6, e.text)
		case "stopped", "continued":
			p(`<path d="M%.1f %d v%d" stroke="#57606a" stroke-dasharray="3 3"/>`, x(e.at), y-barHalf-20, 2*barHalf+20)
			p(`<text x="%.1f" y="%d" fill="#57606a" text-anchor="%s">%s</text>`, x(e.at), y-barHalf-24, map[string]string{"stopped": "start", "continued": "end"}[e.kind], e.text)
		}
	}
	step := 500 * time.Millisecond
	for at := time.Duration(0); at <= end; at += step {
		p(`<path d="M%.1f %d v5" stroke="#57606a"/><text x="%.1f" y="%d" fill="#57606a" text-anchor="middle">%.1f s</text>`,
			x(at), axisY, x(at), axisY+20, at.Seconds())
	}
	p(`<path d="M%d %d H%d" stroke="#57606a"/>`, left, axisY, width-right)
	p(`</svg>`)
	return b.String()
}

// bars draws who held the lease, and how long A was stopped. The end of A's
// first lease is not told by anybody: it lies before B's acquisition, at most a
// TTL behind the stop.
func (s *story) bars(p func(string, ...any), x func(time.Duration) float64, end time.Duration) {
	bar := func(from, to time.Duration, y int, fill string) {
		p(`<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="3" fill="%s"/>`, x(from), y-barHalf, x(to)-x(from), 2*barHalf, fill)
	}
	const held, stopped = "#ddf4ff", "#d0d7de"
	var a, b, stop time.Duration
	aHolds := false
	for _, e := range s.events {
		switch e.lane + e.kind {
		case "Aacquired":
			a, aHolds = e.at, true
		case "Bacquired":
			b = e.at
			bar(a, min(stop+s.ttl, b), laneA, held)
			aHolds = false
		case "Astopped":
			stop = e.at
		case "Acontinued":
			p(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`, x(stop), laneA, x(e.at)-x(stop), barHalf, stopped)
		case "Breleased":
			bar(b, e.at, laneB, held)
		}
	}
	if aHolds {
		bar(a, end, laneA, held)
	}
	p(`<rect x="%d" y="14" width="14" height="14" fill="%s"/><text x="%d" y="26">holds the lease</text>`, left, held, left+20)
	p(`<rect x="%d" y="14" width="14" height="14" fill="%s"/><text x="%d" y="26">is stopped</text>`, left+140, stopped, left+160)
	p(`<circle cx="%d" cy="21" r="4.5" fill="#1a7f37"/><text x="%d" y="26">write accepted</text>`, left+257, left+270)
	p(`<g stroke="#cf222e" stroke-width="3"><path d="M%d 16 l10 10 m0 -10 l-10 10"/></g><text x="%d" y="26">write refused by the account</text>`, left+385, left+403)
}
