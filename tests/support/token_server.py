"""A token server on this machine that takes each authorization code, and each refresh token, once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from fastapi.openapi.models import OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_schemes import AuthScheme
from google.adk.auth.auth_tool import AuthConfig

SECRET = "client-secret-of-the-application"


@dataclass
class TokenServer:
    """What the server was asked.  ``expires_in``: of the tokens that it gives."""

    url: str = ""
    expires_in: int = 3600
    used: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def answer(self, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        grant = form["grant_type"]
        given = form["code"] if grant == "authorization_code" else form["refresh_token"]
        if given in self.used:
            self.refused.append(given)
            return 400, {"error": "invalid_grant"}
        self.used.append(given)
        name = f"{grant}-{len(self.used)}-of-{given.rpartition('-')[2]}"
        return 200, {
            "access_token": f"access-token-{name}",
            "refresh_token": f"refresh-token-{name}",
            "token_type": "Bearer",
            "expires_in": self.expires_in,
        }

    @property
    def exchanges(self) -> list[str]:
        return [one for one in self.used if not one.startswith("refresh-token")]

    @property
    def refreshes(self) -> list[str]:
        return [one for one in self.used if one.startswith("refresh-token")]

    def config(self, key: str | None = None) -> AuthConfig:
        """What a tool needs to sign its user in here."""
        flow = OAuthFlowAuthorizationCode(
            authorizationUrl=f"{self.url}/authorize", tokenUrl=f"{self.url}/token", scopes={"read": "Reads."}
        )
        scheme: AuthScheme = OAuth2(flows=OAuthFlows(authorizationCode=flow))
        raw = AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2,
            oauth2=OAuth2Auth(client_id="app", client_secret=SECRET, redirect_uri="http://localhost/back"),
        )
        return AuthConfig(auth_scheme=scheme, raw_auth_credential=raw, credential_key=key)


@contextmanager
def token_server() -> Iterator[TokenServer]:
    """Serves until the block is left."""
    state = TokenServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, body = state.answer({name: values[0] for name, values in parse_qs(text).items()})
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
