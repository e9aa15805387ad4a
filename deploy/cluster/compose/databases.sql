-- Run once by psql, as the administrator. Bridges and the scanning service have a role and a database each.
\set bridge_password `cat /run/secrets/database-password`
\set scan_password `cat /run/secrets/scan-database-password`
CREATE ROLE scanbridge LOGIN PASSWORD :'bridge_password';
CREATE ROLE scan LOGIN PASSWORD :'scan_password';
CREATE DATABASE scanbridge OWNER scanbridge;
CREATE DATABASE scan OWNER scan;
REVOKE CONNECT ON DATABASE scanbridge, scan FROM PUBLIC;
