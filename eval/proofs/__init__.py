"""Generated proofs, judged by Lean."""
