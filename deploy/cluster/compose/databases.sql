-- Run once by psql, as the administrator. Bridges and the scanning service have a role and a database each.
-- The image runs this file as a user who cannot read the secrets, so the passwords come from secrets/databases.env.
\set ON_ERROR_STOP on
\set bridge_password ''
\set scan_password ''
\getenv bridge_password DATABASE_PASSWORD
\getenv scan_password SCAN_DATABASE_PASSWORD
SELECT '' IN (:'bridge_password', :'scan_password') AS is_missing \gset
\if :is_missing
DO $$BEGIN RAISE 'DATABASE_PASSWORD or SCAN_DATABASE_PASSWORD is empty: see secrets/databases.env'; END$$;
\endif
CREATE ROLE scanbridge LOGIN PASSWORD :'bridge_password';
CREATE ROLE scan LOGIN PASSWORD :'scan_password';
CREATE DATABASE scanbridge OWNER scanbridge;
CREATE DATABASE scan OWNER scan;
REVOKE CONNECT ON DATABASE scanbridge, scan FROM PUBLIC;
