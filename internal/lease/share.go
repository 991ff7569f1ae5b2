package lease

import "slices"

// plan is what a process does next so that the live processes share the names
// evenly.
type plan struct {
	// join lists member slots to try, the first free one; empty for a member.
	join []string
	// acquire lists names to take.
	acquire []string
	// giveUp lists names to hand on.
	giveUp []string
	// orphans are live terms in this process's name that it does not know: the
	// answer to an acquisition was lost. They are released, never adopted, so
	// that a term is not used twice.
	orphans []Term
}

// share makes the plan of the process that calls itself me. names are shared
// out, members are the slots by which live processes know of each other,
// leases is what the database says about both, and mine reports how this process
// stands to a name. With n live members each gets len(names)/n names, and the
// first ones the rest, so that the shares always add up to all names.
func share(me string, names, members []string, leases []Lease, mine func(name string) standing) plan {
	byName := make(map[string]*Lease, len(leases))
	for i := range leases {
		byName[leases[i].Name] = &leases[i]
	}
	var p plan
	place, live := -1, 0
	for _, slot := range members {
		l := byName[slot]
		switch {
		case mine(slot) == standingHeld:
			place = live
			live++
		case l == nil || l.Free:
			if len(p.join) == 0 {
				p.join = append(p.join, slot)
			}
		case l.Live && l.Holder != me:
			live++
		}
	}
	for _, l := range leases {
		if l.Live && l.Holder == me && mine(l.Name) == standingNone {
			p.orphans = append(p.orphans, l.Term)
		}
	}
	if place < 0 {
		return p // without a slot the others do not count this process
	}
	p.join = nil

	quota := len(names) / live
	if place < len(names)%live {
		quota++
	}
	var held []string
	for _, name := range names {
		if mine(name) == standingHeld {
			held = append(held, name)
		}
	}
	if len(held) > quota {
		p.giveUp = slices.Clone(held[quota:])
		return p
	}
	// Each member starts to look at another place, so that two of them rarely
	// ask for the same name.
	start := place * len(names) / live
	for i := range names {
		name := names[(start+i)%len(names)]
		if len(held)+len(p.acquire) == quota {
			break
		}
		if l := byName[name]; mine(name) == standingNone && (l == nil || l.Free) {
			p.acquire = append(p.acquire, name)
		}
	}
	return p
}

// standing says how a process stands to a name.
type standing int

const (
	standingNone    standing = iota
	standingHeld             // it holds a lease and works
	standingLeaving          // it works no more, or stops, and has not released yet
)
