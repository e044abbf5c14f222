"""The page at `/`: a playground and live figures, in one file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import HTMLResponse


def add_page_route(app: FastAPI) -> None:
    """`/`, and nothing but what the page holds may run in it."""
    html = files("dspine_cluster.api").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": _policy(html), "X-Content-Type-Options": "nosniff"}

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html, headers=headers)


def _policy(html: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash_of(html, 'script')}'; style-src '{_hash_of(html, 'style')}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash_of(html: str, tag: str) -> str:
    """Of the content of the one element of this kind."""
    content = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
