"""Middleware of the admin port: host check, authentication, CSRF check, and security headers."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from trimtab.gateway.admin.auth import AdminAuth

COOKIE: Final = "trimtab_admin"
INTENT_HEADER: Final = "x-trimtab-admin"  # another site needs a preflight to send it, which is not answered
_OPEN: Final = frozenset({"/health", "/login", "/static/login.css", "/static/theme.js", "/static/icon.svg"})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer our own forms would send "Origin: null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def problem(status: int, code: str, message: str) -> web.Response:
    """An error as JSON."""
    response = web.json_response({"error": {"code": code, "message": message}}, status=status)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="trimtab admin"'
    return response


def set_safe_headers(response: web.StreamResponse) -> None:
    """Set security headers, which restrict the browser to what the page needs."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def guard(auth: AdminAuth, allowed_hosts: Collection[str]) -> Middleware:
    """The middleware. `allowed_hosts`: allowed names in Host, in addition to addresses and localhost."""
    known = frozenset({"localhost", *(name.lower() for name in allowed_hosts)})

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = _refusal(request, auth, known)
        if refused is not None:
            set_safe_headers(refused)
            return refused
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                set_safe_headers(error)
                raise
            answer = problem(error.status, error.reason.lower().replace(" ", "_"), error.reason)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer

    return middleware


def _refusal(request: web.Request, auth: AdminAuth, hosts: Collection[str]) -> web.Response | None:
    if not _is_host_known(request.headers.get("Host", ""), hosts):
        return problem(
            421, "unknown_host", "this Host is not one of the admin port's: see admin.allowed_hosts"
        )
    if request.method not in _SAFE_METHODS and not _is_intended(request, auth):
        return problem(
            403, "cross_site", f"a change needs a key, the same origin, or the header {INTENT_HEADER}"
        )
    if request.path in _OPEN or may_enter(request, auth):
        return None
    if request.path == "/" and request.method in _SAFE_METHODS:
        return web.Response(status=303, headers={"Location": "/login"})
    return problem(401, "not_authorised", "needs an admin key, or a session: open a sign-in link")


def may_enter(request: web.Request, auth: AdminAuth) -> bool:
    """Whether the request has an admin key or a session's cookie."""
    if auth.open_to_all or _bears_key(request, auth):
        return True
    return auth.is_session(request.cookies.get(COOKIE, ""))


def _bears_key(request: web.Request, auth: AdminAuth) -> bool:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and auth.is_key(key.strip())


def _is_host_known(header: str, hosts: Collection[str]) -> bool:
    """Whether Host is an address or an allowed name. Other names may be DNS rebinding attacks."""
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    return name in hosts or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_intended(request: web.Request, auth: AdminAuth) -> bool:
    if _bears_key(request, auth) or INTENT_HEADER in request.headers:
        return True
    origin = request.headers.get("Origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("Host")
