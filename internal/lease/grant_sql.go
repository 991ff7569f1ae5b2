package lease

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// newest is the newest incarnation, and whether it is the one that this server
// was in when it began: the same cluster, timeline and table of entries.
const newest = `(
  select i.incarnation,
         i.system_identifier = (select system_identifier from pg_control_system())
           and i.entries_oid = 'entries'::regclass::oid::bigint
           and case when pg_is_in_recovery() then false
                    else i.timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
               end as mine
    from incarnations as i
   order by i.incarnation desc
   limit 1
) as i`

// grantState judges the row l by the database's clock.
const grantState = `
  case when l.released_at is not null or l.incarnation < i.incarnation or ` + clockWentBack + ` then 'free'
       when l.expires_at > clock_timestamp() then 'held'
       when l.expires_at + l.lock_delay_ms * interval '1 millisecond' > clock_timestamp() then 'lock_delay'
       else 'free'
  end`

// grantColumns are what scanGrant reads.
const grantColumns = `l.name, l.incarnation, l.generation, l.nonce, l.holder, l.ttl_ms, l.lock_delay_ms,
       l.acquired_at, l.expires_at, l.released_at is not null`

// freeIn is when the row becomes free if nothing happens, in milliseconds.
const freeIn = `ceil(extract(epoch from l.expires_at + l.lock_delay_ms * interval '1 millisecond' - clock_timestamp()) * 1000)::bigint`

// acquireGrant takes one name when it is free. ON CONFLICT locks the row before
// the WHERE and the SET are computed, so the clock that decides is read after
// the wait for the lock.
const acquireGrant = `
insert into leases as l (name, incarnation, generation, holder, nonce, ttl_ms, lock_delay_ms, acquired_at, expires_at)
select $1::text, i.incarnation, 1, $2::text, $3::uuid, $4::integer, $5::integer,
       clock_timestamp(), clock_timestamp() + $4::integer * interval '1 millisecond'
  from ` + newest + `
 where i.mine -- a database that lost rows would hand out their tokens again
    on conflict (name) do update
   set incarnation = excluded.incarnation,
       generation = l.generation + 1,
       holder = excluded.holder,
       nonce = excluded.nonce,
       ttl_ms = excluded.ttl_ms,
       lock_delay_ms = excluded.lock_delay_ms,
       acquired_at = clock_timestamp(),
       expires_at = clock_timestamp() + excluded.ttl_ms * interval '1 millisecond',
       released_at = null
 where excluded.incarnation >= l.incarnation -- a token never falls
   and (l.released_at is not null
        or l.incarnation < excluded.incarnation -- a bump ends all leases
        or l.expires_at + l.lock_delay_ms * interval '1 millisecond' <= clock_timestamp()
        or ` + clockWentBack + `)
returning ` + grantColumns + `, 'held', ` + freeIn

// lockName locks the row before anything about time is computed.
const lockName = `
with locked as materialized (
  select l.name, l.expires_at
    from leases as l
   where l.name = $1::text
     for update
)`

// stillStands is true for a term that nothing has ended.
const stillStands = `
   and l.name = locked.name
   and i.mine
   and l.incarnation = i.incarnation
   and l.released_at is null
   and locked.expires_at > clock_timestamp() -- an expired term is never revived`

// presentedTerm is what a renewal or a release must match.
const presentedTerm = `
  from locked, ` + newest + `
 where l.incarnation = $2::integer
   and l.generation = $3::bigint
   and l.holder = $4::text` + stillStands

const renewGrant = lockName + `
update leases as l
   set ttl_ms = $5::integer,
       expires_at = clock_timestamp() + $5::integer * interval '1 millisecond'` + presentedTerm + `
returning ` + grantColumns + `, 'held', ` + freeIn

const releaseGrant = lockName + `
update leases as l
   set expires_at = clock_timestamp(),
       released_at = clock_timestamp()` + presentedTerm + `
returning ` + grantColumns + `, 'free', 0::bigint`

// forceGrant ends a term without a release, so that its lock delay follows.
const forceGrant = lockName + `, l as (
  update leases as l
     set expires_at = clock_timestamp()
    from locked, ` + newest + `
   where true` + stillStands + `
  returning l.*
), noted as (
  insert into lease_force_releases (name, incarnation, generation, holder, released_by, reason, released_at)
  select l.name, l.incarnation, l.generation, l.holder, $2::text, $3::text, l.expires_at
    from l
)
select ` + grantColumns + `,
       case when l.lock_delay_ms > 0 then 'lock_delay' else 'free' end, l.lock_delay_ms::bigint
  from l`

// lookGrant always returns one row; without a lease its columns are null.
const lookGrant = `
select i.mine, ` + grantColumns + `, ` + grantState + `, ` + freeIn + `
  from ` + newest + `
  left join leases as l on l.name = $1::text`

const forcedStatement = `
select f.released_by, f.reason
  from lease_force_releases as f
 where f.name = $1::text
   and f.incarnation = $2::integer
   and f.generation = $3::bigint`

const listGrants = `
select ` + grantColumns + `, ` + grantState + `, ` + freeIn + `
  from leases as l
 cross join ` + newest + `
 where l.name > $1::text || $2::text
   and starts_with(l.name, $1::text)
   and l.name < $1::text || chr(127) -- the names are ASCII
 order by l.name
 limit $3::integer`

// scanGrant reads grantColumns, the state and freeIn.
func scanGrant(row pgx.CollectableRow) (Grant, error) {
	var g Grant
	var ttl, delay, free int64
	err := row.Scan(&g.Name, &g.Incarnation, &g.Generation, &g.Nonce, &g.Holder, &ttl, &delay,
		&g.AcquiredAt, &g.ExpiresAt, &g.Released, &g.State, &free)
	g.complete(ttl, delay, free)
	return g, err
}

// scanSeen reads a row of lookGrant; the grant is nil when there is no lease.
func scanSeen(row pgx.CollectableRow, mine *bool) (*Grant, error) {
	var name, holder, state *string
	var incarnation *int
	var generation, ttl, delay, free *int64
	var nonce *uuid.UUID
	var acquired, expires *time.Time
	var released *bool
	err := row.Scan(mine, &name, &incarnation, &generation, &nonce, &holder, &ttl, &delay,
		&acquired, &expires, &released, &state, &free)
	if err != nil || name == nil {
		return nil, err
	}
	g := &Grant{
		Term:   Term{Name: *name, Incarnation: *incarnation, Generation: *generation, Nonce: *nonce},
		Holder: *holder, AcquiredAt: *acquired, ExpiresAt: *expires, Released: *released, State: State(*state),
	}
	g.complete(*ttl, *delay, *free)
	return g, nil
}

func (g *Grant) complete(ttl, delay, free int64) {
	g.TTL, g.LockDelay = time.Duration(ttl)*time.Millisecond, time.Duration(delay)*time.Millisecond
	if g.State != StateFree {
		g.FreeIn = time.Duration(max(free, 1)) * time.Millisecond
	}
}
