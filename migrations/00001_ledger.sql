-- The ledger: accounts, their chains of entries, the balance rows that are
-- projected from them, and the incarnations of the database.
--
-- Every primary and unique key starts with account_id where a table belongs to
-- accounts, so the same schema can be distributed by account_id. There are no
-- foreign keys, triggers or functions: the write path takes no lock on a row
-- that somebody else may hold.

-- +goose Up

-- +goose StatementBegin
do $$
begin
  create role ledgerd_service nologin;
exception
  when duplicate_object or unique_violation then
    null; -- another database of this cluster has it, or is creating it now
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
do $$
begin
  execute format('grant ledgerd_service to %I', current_user);
exception
  when insufficient_privilege then
    null; -- the role was made by somebody else; its administrator grants it
end
$$;
-- +goose StatementEnd

-- What never changes about an account, and its metadata. No decision about
-- money reads this table for anything that can change: that is in the head.
create table accounts (
  account_id text collate "C" not null,
  currency   text             not null,
  exponent   smallint         not null,
  shard      smallint         not null,
  metadata   text             not null,
  opened_at  timestamptz      not null,
  constraint accounts_pkey primary key (account_id),
  constraint accounts_id_form check (account_id ~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$'),
  constraint accounts_currency_form check (currency ~ '^[A-Z][A-Z0-9_]{1,15}$'),
  constraint accounts_exponent_range check (exponent between 0 and 18),
  constraint accounts_shard_range check (shard between 0 and 63)
);

create index accounts_by_shard on accounts (shard, account_id);
create index accounts_by_currency on accounts (currency, account_id);

-- The chain. A row is a link: (account_id, seq) can be added once, and is
-- never changed. The *_after columns are all state of the account after it.
create table entries (
  account_id        text collate "C" not null,
  seq               bigint           not null,
  kind              text             not null,
  amount            bigint           not null,
  balance_after     bigint           not null,
  held_after        bigint           not null,
  fence_after       bigint           not null,
  min_balance_after bigint           not null,
  status_after      text             not null,
  fencing_after     text             not null,
  transaction_id    uuid             not null,
  idempotency_key   text collate "C",
  request_hash      bytea            not null,
  counterparty      text,
  hold_seq          bigint,
  reverses          uuid,
  reason            text,
  effective_at      timestamptz      not null,
  details           text,
  posted_at         timestamptz      not null,
  hash              bytea            not null,
  hash_version      smallint         not null,
  position          bigint           generated always as identity,
  constraint entries_pkey primary key (account_id, seq),
  constraint entries_idempotency_key unique (account_id, idempotency_key),
  constraint entries_seq_positive check (seq >= 1),
  constraint entries_kind_known check (kind in
    ('opened', 'settings', 'fenced', 'credit', 'debit', 'hold', 'capture', 'release', 'declined')),
  constraint entries_first_is_opened check ((seq = 1) = (kind = 'opened')),
  constraint entries_amount_range check (amount between 0 and 9007199254740991),
  constraint entries_money_has_amount check (amount > 0 or kind in ('opened', 'settings', 'fenced')),
  constraint entries_balance_range check (balance_after between -9007199254740991 and 9007199254740991),
  constraint entries_held_range check (held_after between 0 and 9007199254740991),
  constraint entries_fence_range check (fence_after between 0 and 9007199254740991),
  constraint entries_min_balance_range check (min_balance_after between -4503599627370496 and 0),
  constraint entries_status_known check (status_after in ('active', 'frozen', 'closed')),
  constraint entries_closed_is_empty check (status_after <> 'closed' or (balance_after = 0 and held_after = 0)),
  constraint entries_fencing_known check (fencing_after in
    ('lease', 'lease_required', 'external', 'external_required')),
  -- Of the entries of one transaction only the first has the key.
  constraint entries_key_is_for_money check (idempotency_key is null or kind not in ('opened', 'settings', 'fenced')),
  constraint entries_declined_has_key check (kind <> 'declined' or idempotency_key is not null),
  constraint entries_declined_has_reason check (kind <> 'declined' or reason is not null),
  constraint entries_hash_sizes check (octet_length(hash) = 32 and octet_length(request_hash) = 32)
);

-- Discovery of new entries by the projection. Not the order of anything:
-- positions are handed out before the commit that makes them visible.
create index entries_by_position on entries (position);
create index entries_by_transaction on entries (transaction_id);

-- The projection: one row an account. It can be lost and made again from the
-- entries; no decision about money reads it.
create table balances (
  account_id    text collate "C" not null,
  balance       bigint           not null,
  held          bigint           not null,
  credits_total numeric(38)      not null,
  debits_total  numeric(38)      not null,
  applied_seq   bigint           not null,
  last_token    bigint           not null,
  updated_at    timestamptz      not null,
  constraint balances_pkey primary key (account_id),
  constraint balances_applied_seq_range check (applied_seq >= 0),
  constraint balances_last_token_range check (last_token >= 0)
) with (fillfactor = 70);

-- The lives of this ledger. A new row says: committed rows may have been lost
-- before this moment, and an operator (or a promotion that loses nothing) has
-- accepted that. The row with the highest number is compared with the server.
create table incarnations (
  incarnation       integer     not null,
  system_identifier bigint      not null,
  timeline          bigint      not null,
  entries_oid       bigint      not null,
  reason            text        not null,
  started_at        timestamptz not null default clock_timestamp(),
  constraint incarnations_pkey primary key (incarnation),
  constraint incarnations_range check (incarnation between 1 and 255)
);

insert into incarnations (incarnation, system_identifier, timeline, entries_oid, reason)
select 1,
       (select system_identifier from pg_control_system()),
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint,
       'entries'::regclass::oid::bigint,
       'created';

-- Append-only by privilege: the service may add entries and read them, and
-- nothing else. Only the owner could change one, and the audit would say so.
grant select, insert on accounts to ledgerd_service;
grant update (metadata) on accounts to ledgerd_service;
grant select, insert on entries to ledgerd_service;
grant select, insert, update on balances to ledgerd_service;
grant select, insert on incarnations to ledgerd_service;

-- +goose Down

drop table incarnations, balances, entries, accounts;
