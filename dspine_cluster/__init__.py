"""dspine_cluster: speculative decoding across machines, served by Ray Serve."""
