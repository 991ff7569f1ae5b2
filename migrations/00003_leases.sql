-- Leases for workers outside the service: who ended one by force, and which
-- writes with a wrong fencing token were refused.

-- +goose Up

-- Why a lease was ended by somebody who did not hold it. Rows are only added.
create table lease_force_releases (
  name        text collate "C" not null,
  incarnation integer          not null,
  generation  bigint           not null,
  holder      text             not null,
  released_by text             not null,
  reason      text             not null,
  released_at timestamptz      not null,
  constraint lease_force_releases_pkey primary key (name, incarnation, generation),
  constraint lease_force_releases_by_length check (char_length(released_by) between 1 and 255),
  constraint lease_force_releases_reason_length check (char_length(reason) between 1 and 255)
);

-- The latest writes that a fence refused, for people. Written late, best
-- effort and bounded: a row that is missing says nothing.
create table fencing_rejections (
  rejection_id    bigint           generated always as identity,
  account_id      text collate "C" not null,
  code            text             not null,
  presented_token bigint           not null,
  current_token   bigint           not null,
  method          text             not null,
  route           text             not null,
  request_id      text             not null,
  remote_address  text             not null,
  user_agent      text             not null,
  rejected_at     timestamptz      not null,
  constraint fencing_rejections_pkey primary key (rejection_id)
);

create index fencing_rejections_by_account on fencing_rejections (account_id, rejection_id);

grant select, insert on lease_force_releases to ledgerd_service;
grant select, insert, delete on fencing_rejections to ledgerd_service;

-- +goose Down

drop table fencing_rejections, lease_force_releases;
