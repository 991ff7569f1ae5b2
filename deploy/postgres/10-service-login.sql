-- Runs once, when the container's database is made: the login of the service.
-- The migrations give the rights to the role, and accept that it exists.
\getenv password LEDGERD_APP_PASSWORD
create role ledgerd_service nologin;
create role ledgerd_app login password :'password' in role ledgerd_service;
grant ledgerd_service to ledgerd_owner;
