from __future__ import annotations

from dspine_cluster.observability.metrics import VerifierMetrics
from dspine_cluster.verifier.news_report import NewsReport


def test_figures_are_what_was_counted() -> None:
    metrics = VerifierMetrics(prompt_tokens_total=30, cached_prompt_tokens_total=16, page_usage_ratio=0.123)
    metrics.note_rounds([(15, 3, 2, 3), (0, 0, 0, 1)])
    news = NewsReport().take(metrics, (("unix:/d", 1),), 0.0)
    assert news is not None
    assert news.page_usage_ratio == 0.12
    assert news.attached == (("unix:/d", 1),)
    figures = news.figures
    assert (figures.rounds, figures.drafted_rounds, figures.committed_tokens) == (2, 1, 4)
    assert (figures.prompt_tokens, figures.cached_prompt_tokens) == (30, 16)
    assert figures.verified_per_position == (1, 1, 1)
    assert figures.accepted_per_position == (1, 1)
    assert figures.rounds_per_verify_length == (0, 0, 0, 1)


def test_nothing_new_is_not_told_again() -> None:
    report, metrics = NewsReport(), VerifierMetrics(prompt_tokens_total=1)
    assert report.take(metrics, (), 0.0) is not None
    assert report.take(metrics, (), 5.0) is None
    assert report.take(metrics, (("unix:/d", 0),), 6.0) is not None


def test_news_come_at_most_once_a_second() -> None:
    report, metrics = NewsReport(), VerifierMetrics(prompt_tokens_total=1)
    report.take(metrics, (), 0.0)
    metrics.prompt_tokens_total = 2
    assert report.take(metrics, (), 0.9) is None
    later = report.take(metrics, (), 1.1)
    assert later is not None
    assert later.figures.prompt_tokens == 2
