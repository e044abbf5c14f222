"""The page in a browser, over a real server; without Chromium, what can be told without one."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Page, expect, sync_playwright

from dspine_cluster.api.http_config import ApiKeyConfig, HttpConfig
from dspine_cluster.api.page import add_page_route
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.api.status_routes import add_status_routes
from dspine_cluster.core.cluster_records import DrafterRecord, ReplicaLoad, VerifierRecord
from dspine_cluster.core.cluster_status import ClusterStatus, DrafterStatus, VerifierStatus
from dspine_cluster.core.verifier_figures import VerifierFigures
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, Usage
from tests.api.conftest import LIMITS, listening
from tests.api.fakes import FakeGenerator, byte_tokenizer

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
EVIL = "<img src=x onerror='document.title=1'><b>bold</b> é"
ROUND_TOKENS = 4


@dataclass
class Writer(FakeGenerator):
    """Says the same to everybody, four bytes a round of which all but the last are accepted proposals."""

    says: str = EVIL
    """Without other characters than ASCII, round by round; else at the end."""
    prompts: list[str] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        self.prompts.append(str(byte_tokenizer().decode(list(request.prompt_ids))))
        token_ids = byte_tokenizer().encode(self.says)
        usage = Usage(prompt_tokens=len(request.prompt_ids))
        for start in range(0, len(token_ids), ROUND_TOKENS):
            await asyncio.sleep(self.round_s)
            taken = tuple(token_ids[start : start + ROUND_TOKENS])
            is_last = start + ROUND_TOKENS >= len(token_ids)
            usage = Usage(
                prompt_tokens=usage.prompt_tokens,
                output_tokens=start + len(taken),
                num_rounds=usage.num_rounds + 1,
                proposed_tokens=usage.proposed_tokens + 15,
                verified_tokens=usage.verified_tokens + 15,
                accepted_tokens=usage.accepted_tokens + len(taken) - 1,
            )
            yield RoundOutput(
                taken,
                self.says[start : start + ROUND_TOKENS] if self.says.isascii() else self.says * is_last,
                accepted_tokens=len(taken) - 1,
                finish_reason=FinishReason.STOP if is_last else None,
                usage=usage,
            )


def status() -> ClusterStatus:
    figures = VerifierFigures(
        rounds=100,
        drafted_rounds=100,
        committed_tokens=412,
        prompt_tokens=200,
        cached_prompt_tokens=100,
        verified_per_position=(100, 50),
        accepted_per_position=(90, 10),
        rounds_per_verify_length=(0, 50, 50),
    )
    verifier = VerifierStatus(
        VerifierRecord("<i>v</i>", "node", "e"), ReplicaLoad(3, 2), 0.5, {"d": 3}, figures, figures, 10.0
    )
    return ClusterStatus(
        (verifier,), (DrafterStatus(DrafterRecord("d", "node", (), (), "e"), ReplicaLoad(3)),)
    )


def make_app(generator: FakeGenerator, http: HttpConfig | None = None) -> FastAPI:
    app = create_app(generator, ChatTokenizer(byte_tokenizer()), "fake", LIMITS, http)
    add_page_route(app)
    add_status_routes(app, "fake", status)
    return app


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer()


@pytest.fixture(scope="module")
def url(writer: Writer) -> Iterator[str]:
    with listening(make_app(writer)) as url:
        yield url


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    """The page, in which nothing has gone wrong by the end of the test."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.goto(url)
        yield page
        browser.close()
        refusals = "Failed to load resource: the server responded"  # which the browser tells of by itself
        assert [error for error in errors if not error.startswith(refusals)] == []


def ask(page: Page, prompt: str) -> None:
    page.get_by_label("Message").fill(prompt)
    page.get_by_role("button", name="Send").click()


def test_the_page_loads_nothing_from_elsewhere(url: str) -> None:
    answer = httpx.get(url)
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.findall(r"https?://|src=|<link|@import|url\(", answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_never_reads_text_as_markup(url: str) -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", httpx.get(url).text)


def test_the_page_needs_no_key_but_its_figures_do() -> None:
    keys = (ApiKeyConfig("somebody", key="a key of sixteen and more"),)
    with listening(make_app(FakeGenerator(), HttpConfig(api_keys=keys))) as url:
        assert httpx.get(url).status_code == 200
        assert httpx.get(f"{url}/dspine/status").status_code == 401


@needs_browser
def test_tokens_of_accepted_proposals_are_marked_and_text_is_no_markup(page: Page) -> None:
    ask(page, "Hello")
    expect(page.locator(".note")).to_contain_text("tokens/s")
    answer = page.locator(".answer")
    assert answer.text_content() == EVIL
    accepted = page.locator(".answer .accepted").all_text_contents()
    encoded = EVIL.encode()
    expected = [encoded[start : start + ROUND_TOKENS] for start in range(0, len(encoded), ROUND_TOKENS)]
    assert accepted[0].encode() == expected[0][:-1]
    assert len(accepted) == len(expected)
    assert page.locator(".answer img, .answer b").count() == 0
    assert page.title() == "dspine_cluster"


@needs_browser
def test_a_conversation_goes_on_and_can_be_begun_anew(page: Page, writer: Writer) -> None:
    for prompt in ("first", "second"):
        ask(page, prompt)
        expect(page.locator(".note").last).to_contain_text("acceptance length")
    assert "first" in writer.prompts[-1]
    assert EVIL in writer.prompts[-1]
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "third")
    expect(page.locator(".note").last).to_contain_text("acceptance length")
    assert "first" not in writer.prompts[-1]


@needs_browser
def test_an_answer_that_a_new_conversation_cuts_off_is_not_part_of_it(
    page: Page, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "says", "more " * 1000)
    monkeypatch.setattr(writer, "round_s", 0.02)
    ask(page, "first")
    expect(page.locator(".answer")).to_contain_text("more")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    monkeypatch.undo()
    ask(page, "second")
    expect(page.locator(".note").last).to_contain_text("acceptance length")
    assert "more" not in writer.prompts[-1]


@needs_browser
def test_nothing_is_sent_where_nothing_is_written_but_the_example_at_first(
    page: Page, writer: Writer
) -> None:
    for _ in range(2):
        ask(page, " ")
        expect(page.locator(".note")).to_contain_text("acceptance length")
    expect(page.locator(".user")).to_have_text(["What is 6 times 7?"])


@needs_browser
def test_a_cluster_without_verifiers_is_told(page: Page, url: str) -> None:
    empty = {**httpx.get(f"{url}/dspine/status").json(), "verifiers": [], "drafters": []}
    page.route("**/dspine/status", lambda route: route.fulfill(json=empty))
    expect(page.locator("#state")).to_have_text("no verifier is there")


@needs_browser
def test_figures_are_shown_and_names_are_no_markup(page: Page) -> None:
    expect(page.locator("#state")).to_have_text("serving")
    expect(page.locator("#tiles")).to_contain_text("4.12")
    expect(page.locator("#tiles")).to_contain_text("50 %")
    expect(page.locator("#replicas")).to_contain_text("<i>v</i>")
    expect(page.locator("#replicas")).to_contain_text("d (3)")
    heights = page.locator("#positions i").evaluate_all("bars => bars.map(bar => bar.style.height)")
    assert heights[:3] == ["90%", "20%", "0%"]
    assert len(heights) == 15


@needs_browser
def test_a_refusal_is_told_and_the_next_message_goes_without_it(page: Page, writer: Writer) -> None:
    page.get_by_label("at most tokens").fill("99999")
    ask(page, "too much")
    expect(page.locator(".note.bad")).to_contain_text("maximum context length")
    page.get_by_label("at most tokens").fill("8")
    ask(page, "less")
    expect(page.locator(".note").last).to_contain_text("tokens/s")
    assert "too much" not in writer.prompts[-1]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 360, "height": 740})
    ask(page, "x" * 200)
    expect(page.locator(".note")).to_contain_text("tokens/s")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
