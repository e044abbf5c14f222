from dspine_cluster.miniature.data.office_requests import REQUESTS, SMALL_REQUESTS, VAGUE


def test_no_phrasing_occurs_twice_so_that_held_out_ones_stay_unseen() -> None:
    requests = [request for phrasings in REQUESTS.values() for request in phrasings]
    requests += [request for phrasings in VAGUE.values() for request, _ in phrasings]
    requests += [request for request, _ in SMALL_REQUESTS]
    assert len(set(requests)) == len(requests)
