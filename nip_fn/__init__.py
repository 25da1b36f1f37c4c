"""nip-fn: neural interactive proofs for language models, as a scan over recorded events."""
