"""HTTP: which requests are refused before all else, and the server."""
import contextlib
import hmac
import io
import os
import socket
import socketserver
import sys
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from bottle import BaseRequest

from . import forms, pages, sessions, settings        # the first two fill app
from .settings import log, site
from .web import app, visitor_address

assert forms and pages
HEADERS = [
    ("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; "
     "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
     "frame-ancestors 'none'"),
    ("X-Frame-Options", "DENY"), ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"), ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"), ("Cross-Origin-Resource-Policy", "same-origin")]

connections = {}                    # the oldest first: whether its request has not arrived yet


def refusal(environ):
    """Why a request is refused; None if it is not.

    A site whose name was made to lead here (DNS rebinding) sends its name as the Host.
    """
    origin, method = environ.get("HTTP_ORIGIN"), environ["REQUEST_METHOD"]
    size, kind = environ.get("CONTENT_LENGTH") or "0", environ.get("CONTENT_TYPE", "")
    if environ.get("HTTP_HOST", "").lower() not in site.hosts:
        return "a foreign Host header"
    if site.proxy_secret and not hmac.compare_digest(
            environ.get("HTTP_X_QUEUE_WEB_SECRET", "").encode(), site.proxy_secret.encode()):
        return "a request that did not come through the proxy"
    if method not in ("GET", "HEAD", "POST"):
        return "a method that is not used here"
    if origin not in site.origins and (origin or method == "POST"):
        return "a foreign Origin, or a form without one"
    if (not size.isdecimal() or int(size) > most_of(environ) or "HTTP_TRANSFER_ENCODING" in environ
            or method == "POST" and kind != "application/x-www-form-urlencoded"):
        return "what is no small form"          # Bottle would write it to a file
    if not environ.get("PATH_INFO", "").startswith(site.prefix + "/"):
        return f"an address that is not below {site.prefix}/"
    return None


def most_of(environ):
    """How long a form may be.  Only who has logged in may send a long body."""
    pushes = environ.get("PATH_INFO") == site.prefix + "/queue"
    known = pushes and BaseRequest(environ).get_cookie(site.cookie) in sessions.sessions
    return settings.PUSH if known else settings.FORM


def guard(environ, start_response):
    """Before all else: a Host and an Origin of our own."""
    def start(status, headers, exc_info=None):
        kept = [h for h in headers if h[0] != "Cache-Control"]
        return start_response(status, kept + HEADERS, exc_info)

    if site.prefix and environ.get("PATH_INFO") == site.prefix:
        environ["PATH_INFO"] += "/"
    why = refusal(environ)
    if not why:
        size = int(environ.get("CONTENT_LENGTH") or "0")
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        environ["PATH_INFO"] = environ["PATH_INFO"][len(site.prefix):]
        connections[environ["queue_web.connection"]] = False
        return app(environ, start)
    log(f"refused {why}, from {visitor_address(environ)}")
    start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"Refused: {why}.\n".encode()]


class Handler(WSGIRequestHandler):
    timeout = 20

    def get_environ(self):
        return super().get_environ() | {"queue_web.connection": self.connection}

    def address_string(self):           # over a Unix socket there is none
        return self.client_address[0] if isinstance(self.client_address, tuple) else ""

    def log_message(self, *args):       # requests are not logged
        pass


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads, request_queue_size = True, 64

    def server_bind(self):              # without a look into the DNS
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        if self.address_family != socket.AF_UNIX:
            self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()

    def get_request(self):
        request, address = super().get_request()
        return request, address or ("", 0)

    def process_request(self, request, client_address):
        if len(connections) >= settings.THREADS:    # the oldest that has sent no request gives way
            idle = next((c for c, waits in list(connections.items()) if waits), request)
            connections.pop(idle, None)
            with contextlib.suppress(OSError):
                idle.shutdown(socket.SHUT_RDWR)
        connections[request] = True
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *args):      # of a client that has gone
        log(f"request failed: {sys.exc_info()[1]!r}")


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def server_bind(self):
        """The file of an earlier run is removed; only the owner and its group can connect."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.server_address)
        before = os.umask(0o117)
        try:
            super().server_bind()
        finally:
            os.umask(before)


def make_server(dsn, address, port, origin=None):
    """The server for this database, and what browsers may call it."""
    site.dsn = dsn
    if address.startswith("unix:"):
        server = UnixServer(address.removeprefix("unix:"), Handler)
        names = ()
    else:
        server = Server((address, port), Handler)
        local = address in ("127.0.0.1", "localhost")
        names = ("localhost", "127.0.0.1") if local else (address,)
    server.set_app(guard)
    site.origins.update([origin] if origin else
                        [f"http://{n}:{server.server_port}" for n in names])
    site.hosts.update(urlsplit(o).netloc for o in site.origins)
    site.secure = (origin or "").startswith("https:")
    site.cookie_path = site.prefix + "/"
    prefix = "" if not site.secure else "__Secure-" if site.prefix else "__Host-"
    site.cookie = f"{prefix}queue_web" + ("" if site.secure else f"_{server.server_port}")
    if names and names[0] != "localhost" and not site.secure:
        log("passwords cross the network as they are: put a proxy with TLS before, see --origin")
    log(f"listening on {address}" if not names else
        f"listening on http://{names[0]}:{server.server_port}{site.prefix}")
    return server
