-- Leases, and what the projection keeps beside the balance rows: the state of
-- its shards and the rebuilds that were asked for.

-- +goose Up

-- Temporary ownership of a name. A row is never deleted and its generation only
-- grows, so a token that was handed out once is never handed out again. The
-- database's clock alone decides expiry.
create table leases (
  name          text collate "C" not null,
  incarnation   integer          not null,
  generation    bigint           not null,
  holder        text             not null,
  nonce         uuid             not null,
  ttl_ms        integer          not null,
  lock_delay_ms integer          not null,
  acquired_at   timestamptz      not null,
  expires_at    timestamptz      not null,
  released_at   timestamptz,
  constraint leases_pkey primary key (name),
  constraint leases_name_length check (char_length(name) between 1 and 255),
  constraint leases_holder_length check (char_length(holder) between 1 and 255),
  constraint leases_incarnation_range check (incarnation between 1 and 255),
  constraint leases_generation_range check (generation between 1 and 2147483647),
  constraint leases_ttl_range check (ttl_ms between 100 and 600000),
  constraint leases_lock_delay_range check (lock_delay_ms between 0 and 60000)
) with (fillfactor = 50);

-- A request to fold everything again. At most one is open; a second request
-- joins it.
create table rebuilds (
  rebuild_id   uuid        not null,
  reason       text        not null,
  requested_at timestamptz not null,
  finished_at  timestamptz,
  constraint rebuilds_pkey primary key (rebuild_id),
  constraint rebuilds_reason_length check (char_length(reason) between 1 and 255)
);

create unique index rebuilds_one_open on rebuilds ((finished_at is null)) where finished_at is null;
create index rebuilds_by_request on rebuilds (requested_at);

-- How far each shard of a rebuild is. The owner of the shard writes it under
-- its own tokens, so a late owner cannot set it back.
create table rebuild_shards (
  rebuild_id     uuid             not null,
  shard          smallint         not null,
  after_account  text collate "C" not null,
  accounts_total bigint           not null,
  accounts_done  bigint           not null,
  entries_done   bigint           not null,
  repaired       bigint           not null,
  damaged        bigint           not null,
  last_token     bigint           not null,
  done_at        timestamptz,
  constraint rebuild_shards_pkey primary key (rebuild_id, shard),
  constraint rebuild_shards_range check (shard between 0 and 63)
) with (fillfactor = 50);

-- What the owner of each shard last said about it, for people.
create table projection_shards (
  shard       smallint    not null,
  last_token  bigint      not null,
  lag_entries bigint      not null,
  lag_ms      bigint      not null,
  parked      bigint      not null,
  examples    text[]      not null,
  last_error  text        not null,
  reported_at timestamptz not null,
  constraint projection_shards_pkey primary key (shard),
  constraint projection_shards_range check (shard between 0 and 63)
) with (fillfactor = 50);

grant select, insert, update on leases to ledgerd_service;
grant select, insert, update on rebuilds, rebuild_shards, projection_shards to ledgerd_service;

-- +goose Down

drop table projection_shards, rebuild_shards, rebuilds, leases;
