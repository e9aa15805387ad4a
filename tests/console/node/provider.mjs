// A real OpenID Connect provider on loopback. Arguments: port, redirect URI. Any password is right; groups by name.
import Provider from "oidc-provider";

// Its clock may be late, so that its tokens are old.
const late = Number(process.env.LATE_S || 0) * 1000, now = Date.now;
Date.now = () => now() - late;

const [port, redirect] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const GROUPS = {ann: ["staff", "mail-admins"], vic: ["mail-viewers"], zoe: ["staff"], one: "mail-viewers", "vic-2": ["mail-viewers"]};
// Somebody else got the name of a person who left.
const NAMES = {"vic-2": "vic"};
// Ann's address is verified, Vic's is not, Zoe's is somebody else's domain.
const EMAILS = {
  ann: {email: "Ann@A.example", email_verified: true}, vic: {email: "vic@a.example", email_verified: false},
  zoe: {email: "zoe@elsewhere.example", email_verified: true},
};
const client = (id, more) => ({
  client_id: id, redirect_uris: [redirect], response_types: ["code"], grant_types: ["authorization_code"],
  client_secret: "a secret of the tests", ...more,
});
const provider = new Provider(issuer, {
  clients: [
    client("console"),
    client("posting", {token_endpoint_auth_method: "client_secret_post"}),
    client("public", {token_endpoint_auth_method: "none", client_secret: undefined}),
  ],
  claims: {openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email", "email_verified"]},
  conformIdTokenClaims: process.env.ONLY_USERINFO === "1",
  cookies: {keys: ["a key of the tests"]},
  findAccount: (_, id) => ({accountId: id, claims: () => ({sub: id, preferred_username: NAMES[id] || id, groups: GROUPS[id], ...EMAILS[id]})}),
  pkce: {required: () => true},
  ttl: {
    AccessToken: 600, AuthorizationCode: 600, Grant: 86400, Interaction: 86400, Session: 86400,
    IdToken: 600,
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
